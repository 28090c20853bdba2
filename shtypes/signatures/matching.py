"""Patterns, which are the types in signatures; matches types with them, and binds their dim names.

The dtype of a pattern may be a class of dtypes; a dim name stands for any size, the same one everywhere in a signature.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from shtypes.context.settings import DimAxes
from shtypes.errors import Fix, ShardingTypeError, how_many
from shtypes.resharding.transport import reshard_fix
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import current_dim_axes, in_scope
from shtypes.types.notation.printing import show_axes, show_dim
from shtypes.types.notation.syntax import DimText, caret, error_at, expand_ellipsis, read_signature

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


#: The dims bound to a name like ``*batch``: their sizes and axes.
Group = tuple[tuple[int, tuple[str, ...]], ...]


class Claim(NamedTuple):
    """A dim name's value in one type."""

    name: str  # with ``*`` if it stands for several dims
    value: int | Group  # its size, or its dims
    dim: int  # the index of its (first) dim


class Structure(NamedTuple):
    """The match of a type with a pattern, before dim names are compared with other types'."""

    reasons: tuple[str, ...]  # why it does not fit
    claims: tuple[Claim, ...] = ()  # the values of dim names
    arithmetic: tuple[tuple[DimText, int, int], ...] = ()  # the arithmetic dims, with their index and size
    #: The type that the pattern requires for this shape and dtype; None if these do not fit.
    goal: ShType | None = None


class Bindings:
    """The values of the dim names in one call, with their sources; initially, those of a `dims` scope."""

    def __init__(self, sizes: Iterable[tuple[str, int]] = ()) -> None:
        self.values: dict[str, tuple[int | Group, str]] = {name: (size, "`sh.dims`") for name, size in sizes}

    @property
    def sizes(self) -> dict[str, int]:
        """The names that stand for one dim, with their sizes."""
        return {name: value for name, (value, _) in self.values.items() if isinstance(value, int)}

    def copy(self) -> Bindings:
        """A copy of the bindings."""
        new = Bindings()
        new.values = dict(self.values)
        return new

    def add(self, claims: Iterable[Claim], source: str) -> list[str]:
        """Adds claims, and returns the contradictions to earlier ones."""
        reasons = []
        for name, value, dim in claims:
            bound = self.values.setdefault(name, (value, source))
            if bound[0] == value:
                continue
            if isinstance(value, int):
                reasons.append(f"dim {dim} has size {value}, and `{name}` is {bound[0]} by {bound[1]}")
            else:
                reasons.append(f"`{name}` stands for {_text(value)} here, and for {_text(bound[0])} by {bound[1]}")
        return reasons

    def resolve(self, structure: Structure) -> list[str]:
        """Returns the mismatches of arithmetic dims with their evaluated sizes."""
        reasons = []
        for dim, index, size in structure.arithmetic:
            missing = [name for name in names_in_arithmetic(dim.head) if name not in self.sizes]
            if missing:
                reasons.append(f"nothing says what `{missing[0]}` in `{dim.head}` is")
                continue
            try:
                value = evaluate(dim, self.sizes)
            except ShardingTypeError as error:
                reasons.append(error.what)
                continue
            if value != size:
                reasons.append(f"dim {index} has size {size}, and `{dim.head}` is {value}")
        return reasons

    def __str__(self) -> str:
        texts = (f"{name}={_text(value)} by {source}" for name, (value, source) in self.values.items())
        return ", ".join(texts)


def _text(value: int | Group) -> str:
    if isinstance(value, int):
        return str(value)
    return f"[{', '.join(show_dim(str(n), axes) for n, axes in value)}]"


@functools.lru_cache(maxsize=8192)
def structure(pattern: Pattern, t: ShType, replicated: State) -> Structure:
    """Matches a type with a pattern; axes that it does not mention must be in the state ``replicated``."""
    for axis in pattern.axes:
        try:
            t.mesh.index(axis)
        except ShardingTypeError as error:
            error.where = error.where or pattern.at(axis)
            raise
    reasons = []
    if pattern.dtypes is not None and t.dtype_name not in pattern.dtypes:
        reasons.append(f"its dtype is `{t.dtype_name}`")
    fits = not reasons
    aligned = _aligned(pattern, t)
    if aligned is None:
        written = [d for d in pattern.dims or () if not d.open_ended]
        more = " or more" if len(written) < len(pattern.dims or ()) else ""
        reasons.append(f"it has {how_many(t.ndim, 'dim')}, and the signature {how_many(len(written), 'dim')}{more}")
        return Structure(tuple(reasons))
    claims, arithmetic, open_axes = [], [], set()
    dims: list[Dim] = []
    for d, first, group in aligned:
        if d.open_ended:
            open_axes |= {axis for dim in group for axis in dim.axes}
            dims += [dim._replace(axes=tuple(a for a in dim.axes if a not in set(pattern.axes))) for dim in group]
            reasons += _elsewhere(pattern, group, first)
            if d.form == "*":
                claims.append(Claim(d.head, tuple((dim.size, dim.axes) for dim in group), first))
            continue
        (dim,) = group
        axes = tuple(word.text for word in d.axes)
        if d.keeps_axes:
            axes = tuple(a for a in dim.axes if a not in set(pattern.axes))
            open_axes |= set(dim.axes)
        dims.append(dim._replace(axes=axes))
        if d.form == "=":
            arithmetic.append((d, first, dim.size))
        elif d.size is not None and d.size != dim.size:
            reasons.append(f"dim {first} has size {dim.size}, not {d.size}")
            fits = False
        if d.head not in ("", "_") and not d.form:
            claims.append(Claim(d.head, dim.size, first))
        if axes != dim.axes:
            reasons.append(f"{_dim(d, first)} is {_sharded(dim.axes)}, and the signature has it {_sharded(axes)}")
    expected = _states(pattern, t, replicated, open_axes)
    for axis, state in expected.items():
        if state is not t.state(axis) and t.state(axis) is not State.SHARDED:
            said = "" if axis in pattern.states else ", because it does not mention it"
            got, goal = t.state(axis).name.lower(), state.name.lower()
            reasons.append(f"mesh axis `{axis}` is {got}, and the signature has it {goal}{said}")
    goal_type = _goal_type(t, dims, expected) if reasons and fits else None
    return Structure(tuple(reasons), tuple(claims), tuple(arithmetic), goal_type)


