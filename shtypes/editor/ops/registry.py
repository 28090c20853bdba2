"""The typings of ops by name. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shtypes.editor.call import Call
from shtypes.types import ShType

#: The type of a result, or of each of several: in a tuple or, if they come so, in a list.
Result = ShType | tuple[ShType, ...] | list[ShType]
Typed = Callable[[Call], Result]

#: What types a call of an op, by its name in `OPS`.
TYPINGS: Final[dict[str, Typed]] = {}


#: The parameters of an op in order, where what type checkers see of it does not name them.
PARAMETERS: Final[dict[str, tuple[str, ...]]] = {}


def op(*names: str, parameters: str = "") -> Callable[[Typed], Typed]:
    """Registers the typing of ops; each reads the op's name from the call."""

    def register(typing: Typed) -> Typed:
        TYPINGS.update(dict.fromkeys(names, typing))
        if parameters:
            PARAMETERS.update(dict.fromkeys(names, tuple(parameters.split())))
        return typing

    return register
