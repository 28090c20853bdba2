"""The namespaces, as type checkers see them. Written by `python generate/stubs.py`."""
