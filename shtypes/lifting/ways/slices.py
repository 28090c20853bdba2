"""Plans which values of a program are computed before slices of most of a dim, and from which start of the dim on."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from shtypes._compat.jaxprs import dependent_vars, is_literal, literal_value
from shtypes._compat.program_keys import key_of_equation
from shtypes._compat.tracing import trace_typed
from shtypes.caches import Bounded
from shtypes.core.jax_type import as_jax_type
from shtypes.core.operation import noting_bound
from shtypes.core.reshard import types_as_used
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.interpreter import by_row
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.evaluation.table import ROWS
from shtypes.lifting.ways.choice import apart
from shtypes.lifting.ways.cuts import Cut, Cuts, Sizes, cut_windows, cuts_of
from shtypes.lifting.ways.moving import padding_of
from shtypes.lifting.ways.per_element import ruled_per_element
from shtypes.ops.shards import least_or_most
from shtypes.types import Dim, ShType, State, dtypes
from shtypes.types.mesh import Mesh

#: The mesh axis of the types by which positions are followed.
_AXIS: Final = "positions"
#: The primitives of which an operand with a gradient may lack the dim: their derivatives by it are products.
_SHARING: Final = frozenset({"dot_general", "gather"})
#: The primitives that sum positions.
_SUMS: Final = frozenset({"reduce_sum", "dot_general"})
#: Other reductions, with what changes no result.
REDUCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "reduce_max": functools.partial(least_or_most, most=False),
    "reduce_min": functools.partial(least_or_most, most=True),
    "reduce_prod": lambda dtype: 1,
    "reduce_and": lambda dtype: -1 if jnp.issubdtype(dtype, jnp.signedinteger) else least_or_most(dtype, most=True),
    "reduce_or": lambda dtype: False,
}


class _Along(NamedTuple):
    """The dim of each operand and result of which an equation computes each position alone, or which it reduces."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]

    @property
    def reduces(self) -> bool:
        """Whether it reduces the dim."""
        return None in self.results


class Plan(NamedTuple):
    """How an equation is computed before slices."""

    operands: Sequence[Cuts]
    results: Sequence[Cuts]
    reduced: Sequence[frozenset[int]] = ()  # for each operand, the dims that are reduced
    shares: bool = False  # whether an operand with a gradient lacks the dim
    restores: bool = False  # whether it pads to the sizes before
    params: Mapping[str, Any] | None = None  # of windows

    @property
    def ends(self) -> bool:
        """Whether no slice is left of some: it reduces them, or has all positions again."""
        reduces = self.params is None and any(self.reduced)
        return self.restores or reduces or (any(self.operands) and not any(self.results))


# along which dims an equation computes each position alone

_followed: Final[Bounded[tuple[_Along | None]]] = Bounded()


def _along(eqn: Any, i: int, dim: int) -> _Along | None:
    """The dims along which an equation does with each position of an operand's dim the same; None if it does not."""
    shapes, name = [tuple(v.aval.shape) for v in eqn.invars], eqn.primitive.name
    if acts_per_element(name) or ruled_per_element(eqn):
        return _Along(tuple([None if is_literal(v) else dim for v in eqn.invars]), (dim,) * len(eqn.outvars))
    if name in REDUCTIONS and dim in eqn.params["axes"]:
        return _Along((dim,), (None,))
    if name not in ROWS or eqn.effects or shapes[i][dim] < 2:
        return None
    key = (key_of_equation(eqn), tuple(shapes), i, dim)
    return _followed.get_or_create(key, lambda: (_typed_along(eqn, i, dim),))[0]


