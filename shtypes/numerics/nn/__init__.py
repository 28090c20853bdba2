"""Layers and functions of neural networks."""
