"""What a type checker's plugin asks: the types of calls, from texts, by the rules of `shtypes.rules`. Pure.

Only `shtypes.editor.mypy` knows mypy. Nothing here loads JAX.
"""
