"""What config files use: the defaults, and the arguments after the colon."""

from bertlab.config.defaults import base_config
from bertlab.config.load import load_config, parse_arguments

__all__ = ["base_config", "load_config", "parse_arguments"]