def _elsewhere(pattern: Pattern, group: Sequence[Dim], first: int) -> Iterator[str]:
    """Why dims that the pattern leaves open do not fit: it has another state for an axis that shards them."""
    for i, dim in enumerate(group, first):
        for axis in set(dim.axes) & set(pattern.states):
            yield f"dim {i} is sharded over `{axis}`, and the signature has it {pattern.states[axis].name.lower()}"


def _aligned(pattern: Pattern, t: ShType) -> list[tuple[DimText, int, tuple[Dim, ...]]] | None:
    """Each pattern dim with the index and dims that it stands for; None if the number of dims does not fit."""
    written = (DimText("...", None, (), 0),) if pattern.dims is None else pattern.dims
    full = expand_ellipsis(written, t.ndim)
    if full is None:
        return None
    groups, at = [], 0
    for d in written:
        count = t.ndim - len(written) + 1 if d.open_ended else 1
        together = [(d, at, t.dims[at : at + count])]
        alone = [(full[i], i, t.dims[i : i + 1]) for i in range(at, at + count)]
        groups += alone if d.head == "_..." else together
        at += count
    return groups


def named(pattern: Pattern, t: ShType) -> ShType:
    """The same type, with the pattern's names for unnamed dims; equal to ``t``."""
    names = list(t.names)
    for d, first, group in _aligned(pattern, t) or ():
        if len(group) == 1 and not d.form and d.head not in ("", "_", "..."):
            names[first] = names[first] or d.head
    return t.named(names)


def _states(pattern: Pattern, t: ShType, replicated: State, open_axes: set[str]) -> dict[str, State]:
    """The states that the pattern requires of axes that it does not write at dims."""
    silent = None if pattern.any_state else replicated
    expected: dict[str, State] = {}
    for axis in t.mesh.axis_names:
        if axis in pattern.sharding_axes or (axis in open_axes and axis not in pattern.states):
            continue
        state = pattern.states.get(axis, silent)
        if state is State.INVARIANT and not t.differentiable:  # R and I are equal without a gradient
            state = State.REDUCED
        if state is not None:
            expected[axis] = state
    return expected


def _goal_type(t: ShType, dims: list[Dim], expected: Mapping[str, State]) -> ShType | None:
    """The type that the pattern requires of this value, or None."""
    sharding = {axis for d in dims for axis in d.axes}
    states = {a: expected.get(a, t.state(a)) for a in t.mesh.axis_names if a not in sharding}
    try:
        return t.replace(dims=dims, states=states)
    except ShardingTypeError:
        return None


def _dim(d: DimText, index: int) -> str:
    return f"dim {index}" + (f" (`{d.head}`)" if d.head not in ("", "_") else "")


def _sharded(axes: tuple[str, ...]) -> str:
    return f"sharded over `{show_axes(axes)}`" if axes else "not sharded"


def fix_for(t: ShType, goal: ShType | None, name: str) -> Fix | None:
    """The priced reshard that makes a value fit, or None."""
    if goal is None or goal == t:
        return None
    try:
        return reshard_fix(t, goal, name)
    except ShardingTypeError:
        return None


def instance(pattern: Pattern, mesh: Mesh, replicated: State, sizes: dict[str, int]) -> ShType:
    """The only type that a pattern matches at these sizes of its names; adds its ``name=size`` to ``sizes``.

    An error if the pattern leaves open the dtype, ``...``, ``_``, ``*batch``, or a name's size.
    """
    pattern = with_scoped_axes(pattern, mesh, current_dim_axes())
    for d in pattern.dims or ():
        if d.head and d.size is not None:
            sizes.setdefault(d.head, d.size)
    if pattern.dtypes is None or len(pattern.dtypes) != 1:
        raise _open(pattern, pattern.text.partition("[")[0], "the dtype")
    dims = []
    for d in pattern.dims if pattern.dims is not None else (DimText("...", None, (), 0),):
        if d.open_ended or d.head == "_" or d.keeps_axes:
            text = str(d) if d.open_ended or d.keeps_axes else d.head
            raise _open(pattern, text, f"`{text}`")
        missing = [n for n in (names_in_arithmetic(d.head) if d.form else (d.head,)) if n and n not in sizes]
        if missing:
            raise _open(pattern, missing[0], f"the size of `{missing[0]}`")
        size = evaluate(d, sizes) if d.form else sizes[d.head] if d.head else d.size or 0
        dims.append(Dim(size, tuple(word.text for word in d.axes), d.head if d.head and not d.form else None))
    states = {a: pattern.states.get(a, replicated) for a in mesh.axis_names if a not in pattern.sharding_axes}
    for axis in pattern.axes:
        mesh.index(axis)
    (dtype,) = pattern.dtypes
    return ShType(mesh, dtype, dims, states)


def _open(pattern: Pattern, what: str, named: str) -> ShardingTypeError:
    return ShardingTypeError(
        f"the signature leaves {named} open",
        where=pattern.at(what),
        why="without a value, its text must say all of a type",
        hints=["sh.dims(batch=8) gives names their sizes", "give the types of the arguments"],
    )
