"""The results of typing rules, and the join of operands by labels.

A rule is a function of types and static parameters. It returns a `Typing` or raises `ShardingTypeError` with the mesh
axes at fault; the public boundary adds the place and the fixes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, ParamSpec

from shtypes.caches import Bounded
from shtypes.context.settings import current
from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.tables import FACTOR, LINEAR_UNARY, MULTILINEAR, NONLINEAR, SUM, Need, Role
from shtypes.types import REPLICATED, Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated

P = ParamSpec("P")

#: Dims with equal labels are joined, as in an einsum. None is a dim of size 1 that is broadcast.
Label = Hashable
PairTable = Mapping[tuple[State, State], State]
CastTable = Mapping[tuple[State, Need], State]
NO_CONSTANTS: Final[frozenset[int]] = frozenset()


class Typing(NamedTuple):
    """The types of an op."""

    #: The operands' types after the casts that the rule inserts, all from replicated states. A constant (see `rule`)
    #: may keep its replicated state.
    operands: tuple[ShType, ...]
    results: tuple[ShType, ...]
    zero_derivative: frozenset[int] = frozenset()  # operands without a cotangent, since the derivative is zero


# caching

_caches: list[Bounded[Typing]] = []


def _key(argument: Any) -> Any:
    """A cache key: types by serial number, since equal types may differ in names."""
    if isinstance(argument, ShType):
        return argument.serial
    if isinstance(argument, (tuple, list)):
        return tuple(map(_key, argument))
    return argument


def rule(function: Callable[P, Typing]) -> Callable[P, Typing]:
    """Caches a rule on its exact arguments and the policy.

    Rules on several operands take ``constants``: the indices of the operands without a gradient (Python scalars,
    plain concrete arrays); integers and bools are constants by their dtype. Where a constant is replicated, REDUCED and
    INVARIANT are one state and it follows the others; a result of constants alone is replicated as the policy says.
    """
    cache: Bounded[Typing] = Bounded()
    _caches.append(cache)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> Typing:
        key = (current.value.policy, *map(_key, args), *((k, _key(v)) for k, v in sorted(kwargs.items())))
        typing = cache.get(key)
        if typing is None:
            typing = function(*args, **kwargs)
            _refuse_widened(typing, lambda: _argument(signature, "name", *args, **kwargs) or function.__name__)
            cache.put(key, typing)
        return typing

    return cached


def clear_caches() -> None:
    """Forgets every cached typing."""
    for cache in _caches:
        cache.clear()


# results


def build(mesh: Mesh, dtype: str, dims: Iterable[Dim], states: Mapping[str, State]) -> ShType:
    """A type from its dims and the state of each axis, SHARDED exactly where a dim lists the axis."""
    return ShType(mesh, dtype, dims, tuple(states[axis] for axis in mesh.axis_names))


def unary_result(operand: ShType, dtype: str, dims: Iterable[Dim], states: Iterable[State]) -> ShType:
    """The result type of a unary op; the policy chooses the replicated state if only the result is differentiable."""
    if not operand.differentiable and dtypes.differentiable(dtypes.short_name(dtype)):
        states = [replicated() if state in REPLICATED else state for state in states]
    return ShType(operand.mesh, dtype, dims, tuple(states))


def linear(operand: ShType, dtype: str, dims: Iterable[Dim]) -> Typing:
    """The typing of a linear unary op with result dims ``dims``."""
    return Typing((operand,), (unary_result(operand, dtype, dims, [LINEAR_UNARY[s] for s in operand.states]),))


def _argument(signature: inspect.Signature, parameter: str, *args: Any, **kwargs: Any) -> Any:
    """The argument that a call passes for a parameter, or its default; None if there is no such parameter."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments.get(parameter)


def _refuse_widened(typing: Typing, name: Callable[[], str]) -> None:
    """Refuses to widen UNREDUCED integers, whose terms may have wrapped around: only their sum wraps back.

    Signed ones of 32 bits and more are allowed: sums that overflow them are wrong on one device too.
    """
    for i, operand in enumerate(typing.operands):
        src, unreduced = operand.dtype_name, operand.axes(State.UNREDUCED)
        if not unreduced or not dtypes.may_wrap(src):
            continue
        for result in typing.results:
            dst = result.dtype_name
            if not dtypes.wraps_alike(src, dst):
                word = messages.operand_word(i, len(typing.operands))
                raise ShardingTypeError(
                    f"`{name()}` would turn the terms of {word}, unreduced on {messages.on(unreduced)}, into `{dst}`",
                    why=f"a term of `{src}` may have wrapped around, and only the sum wraps back",
                    axes=unreduced,
                )


# several operands

#: Joins the operands' states on one axis, for ops without a table of pairs; None is a constant.
Join = Callable[["JointTyping", str, Sequence[State | None]], State | None]
#: The reason why positions and counts may not be unreduced.
POSITIONS: Final = "a sum of positions is another position"


