"""What a rule returns, and the one way in which operands of several states meet. Pure.

A rule is a function of types and static parameters. It returns a `Typing` or raises `ShardingTypeError` with the mesh
axes at fault; the public boundary adds the place and the fixes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, ParamSpec

from shtypes.caches import Bounded
from shtypes.context.settings import current
from shtypes.errors import ShardingTypeError
from shtypes.rules import reasons
from shtypes.rules.tables import LINEAR_UNARY, SUM, Need, Role
from shtypes.types import REPLICATED, Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated

P = ParamSpec("P")

#: Tells the dims of operands apart: dims with one label run together. None is a dim of size 1 that is broadcast.
Label = Hashable
PairTable = Mapping[tuple[State, State], State]
CastTable = Mapping[tuple[State, Need], State]
NO_CONSTANTS: Final[frozenset[int]] = frozenset()


class Typing(NamedTuple):
    """How an op is typed."""

    #: The type of each operand after the casts that the rule inserts; all from replicated states. A constant (see
    #: `rule`) may keep its own replicated state whatever the others have.
    operands: tuple[ShType, ...]
    results: tuple[ShType, ...]  # the type of each result


# caching

_caches: list[Bounded[Typing]] = []


def _key(argument: Any) -> Any:
    """A cache key: types by number, since equal types may differ in the names that the result carries."""
    if isinstance(argument, ShType):
        return argument.serial
    if isinstance(argument, (tuple, list)):
        return tuple(map(_key, argument))
    return argument


def rule(function: Callable[P, Typing]) -> Callable[P, Typing]:
    """Caches a rule on its exact arguments and the policy.

    Rules on several operands take ``constants``: the indices of the operands without a gradient (Python scalars,
    plain concrete arrays). Integers and bools are found by their dtype. Where a constant is replicated, REDUCED and
    INVARIANT are one state and it follows the others; a result of constants alone is replicated as the policy says.
    """
    cache: Bounded[Typing] = Bounded()
    _caches.append(cache)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> Typing:
        key = (current.value.policy, *map(_key, args), *((k, _key(v)) for k, v in sorted(kwargs.items())))
        found = cache.get(key)
        if found is None:
            found = function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            _refuse_widened(bound.arguments.get("name", function.__name__), found)
            cache.put(key, found)
        return found

    return cached


def clear_caches() -> None:
    """Forgets every cached typing."""
    for cache in _caches:
        cache.clear()


# results


def build(mesh: Mesh, dtype: str, dims: Iterable[Dim], states: Mapping[str, State]) -> ShType:
    """A type from its dims and the state of each axis, SHARDED exactly where a dim lists the axis."""
    return ShType(mesh, dtype, dims, tuple(states[axis] for axis in mesh.axis_names))


def made_of(operand: ShType, dtype: str, dims: Iterable[Dim], states: Iterable[State]) -> ShType:
    """The type of what is made of one operand; without a gradient before, it gets one as the policy says."""
    if not operand.differentiable and dtypes.differentiable(dtypes.short_name(dtype)):
        states = [replicated() if state in REPLICATED else state for state in states]
    return ShType(operand.mesh, dtype, dims, tuple(states))


def linear(operand: ShType, dtype: str, dims: Iterable[Dim]) -> Typing:
    """The typing of a linear op of one operand that puts its axes on ``dims``."""
    return Typing((operand,), (made_of(operand, dtype, dims, [LINEAR_UNARY[s] for s in operand.states]),))


def _refuse_widened(name: str, typing: Typing) -> None:
    """Refuses to widen the terms of a sum of integers that may have wrapped around: only their sum wraps back.

    Those of 32 bits and more are let through, unsigned ones apart: sums that leave 32 bits are wrong on one device too.
    """
    for i, operand in enumerate(typing.operands):
        src, unreduced = operand.dtype_name, operand.axes(State.UNREDUCED)
        if not unreduced or not dtypes.may_wrap(src):
            continue
        for result in typing.results:
            dst = result.dtype_name
            if not dtypes.wraps_alike(src, dst):
                word = reasons.operand_word(i, len(typing.operands))
                raise ShardingTypeError(
                    f"`{name}` would turn the terms of {word}, unreduced on {reasons.on(unreduced)}, into `{dst}`",
                    why=f"a term of `{src}` may have wrapped around, and only the sum wraps back",
                    axes=unreduced,
                )


# operands that meet

#: The state of a result from its operands' states on one axis, where a table of pairs does not say it; None stands for
#: constants.
Join = Callable[["Meeting", str, Sequence[State | None]], State | None]


class Meeting:
    """Operands with labelled dims, typed together.

    Attributes:
        name: The op, for messages.
        dtype: The dtype of the result.
        given: The operands' types before any cast.
        labels: The label of each dim of each operand.
        axes: The mesh axes that shard each label in the result, major to minor.
        states: The joined state of each mesh axis.
        operands: The operands' types after the casts.
    """

    def __init__(
        self,
        name: str,
        operands: Sequence[ShType],
        labels: Sequence[Sequence[Label | None]],
        join: Join | PairTable,
        casts: Sequence[CastTable],
        dtype: str,
        constants: frozenset[int] = NO_CONSTANTS,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.given = tuple(operands)
        self.labels = labels
        self.mesh = self.given[0].mesh
        if any(t.mesh is not self.mesh for t in self.given):
            raise ShardingTypeError(
                f"`{name}` cannot combine operands of different meshes",
                why=" and ".join(f"{self.word(i)} is on ({t.mesh})" for i, t in enumerate(self.given)),
            )
        # Where no gradient flows into the result, every operand is a constant.
        flows = dtypes.differentiable(dtypes.short_name(dtype))
        self._constants = {i for i, t in enumerate(self.given) if not flows or i in constants or not t.differentiable}
        self.axes = self._label_axes()
        label_of = {axis: label for label, axes in self.axes.items() for axis in axes}
        self.states: dict[str, State] = {}
        for axis, *states in zip(self.mesh.axis_names, *[t.states for t in self.given], strict=True):
            seen = [None if i in self._constants and s in REPLICATED else s for i, s in enumerate(states)]
            joined = join(self, axis, seen) if callable(join) else self.fold(join, axis, seen)
            self.states[axis] = joined or replicated()
        self.operands = tuple(self._cast(i, casts[i], label_of) for i in range(len(self.given)))

    def word(self, index: int) -> str:
        """What messages call an operand."""
        return reasons.operand_word(index, len(self.given))

    def dim(self, label: Label, size: int) -> Dim:
        """The dim of the result that has ``label``; it has the name of the first dim with its label and its size."""
        pairs = zip(self.given, self.labels, strict=True)
        every = (pair for t, labels in pairs for pair in zip(t.dims, labels, strict=True))
        names = (d.name for d, own in every if own == label and d.size == size and d.name is not None)
        return Dim(size, self.axes.get(label, ()), next(names, None))

    def typing(self, dims: Iterable[Dim], summed: Collection[str] = ()) -> Typing:
        """The typing with one result of these dims, which is summed over what the mesh axes ``summed`` shard."""
        states = [SUM[Role.ALONG if axis in summed else state] for axis, state in self.states.items()]
        return Typing(self.operands, (ShType(self.mesh, self.dtype, dims, states),))

    def fold(self, table: PairTable, axis: str, states: Sequence[State | None]) -> State | None:
        """Joins states by a table of pairs, left to right; constants follow the others."""
        joined, since = None, 0
        for i, state in enumerate(states):
            if joined is None or state is None:
                joined, since = (joined, since) if state is None else (state, i)
                continue
            result = table.get((joined, state))
            if result is None:
                raise reasons.clash(self.name, self.given, axis, (since, joined), (i, state))
            if result is not joined:
                since = i
            joined = result
        return joined

    def _label_axes(self) -> dict[Label, tuple[str, ...]]:
        """The axes of each label: the longest that an operand has, of which the others lack only minor ones."""
        longest: dict[Label, tuple[tuple[str, ...], int]] = {}
        for i, (operand, labels) in enumerate(zip(self.given, self.labels, strict=True)):
            own: set[Label] = set()
            for d, (dim, label) in enumerate(zip(operand.dims, labels, strict=True)):
                if not dim.axes:
                    continue
                if label is None:
                    raise reasons.broadcasts_sharded(self.name, operand, d, self.word(i))
                if label in own:
                    raise reasons.diagonal_twice(self.name, operand, label, self.word(i))
                own.add(label)
                known, since = longest.setdefault(label, (dim.axes, i))
                short, long = sorted((known, dim.axes), key=len)
                if long[: len(short)] != short:
                    raise reasons.axes_differ(self.name, self.given, label, (since, known), (i, dim.axes))
                if len(dim.axes) > len(known):
                    longest[label] = dim.axes, i
        taken: dict[str, tuple[Label, int]] = {}
        for label, (axes, i) in longest.items():
            for axis in axes:
                if axis in taken:
                    raise reasons.two_labels(self.name, self.given, axis, taken[axis], (label, i))
                taken[axis] = label, i
        return {label: axes for label, (axes, _) in longest.items()}

    def _cast(self, index: int, table: CastTable, label_of: Mapping[str, Label]) -> ShType:
        operand, labels = self.given[index], self.labels[index]
        states: dict[str, State] = {}
        for (axis, joined), state in zip(self.states.items(), operand.states, strict=True):
            lacks = joined is State.SHARDED and label_of[axis] not in labels
            need: Need = Role.LACKS if lacks else joined
            if index in self._constants and state in REPLICATED:
                # As if in the state that is asked for; which of the two replicated ones it is makes no difference.
                asked = joined if joined in REPLICATED else State.REDUCED
                cast = table[asked, need]
                states[axis] = state if cast in REPLICATED else cast
            else:
                states[axis] = table[state, need]
        sharded = {axis for axis, state in states.items() if state is State.SHARDED}
        dims = self._sharded_dims(operand, labels, sharded)
        if tuple(dims) == operand.dims and tuple(states.values()) == operand.states:
            return operand
        result = build(self.mesh, operand.dtype_name, dims, states)
        return operand if result == operand else result

    def _sharded_dims(self, operand: ShType, labels: Sequence[Label | None], sharded: set[str]) -> list[Dim]:
        """The operand's dims, with the axes in ``sharded`` on their labels.

        Of two dims with one label (a diagonal), the one that is sharded already keeps the axes, else the first.
        """
        dims = list(operand.dims)
        for label, axes in self.axes.items():
            having = [i for i, lab in enumerate(labels) if lab == label]
            if having:
                at = next((i for i in having if dims[i].axes), having[0])
                dims[at] = dims[at]._replace(axes=tuple(a for a in axes if a in sharded))
        return dims
