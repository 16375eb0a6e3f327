"""What some need: reached by `python -m bertlab.contrib.X` or "module:NAME" in a config."""
