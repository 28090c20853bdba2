"""Types calls for a type checker's plugin, from types as strings, by calling the same functions as the program.

Only `shtypes.editor.mypy` imports mypy, and only `shtypes.editor.runtime` imports JAX, when it is first used.
"""