def _typed_along(eqn: Any, i: int, dim: int) -> _Along | None:
    """The same by the typing rule, for as many devices as there are positions."""
    mesh = Mesh({_AXIS: eqn.invars[i].aval.shape[dim]})
    variables = [k for k, v in enumerate(eqn.invars) if not is_literal(v)]
    found: list[_Along] = []

    def type_of(k: int) -> Any:
        aval = eqn.invars[k].aval
        dims = [Dim(n, (_AXIS,) if (k, d) == (i, dim) else ()) for d, n in enumerate(aval.shape)]
        return as_jax_type(ShType(mesh, dtypes.from_numpy(aval.dtype), dims, {} if k == i else {_AXIS: State.REDUCED}))

    def run(*xs: Any) -> list[Any]:
        values = dict(zip(variables, xs, strict=True))
        with noting_bound() as bound:
            outs = by_row(
                eqn, [values.get(k, literal_value(v) if is_literal(v) else None) for k, v in enumerate(eqn.invars)]
            )
        used = dict(zip(variables, types_as_used(xs, bound), strict=True))
        of_operands = [used[k].dim_of(_AXIS) if k in used else None for k in range(len(eqn.invars))]
        of_results = tuple([y.type.dim_of(_AXIS) if is_typed(y) else None for y in outs])
        sums = [is_typed(y) and y.type.state(_AXIS) is State.UNREDUCED for y in outs]
        if None not in of_results or (eqn.primitive.name in _SUMS and all(sums)):
            found.append(_Along(tuple(of_operands), of_results))
        return outs

    try:
        with apart(mesh):
            trace_typed(run, list(map(type_of, variables)))
    except ShardingTypeError:
        return None
    return found[0] if found else None


# programs


class _Sliced(NamedTuple):
    """A slice of a variable's dim, and the bytes of one of its positions."""

    x: Any
    cut: Cut
    nbytes: int


def _between(slices: Collection[_Sliced]) -> int:
    """The start to which slices with others move for the fewest bytes; in the middle if there are several."""
    starts, (cut, *_) = [x.cut.start for x in slices], [x.cut for x in slices]
    room = cut.size - (cut.stop - cut.start)
    return min(
        range(min(starts), max(starts) + 1),
        key=lambda to: (sum(abs(x.cut.start - to) * x.nbytes for x in slices), abs(2 * to - room), to),
    )


class _Places:
    """Where equations compute: from which start of the dims before slices on, the same for all that are connected."""

    def __init__(self) -> None:
        self._start: dict[Any, int] = {}  # by group of equations
        self._group: dict[Any, Any] = {}  # for equations with dims, another that is connected with it
        self._of: dict[Any, Any] = {}  # by variable with dim, the equation that computes it
        self._sliced: dict[Any, set[_Sliced]] = collections.defaultdict(set)  # what equations read or pad

    def _root(self, place: Any) -> Any:
        while (up := self._group.setdefault(place, place)) != place:
            place = up
        return place

    def common(self, place: Any, cuts: Sequence[tuple[Any, Cut]], results: Sequence[Any]) -> Cut:
        """The slice of the operands of an equation, each given by variable and dim."""
        for x, cut in cuts:
            if x in self._of:
                self._group[self._root(self._of[x])] = self._root(place)
            else:
                self._sliced[place].add(_Sliced(x, cut, _row_bytes(*x)))
        self._of.update(dict.fromkeys(results, place))
        (_, cut), *_ = cuts
        start = self._start.get(self._root(place), cut.start)
        return Cut(start, start + cut.stop - cut.start, cut.size)

    def padded(self, x: Any, to: Cut) -> None:
        """Notes that the slice of a variable's dim is padded to another start."""
        if x in self._of:
            self._sliced[self._of[x]].add(_Sliced(("pad", x, to), to, _row_bytes(*x)))

    def choose(self) -> None:
        """Chooses the start of each group for which the fewest bytes of what is sliced move."""
        groups: dict[Any, set[_Sliced]] = collections.defaultdict(set)
        for place, sliced in self._sliced.items():
            groups[self._root(place)] |= sliced
        self._start = {root: _between(sliced) for root, sliced in groups.items()}


