"""What only some need: used as `python -m bertlab.contrib.X` or "module:NAME" in a config."""
