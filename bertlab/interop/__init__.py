"""Imports the weights of published models, and exports bertlab's; each format has one file."""
