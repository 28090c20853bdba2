"""`sh.nn`: the functions of `jax.nn` and the layers that models are made of, on typed values.

Nothing here communicates unless ``out=`` or an `implicit_comm` scope asks for it; each docstring says what is
sent then.
"""

from shtypes.numerics import init
from shtypes.numerics.namespace import functions_of

initializers = init
_FUNCTIONS = functions_of("nn")
globals().update(_FUNCTIONS)
__all__ = sorted([*_FUNCTIONS, "init", "initializers"])  # noqa: PLE0605  # made from the rows


def __dir__() -> list[str]:
    return __all__
