"""Signatures: the types of arguments and results, written as text and checked where a function is called or traced."""
