"""Pytrees of typed values."""
