"""`python -m bertlab` is the command `bertlab`."""

import sys

from bertlab.cli import command

sys.exit(command())
