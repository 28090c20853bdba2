"""Signatures: the types of arguments and results, as strings, checked when a function is called or traced."""
