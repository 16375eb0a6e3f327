"""Weights of published models in, and bertlab's out.

A table maps bertlab's parameters to another library's tensors and serves both directions
(`tensors`); a format has one file.
"""
