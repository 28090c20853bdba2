"""The types of calls for a type checker's plugin: from texts, by calling what the program calls.

Only `shtypes.editor.mypy` knows mypy, and only `shtypes.editor.runtime` loads JAX, at the first question.
"""