class JointTyping:
    """Joins operands by the labels of their dims.

    Args:
        name: The op, for messages.
        operands: Their types.
        labels: The label of each dim of each operand.
        dtype: The dtype of the result.
        constants: Operands without a gradient; see `rule`.
        nonlinear: The operands in which the op is nonlinear, with the reason; empty for the default reason.
        join: Joins the states on each axis.
        casts: The table of casts of each operand; by default that of a factor.

    Attributes:
        axes: The mesh axes that shard each label in the result, major to minor.
        states: The joined state of each mesh axis.
        cast_operands: The operands' types after the casts.
    """

    def __init__(
        self,
        name: str,
        operands: Sequence[ShType],
        labels: Sequence[Sequence[Label | None]],
        dtype: str,
        constants: frozenset[int] = NO_CONSTANTS,
        *,
        nonlinear: Mapping[int, str] | None = None,
        join: Join | PairTable = MULTILINEAR,
        casts: Sequence[CastTable] | None = None,
    ) -> None:
        self.name, self.dtype, self.operands, self.labels = name, dtype, tuple(operands), labels
        self.mesh = self.operands[0].mesh
        if any(t.mesh is not self.mesh for t in self.operands):
            raise ShardingTypeError(
                f"`{name}` cannot combine operands of different meshes",
                why=" and ".join(f"{self.word(i)} is on ({t.mesh})" for i, t in enumerate(self.operands)),
            )
        # If the result has no gradient, every operand is a constant.
        flows = dtypes.differentiable(dtypes.short_name(dtype))
        self._constants = {
            i for i, t in enumerate(self.operands) if not flows or i in constants or not t.differentiable
        }
        self.axes = self._label_axes()
        self.states: dict[str, State] = {}
        for axis, *all_states in zip(self.mesh.axis_names, *[t.states for t in self.operands], strict=True):
            states = [None if i in self._constants and s in REPLICATED else s for i, s in enumerate(all_states)]
            for i, why in (nonlinear or {}).items():
                if states[i] not in NONLINEAR and states[i] is not None:
                    raise messages.nonlinear(name, axis, self.word(i), why)
            joined = join(self, axis, states) if callable(join) else self.fold(join, axis, states)
            self.states[axis] = joined or replicated()
        label_of = {axis: label for label, axes in self.axes.items() for axis in axes}
        tables = [FACTOR] * len(self.operands) if casts is None else casts
        self.cast_operands = tuple(self._cast(i, table, label_of) for i, table in enumerate(tables))

    def word(self, index: int) -> str:
        """The name of an operand in messages."""
        return messages.operand_word(index, len(self.operands))

    def typing(self, dims: Iterable[tuple[Label | None, int]], summed: Iterable[Label] = ()) -> Typing:
        """The typing with one result, from the label and size of each dim; sums over the labels ``summed``.

        A dim has the name of the first operand dim with its label and size.
        """
        names = {
            (label, dim.size): dim.name
            for t, labels in zip(reversed(self.operands), reversed(self.labels), strict=True)
            for dim, label in zip(reversed(t.dims), reversed(labels), strict=True)
            if label is not None and dim.name is not None
        }
        result = [Dim(size, self.axes.get(label, ()), names.get((label, size))) for label, size in dims]
        axes = {axis for label in summed for axis in self.axes.get(label, ())}
        states = [SUM[Role.ALONG if axis in axes else state] for axis, state in self.states.items()]
        return Typing(self.cast_operands, (ShType(self.mesh, self.dtype, result, states),))

    def fold(self, table: PairTable, axis: str, states: Sequence[State | None]) -> State | None:
        """Joins states by a table of pairs, left to right; constants follow the others."""
        joined, first = None, 0
        for i, state in enumerate(states):
            if joined is None or state is None:
                joined, first = (joined, first) if state is None else (state, i)
                continue
            result = table.get((joined, state))
            if result is None:
                raise messages.clash(self.name, self.operands, axis, (first, joined), (i, state))
            if result is not joined:
                first = i
            joined = result
        return joined

    def _label_axes(self) -> dict[Label, tuple[str, ...]]:
        """The axes of each label: the most in any operand. Others may lack minor ones."""
        longest: dict[Label, tuple[tuple[str, ...], int]] = {}
        for i, (operand, labels) in enumerate(zip(self.operands, self.labels, strict=True)):
            sharded: set[Label] = set()
            for d, (dim, label) in enumerate(zip(operand.dims, labels, strict=True)):
                if not dim.axes:
                    continue
                if label is None:
                    raise messages.broadcasts_sharded(self.name, operand, d, self.word(i))
                if label in sharded:
                    raise messages.diagonal_twice(self.name, operand, label, self.word(i))
                sharded.add(label)
                longest_so_far, first = longest.setdefault(label, (dim.axes, i))
                short, long = sorted((longest_so_far, dim.axes), key=len)
                if long[: len(short)] != short:
                    raise messages.axes_differ(self.name, self.operands, label, (first, longest_so_far), (i, dim.axes))
                if len(dim.axes) > len(longest_so_far):
                    longest[label] = dim.axes, i
        owners: dict[str, int] = {}
        for axes, i in longest.values():
            for axis in axes:
                if axis in owners:
                    raise messages.two_labels(self.name, self.operands, axis, owners[axis], i)
                owners[axis] = i
        return {label: axes for label, (axes, _) in longest.items()}

    def _cast(self, index: int, table: CastTable, label_of: Mapping[str, Label]) -> ShType:
        operand, labels = self.operands[index], self.labels[index]
        states: dict[str, State] = {}
        for (axis, joined), state in zip(self.states.items(), operand.states, strict=True):
            lacks = joined is State.SHARDED and label_of[axis] not in labels
            need: Need = Role.LACKS if lacks else joined
            if index in self._constants and state in REPLICATED:
                # A constant has either replicated state.
                cast = table[joined if joined in REPLICATED else State.REDUCED, need]
                states[axis] = state if cast in REPLICATED else cast
            else:
                states[axis] = table[state, need]
        dims = list(operand.dims)
        for label, axes in self.axes.items():
            having = [d for d, other in enumerate(labels) if other == label]
            if having:  # of a diagonal, the sharded dim keeps the axes
                d = next((d for d in having if dims[d].axes), having[0])
                dims[d] = dims[d]._replace(axes=tuple(a for a in axes if states[a] is State.SHARDED))
        if tuple(dims) == operand.dims and tuple(states.values()) == operand.states:
            return operand
        result = build(self.mesh, operand.dtype_name, dims, states)
        return operand if result == operand else result
