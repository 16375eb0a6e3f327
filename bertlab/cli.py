"""The `bertlab` command."""