def _row_bytes(v: Any, d: int) -> int:
    """The bytes of one position of a dim."""
    return int(v.aval.size * v.aval.dtype.itemsize // v.aval.shape[d])


class Plans:
    """The plans of a program's equations, but of those whose keys are in ``sized``."""

    def __init__(self, jaxpr: Any, sizes: Sizes, sized: Collection[Any]) -> None:
        self.jaxpr, self.sizes, self.sized = jaxpr, sizes, sized
        self.cuts: dict[Any, Cuts] = {}  # by variable
        self._repeated: dict[Any, set[int]] = {}  # by variable, the dims whose positions have one value
        self.sliced: dict[Any, Any] = {}  # what is nothing but slices, and the variable that is sliced
        self.makers: dict[Any, Any] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._dependent = dependent_vars(jaxpr, range(len(jaxpr.invars)))
        self.plans: dict[int, Plan] = {}  # by the number of the equation
        self._places = _Places()
        self._follow()
        self._places.choose()
        self._follow()
        self.demanded = self._demanded()

    def _follow(self) -> None:
        for found in (self.cuts, self._repeated, self.sliced, self.plans):
            found.clear()
        for number, eqn in enumerate(self.jaxpr.eqns):
            plan = self._slice(eqn) or self._pad(eqn) or self._windows(eqn) or self._plan(number, eqn)
            if plan is not None:
                self.plans[number] = plan
                self.cuts.update((v, cuts) for v, cuts in zip(eqn.outvars, plan.results, strict=True) if cuts)
            if repeated := self._repeats(eqn):
                self._repeated.update((v, repeated - self.of(v).keys()) for v in eqn.outvars)

    def of(self, v: Any) -> Cuts:
        """The slices of a value."""
        return {} if is_literal(v) else self.cuts.get(v, {})

    def is_constant(self, v: Any) -> bool:
        """Whether a value depends on no argument."""
        return is_literal(v) or v not in self._dependent

    def fills(self, v: Any, d: int) -> bool:
        """Whether positions of a dim have one value, by a broadcast, or a constant of their own."""
        return self.is_constant(v) or self._has_one_value(v, d)

    def _has_one_value(self, v: Any, d: int) -> bool:
        return is_literal(v) or size_of(v, d) == 1 or d in self._repeated.get(v, ())

    def _repeats(self, eqn: Any) -> set[int]:
        """The dims of an equation's results whose positions have one value, by what its operands have."""
        if eqn.primitive.name == "broadcast_in_dim":
            dims = tuple(eqn.params["broadcast_dimensions"])
            return {
                d
                for d in range(eqn.outvars[0].aval.ndim)
                if d not in dims or self._has_one_value(eqn.invars[0], dims.index(d))
            }
        if not acts_per_element(eqn.primitive.name):
            return set()
        return {d for d in range(eqn.outvars[0].aval.ndim) if all(self._has_one_value(x, d) for x in eqn.invars)}

    def _slice(self, eqn: Any) -> Plan | None:
        if eqn.primitive.name != "slice":
            return None
        (x,) = eqn.invars
        cuts = cuts_of(eqn, self.sizes.slices, self.of(x))
        if cuts and (not self.of(x) or x in self.sliced):
            y = eqn.outvars[0]
            self.sliced[y] = self.sliced.get(x, x) if shape_before(x, self.of(x)) == shape_before(y, cuts) else y
        return Plan((self.of(x),), (cuts,)) if cuts else None

    def _pad(self, eqn: Any) -> Plan | None:
        """The plan of a pad of what was computed of slices to the sizes before."""
        x, cuts = eqn.invars[0] if eqn.invars else None, self.of(eqn.invars[0]) if eqn.invars else {}
        if eqn.primitive.name != "pad" or not cuts or x in self.sliced:
            return None
        pads = padding_of(eqn) or {}
        restores = all(
            min(pads[d]) >= 0 == pads[d][2] and eqn.outvars[0].aval.shape[d] == c.size for d, c in cuts.items()
        )
        if not restores or any(any(pad) for d, pad in pads.items() if d not in cuts):
            return None
        for d, cut in cuts.items():
            low, high, _ = pads[d]
            self._places.padded((x, d), Cut(low, cut.size - high, cut.size))
        return Plan((cuts, {}), ({},), restores=True)

    def _windows(self, eqn: Any) -> Plan | None:
        """The plan of windows that are slices, or of such."""
        operands = list(map(self.of, eqn.invars))
        if (windows := cut_windows(eqn, self.sizes.windows, operands)) is None:
            return None
        shares = any(map(self.has_gradient, eqn.invars[1:])) and bool(windows.results)
        return Plan(operands, (windows.results,), windows.beyond[: len(operands)], shares, params=windows.params)

    def _plan(self, number: int, eqn: Any) -> Plan | None:
        if not any(map(self.of, eqn.invars)) or any(map(_has_no_numbers, eqn.invars)):
            return None
        operands: list[dict[int, Cut]] = [{} for _ in eqn.invars]
        results: list[dict[int, Cut]] = [{} for _ in eqn.outvars]
        reduced: list[set[int]] = [set() for _ in eqn.invars]
        shares = False
        for i, v in enumerate(eqn.invars):
            for d in sorted(self.of(v).keys() - operands[i].keys()):
                along = _along(eqn, i, d)
                cut = along and self._common(eqn, along, (number, i, d))
                if along is None or cut is None or along.operands[i] != d:
                    return None
                for x, e, cuts, dims in zip(eqn.invars, along.operands, operands, reduced, strict=True):
                    if e is None:
                        shares |= self.has_gradient(x)
                    elif e in cuts:
                        return None
                    else:
                        cuts[e] = cut
                        dims |= {e} if along.reduces else set()
                for y, e, cuts in zip(eqn.outvars, along.results, results, strict=True):
                    if e is not None and y.aval.shape[e] != cut.stop - cut.start:
                        return None
                    cuts.update({} if e is None else {e: cut})
        may = (eqn.primitive.name in _SHARING or not shares) and not (self.sized and key_of_equation(eqn) in self.sized)
        return Plan(operands, results, list(map(frozenset, reduced)), shares) if may else None

    def has_gradient(self, v: Any) -> bool:
        """Whether a value could have a gradient."""
        return not self.is_constant(v) and is_float(v)

    def _common(self, eqn: Any, along: _Along, place: Any) -> Cut | None:
        """The slice of all operands along a dim for which the fewest bytes move; None if some cannot have one."""
        cuts, sizes = list[tuple[Any, Cut]](), set[int]()
        for v, d in zip(eqn.invars, along.operands, strict=True):
            if d is None:
                continue
            if size_of(v, d) > 1:
                sizes.add(size_of(v, d))
            if d in self.of(v):
                cuts.append(((self.sliced.get(v, v), d), self.of(v)[d]))
            elif not self.fills(v, d):
                return None
        if len(sizes) > 1 or len({cut.size for _, cut in cuts}) > 1:
            return None
        results = [(v, d) for v, d in zip(eqn.outvars, along.results, strict=True) if d is not None]
        return self._places.common(place, cuts, results)

    def _demanded(self) -> set[int]:
        """The numbers of the equations to compute before slices: those that reductions and pads need."""
        needed, numbers = set[Any](), set[int]()
        for number in reversed(range(len(self.jaxpr.eqns))):
            eqn, plan = self.jaxpr.eqns[number], self.plans.get(number)
            if plan is None:
                continue
            if plan.ends or not needed.isdisjoint(eqn.outvars):
                numbers.add(number)
                needed.update(v for v in eqn.invars if self.of(v))
        return numbers


def is_float(v: Any) -> bool:
    """Whether a variable is of numbers that may have gradients."""
    return bool(jnp.issubdtype(v.aval.dtype, jnp.inexact))


def _has_no_numbers(v: Any) -> bool:
    """Whether a value, of keys of random numbers say, cannot be padded."""
    return bool(jnp.issubdtype(v.aval.dtype, jax.dtypes.extended))


def size_of(v: Any, d: int) -> int:
    """The size of a dim of a variable, 1 of a scalar."""
    return int(v.aval.shape[d]) if v.aval.shape else 1


def shape_before(v: Any, cuts: Cuts) -> tuple[int, ...]:
    """The shape of a variable before slices."""
    return tuple(cuts[d].size if d in cuts else n for d, n in enumerate(v.aval.shape))
