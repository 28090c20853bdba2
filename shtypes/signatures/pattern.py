"""The types that a text in a signature allows: dtypes, dims with names and arithmetic, states. Pure.

A text allows many types: its dim names stand for any size, the same one everywhere in the signature.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from shtypes.context.settings import DimAxes
from shtypes.errors import ShardingTypeError
from shtypes.types import dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import in_scope
from shtypes.types.notation.syntax import DimText, caret, error_at, read_signature

_FLOATS: Final = frozenset(n for n in dtypes.LONG if n == "bf16" or (n[0] == "f" and n != "float0"))
_INTS: Final = frozenset(n for n in dtypes.LONG if n[0] == "i")
_UINTS: Final = frozenset(n for n in dtypes.LONG if n[0] == "u")
_COMPLEX: Final = frozenset(n for n in dtypes.LONG if n[0] == "c")
_KEYS: Final = frozenset(f"key<{impl}>" for impl in ("fry", "rbg", "urbg"))

#: The dtypes that a word in place of one stands for.
CLASSES: Final[Mapping[str, frozenset[str]]] = {
    "float": _FLOATS,
    "int": _INTS,
    "uint": _UINTS,
    "integer": _INTS | _UINTS,
    "complex": _COMPLEX,
    "inexact": _FLOATS | _COMPLEX,
    "number": _FLOATS | _COMPLEX | _INTS | _UINTS,
    "key": _KEYS,
}

_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


class Pattern:
    """A signature's text, read; one object for each text.

    Attributes:
        text: The text.
        dtypes: The dtypes that it allows; None for all.
        dims: The dims as they are written; None where the text has no brackets, which allows any.
        states: The axes that braces name.
        any_state: Whether the other axes may be in any state; else they are replicated, by policy.
    """

    __slots__ = ("any_state", "dims", "dtypes", "states", "text")

    def __init__(self, text: str) -> None:
        syntax = read_signature(text)
        self.text = " ".join(text.split())
        self.dtypes = _allowed(text, syntax.dtype.text, syntax.dtype.at) if syntax.dtype else None
        self.dims = syntax.dims
        self.states = {axis.text: state for state, axes in syntax.states for axis in axes}
        self.any_state = syntax.any_state
        written = [a for d in self.dims or () for a in d.axes] + [a for _, axes in syntax.states for a in axes]
        seen: set[str] = set()
        for axis in written:
            if axis.text in seen:
                why = "a mesh axis shards one dim or is in one other state"
                raise error_at(text, axis.at, f"mesh axis `{axis.text}` is written twice", why)
            seen.add(axis.text)

    @property
    def axes(self) -> Iterator[str]:
        """The mesh axes that the text mentions."""
        yield from (axis.text for d in self.dims or () for axis in d.axes)
        yield from self.states

    @property
    def sharding_axes(self) -> frozenset[str]:
        """The mesh axes that it writes at dims."""
        return frozenset(axis.text for d in self.dims or () for axis in d.axes)

    def at(self, what: str) -> str:
        """The text with a mark below the first place where ``what`` is written."""
        return caret(self.text, max(self.text.find(what), 0))

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@functools.lru_cache(maxsize=4096)
def pattern(text: str) -> Pattern:
    """Reads a signature's text.

    Raises:
        ShardingTypeError: it is none; the message points at the column.
    """
    return Pattern(text)


def pattern_in_scope(read: Pattern, mesh: Mesh, scope: DimAxes) -> Pattern:
    """A text that was read, with the axes of its dims' names in a `dim_axes` scope.

    Raises:
        ShardingTypeError: the mesh has no such axis, or the text has it elsewhere too.
    """
    return pattern(in_scope(read.text, mesh, scope, read_signature)[0]) if scope else read


def _allowed(text: str, word: str, at: int) -> frozenset[str]:
    if word in CLASSES:
        return CLASSES[word]
    try:
        return frozenset((dtypes.short_name(word),))
    except ShardingTypeError as error:
        error.hints = (*error.hints, f"for many: {', '.join(CLASSES)}")
        error.where = error.where or caret(text, at)
        raise


@functools.lru_cache(maxsize=4096)
def names_in(arithmetic: str) -> tuple[str, ...]:
    """The dim names in arithmetic, in order."""
    nodes = (node for node in ast.walk(ast.parse(arithmetic, mode="eval")) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(node.id for node in nodes))


def evaluate(dim: DimText, sizes: Mapping[str, int]) -> int:
    """The size that arithmetic of dims comes to.

    Raises:
        ShardingTypeError: a division leaves a rest, or is by zero.
    """
    return _value(ast.parse(dim.head, mode="eval").body, dim.head, sizes)


def _value(node: ast.expr, text: str, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.Name(name):
            return sizes[name]
        case ast.BinOp(left, op, right):
            a, b = _value(left, text, sizes), _value(right, text, sizes)
            if isinstance(op, ast.Div | ast.FloorDiv) and b == 0:
                raise ShardingTypeError(f"`{text}` divides by zero")
            if isinstance(op, ast.Div):
                if a % b:
                    raise ShardingTypeError(f"`{text}` is no whole number: {a} / {b}")
                return a // b
            return _OPERATORS[type(op)](a, b)
    raise AssertionError(text)  # the reader let nothing else through
