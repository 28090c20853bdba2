"""Parses a type in a signature into a `Pattern`, which many types match.

Its dtype may be a class of dtypes; a dim name stands for any size, the same one everywhere in the signature.
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

#: Names for classes of dtypes.
DTYPE_CLASSES: Final[Mapping[str, frozenset[str]]] = {
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
    """A parsed pattern; `pattern` caches one for each string.

    Attributes:
        dtypes: The dtypes that match; None for all.
        dims: The dims; None without brackets, which matches any dims.
        states: The states in braces, by mesh axis.
        any_state: Whether the other axes may be in any state; else they must be replicated under the policy.
    """

    __slots__ = ("any_state", "dims", "dtypes", "states", "text")

    def __init__(self, text: str) -> None:
        syntax = read_signature(text)
        self.text = " ".join(text.split())
        self.dtypes = _matching_dtypes(text, syntax.dtype.text, syntax.dtype.at) if syntax.dtype else None
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
        """The mesh axes that it mentions."""
        yield from (axis.text for d in self.dims or () for axis in d.axes)
        yield from self.states

    @property
    def sharding_axes(self) -> frozenset[str]:
        """The mesh axes after ``@``."""
        return frozenset(axis.text for d in self.dims or () for axis in d.axes)

    def at(self, what: str) -> str:
        """The string with a caret below the first occurrence of ``what``, for messages."""
        return caret(self.text, max(self.text.find(what), 0))

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@functools.lru_cache(maxsize=4096)
def pattern(text: str) -> Pattern:
    """Parses a pattern, cached; a syntax error points at the column."""
    return Pattern(text)


def with_scoped_axes(parsed: Pattern, mesh: Mesh, scope: DimAxes) -> Pattern:
    """The pattern with the axes that a `dim_axes` scope gives to its dim names; of the mesh, and not used elsewhere."""
    return pattern(in_scope(parsed.text, mesh, scope, read_signature)[0]) if scope else parsed


def _matching_dtypes(text: str, word: str, at: int) -> frozenset[str]:
    """The dtypes of a class, or the one named ``word``."""
    if word in DTYPE_CLASSES:
        return DTYPE_CLASSES[word]
    try:
        return frozenset((dtypes.short_name(word),))
    except ShardingTypeError as error:
        error.hints = (*error.hints, f"for many: {', '.join(DTYPE_CLASSES)}")
        error.where = error.where or caret(text, at)
        raise


@functools.lru_cache(maxsize=4096)
def names_in_arithmetic(arithmetic: str) -> tuple[str, ...]:
    """The dim names in ``2*n + m``, in order of first appearance."""
    nodes = (node for node in ast.walk(ast.parse(arithmetic, mode="eval")) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(node.id for node in nodes))


def evaluate(dim: DimText, sizes: Mapping[str, int]) -> int:
    """The size of an arithmetic dim, for these sizes of its names; an error if a division has a remainder."""
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
    raise AssertionError(text)  # not accepted by the parser
