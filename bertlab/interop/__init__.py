"""Imports the weights of published models, and exports bertlab's.

A table maps bertlab's parameters to another library's tensors and serves both directions
(`tensors`); each format has one file.
"""
