"""Computes before slices, at sizes that the devices divide: of ``f(x[:, :-1]).sum()`` all of ``f(x)``.

What is computed of each position of a dim alone can be computed before most of the dim is sliced: reductions and pads
read the slice of the result. Positions outside of the slice add nothing to results or gradients: where they are summed,
or their derivatives could be, they are zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shtypes._compat.eqn_frames import is_of_a_library
from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import (
    captured,
    dependent_vars,
    is_literal,
    jaxpr_of,
    key_of_equation,
    literal_value,
    variable,
    with_equations,
)
from shtypes._compat.plain_programs import alone, bind_in_program, trace_plain
from shtypes._compat.tracing import trace_typed
from shtypes.caches import Bounded
from shtypes.core.jax_type import as_jax_type
from shtypes.core.operation import noting_bound
from shtypes.core.reshard import Reshard
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.interpreter import by_row
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.evaluation.table import ROWS
from shtypes.evaluation.undo_ravel import used
from shtypes.lifting.ways.choice import CALLS, apart
from shtypes.lifting.ways.per_element import RULED, ruled_per_element, with_rule
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
_REDUCTIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "reduce_max": functools.partial(least_or_most, most=False),
    "reduce_min": functools.partial(least_or_most, most=True),
    "reduce_prod": lambda dtype: 1,
    "reduce_and": lambda dtype: -1 if jnp.issubdtype(dtype, jnp.signedinteger) else least_or_most(dtype, most=True),
    "reduce_or": lambda dtype: False,
}


class Cut(NamedTuple):
    """A slice of most of a dim of ``size``."""

    start: int
    stop: int
    size: int


#: The slices of a value, by dim.
Cuts = Mapping[int, Cut]


class _Along(NamedTuple):
    """The dim of each operand and result of which an equation computes each position alone, or which it reduces."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]

    @property
    def reduces(self) -> bool:
        """Whether it reduces the dim."""
        return None in self.results


class _Plan(NamedTuple):
    """How an equation is computed before slices."""

    operands: Sequence[Cuts]
    results: Sequence[Cuts]
    reduced: Sequence[frozenset[int]] = ()  # for each operand, the dims that are reduced
    shares: bool = False  # whether an operand with a gradient lacks the dim
    restores: bool = False  # whether it pads to the sizes before


def before_slices(jaxpr: Any, sizes: frozenset[int] | None = None) -> Any:
    """Computes a program's values before slices where that ends in reductions, or in pads to the size before.

    Args:
        jaxpr: The program.
        sizes: The sizes of the dims whose slices may come later; None for any.
    """
    if not _slices_most(jaxpr, sizes):
        return jaxpr
    program = _Program(_opened(jaxpr, sizes), sizes)
    try:
        return program.rewritten() if program.demanded else jaxpr
    except _SizedError:
        return jaxpr


class _SizedError(Exception):
    """A primitive, of a package say, has a parameter for the size of a dim that is not known here."""


@functools.lru_cache(maxsize=256)
def _slices_most(jaxpr: Any, sizes: frozenset[int] | None) -> bool:
    """Whether a program, or one that it calls, slices most of a dim."""
    return any(
        _slices_most(jaxpr_of(e.params["jaxpr"]), sizes) if e.primitive.name in CALLS else bool(_cuts(e, sizes, {}))
        for e in jaxpr.eqns
    )


def _cuts(eqn: Any, sizes: frozenset[int] | None, before: Cuts) -> dict[int, Cut]:
    """The slices of most of a dim by an equation, and ``before`` it."""
    if eqn.primitive.name != "slice":
        return {}
    p, shape = eqn.params, eqn.invars[0].aval.shape
    cuts = {}
    for d, (start, stop, step) in enumerate(
        zip(p["start_indices"], p["limit_indices"], p["strides"] or [1] * len(shape), strict=True)
    ):
        outer = before.get(d, Cut(0, shape[d], shape[d]))
        cut = Cut(outer.start + start, outer.start + stop, outer.size)
        of_most = 4 * (cut.size - (cut.stop - cut.start)) <= cut.size and step == 1
        if d in before and not of_most:
            return {}
        if d in before or (
            of_most and (start, stop) != (0, shape[d]) and cut.size % 2 == 0 and (sizes is None or cut.size in sizes)
        ):
            cuts[d] = cut
    return cuts


def _opened(jaxpr: Any, sizes: frozenset[int] | None) -> Any:
    """The program with the equations of calls that slice most of a dim, or take what was computed of such a slice.

    Its results are the same variables.
    """
    eqns: list[Any] = []
    after: set[Any] = set()  # variables that depend on slices

    def add(block: Any, env: dict[Any, Any], names: Mapping[Any, Any], call: Any) -> list[Any]:
        def read(v: Any) -> Any:
            return v if is_literal(v) else env.get(v, v)

        for eqn in block.eqns:
            operands = list(map(read, eqn.invars))
            outs = [names[v] if v in names else variable(v.aval) for v in eqn.outvars]
            is_after = any(not is_literal(v) and v in after for v in operands)
            if _may_be_opened(eqn) and (is_after or _slices_most(jaxpr_of(eqn.params["jaxpr"]), sizes)):
                body = jaxpr_of(eqn.params["jaxpr"])
                inner = {v: out for v, out in zip(body.outvars, outs, strict=True) if not is_literal(v)}
                from_call = eqn if call is None and is_of_a_library(eqn.params["jaxpr"]) else call
                outs = add(body, dict(zip(body.invars, operands, strict=True)), inner, from_call)
            else:
                source = (eqn if call is None else call).source_info
                eqns.append(eqn.replace(invars=operands, outvars=outs, source_info=source))
                if is_after or _cuts(eqn, sizes, {}):
                    after.update(outs)
            env.update(zip(eqn.outvars, outs, strict=True))
        return list(map(read, block.outvars))

    outvars = add(jaxpr, {}, {v: v for eqn in jaxpr.eqns for v in eqn.outvars}, None)
    return with_equations(jaxpr, eqns, outvars) if outvars == list(jaxpr.outvars) else jaxpr


def _may_be_opened(eqn: Any) -> bool:
    if eqn.primitive.name not in CALLS or set_at(eqn) is not None:
        return False
    return not jaxpr_of(eqn.params["jaxpr"]).constvars and not captured(eqn.params["jaxpr"])


# along which dims an equation computes each position alone

_followed: Final[Bounded[tuple[_Along | None]]] = Bounded()


def _along(eqn: Any, i: int, dim: int) -> _Along | None:
    """The dims along which an equation does with each position of an operand's dim the same; None if it does not."""
    shapes, name = [tuple(v.aval.shape) for v in eqn.invars], eqn.primitive.name
    if acts_per_element(name) or ruled_per_element(eqn):
        return _Along(tuple([None if is_literal(v) else dim for v in eqn.invars]), (dim,) * len(eqn.outvars))
    if name in _REDUCTIONS and dim in eqn.params["axes"]:
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
        casts = {id(x): y for op, (x, *_), (y, *_) in bound if isinstance(op, Reshard) and op.inserted}
        of_operands = [_dim_of(casts.get(id(x), x)) for x in map(values.get, range(len(eqn.invars)))]
        of_results = tuple(map(_dim_of, outs))
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


def _dim_of(x: Any) -> int | None:
    dim: int | None = x.type.dim_of(_AXIS) if is_typed(x) else None
    return dim


# programs


class _Move(NamedTuple):
    """A move of a variable's dim from one start of its slice to another."""

    x: Any
    cut: Cut
    nbytes: int
    to: int = 0

    def sent(self, to: int) -> int:
        """About how many bytes cross each border if the slice moves to a start."""
        return abs(self.cut.start - to) * self.nbytes


def _between(moves: Collection[_Move]) -> int:
    """The start to which values move that have others, for the fewest bytes; in the middle if there are several."""
    starts, (cut, *_) = [move.cut.start for move in moves], [move.cut for move in moves]
    room = cut.size - (cut.stop - cut.start)
    return min(
        range(min(starts), max(starts) + 1),
        key=lambda to: (sum(move.sent(to) for move in moves), abs(2 * to - room), to),
    )


class _Places:
    """Where equations compute: from which start of the dims before slices on.

    What all of them compute of slices could start at one place, to which the slices are moved; or each equation at the
    place for which the fewest bytes of its operands move.
    """

    def __init__(self) -> None:
        self._chosen: dict[Any, int] = {}  # by equation and dim, the start that all equations of its kind have
        self._group: dict[Any, Any] = {}  # for equations with dims, another that is connected with it
        self._of: dict[Any, Any] = {}  # by variable with dim, the equation that computes it
        self._moves: dict[Any, list[_Move]] = {}  # by equation

    def _root(self, place: Any) -> Any:
        while (up := self._group.setdefault(place, place)) != place:
            place = up
        return place

    def common(self, place: Any, cuts: Sequence[tuple[Any, Cut]], results: Sequence[Any]) -> Cut:
        """The slice of the operands of an equation, each given by variable and dim."""
        moves = [_Move(x, cut, _row_bytes(*x)) for x, cut in cuts]
        start, cut = self._chosen.get(self._root(place), _between(moves)), moves[0].cut
        self._moves[place] = [move._replace(to=start) for move in moves]
        for x, _ in cuts:
            if x in self._of:
                self._group[self._root(self._of[x])] = self._root(place)
        self._of.update(dict.fromkeys(results, place))
        return Cut(start, start + cut.stop - cut.start, cut.size)

    def padded(self, x: Any, cut: Cut, to: Cut) -> None:
        """Notes that the slice of a variable's dim is padded to another start."""
        if x in self._of:
            self._moves[self._of[x]].append(_Move(("pad", x, to), to, _row_bytes(*x), cut.start))

    def improved(self) -> bool:
        """Chooses one start for all connected equations where that moves fewer bytes."""
        groups: dict[Any, set[_Move]] = {}
        for place, moves in self._moves.items():
            groups.setdefault(self._root(place), set()).update(moves)
        for root, each in groups.items():
            leaves = {move._replace(to=0) for move in each if move.x not in self._of}
            if leaves and sum(x.sent(_between(leaves)) for x in leaves) <= sum(x.sent(x.to) for x in each):
                self._chosen[root] = _between(leaves)
        return bool(self._chosen)


def _row_bytes(v: Any, d: int) -> int:
    """The bytes of one position of a dim."""
    return int(v.aval.size * v.aval.dtype.itemsize // v.aval.shape[d])


class _Program:
    """A program, and which of its values can be computed before slices."""

    def __init__(self, jaxpr: Any, sizes: frozenset[int] | None) -> None:
        self.jaxpr, self.sizes = jaxpr, sizes
        self.cuts: dict[Any, Cuts] = {}  # by variable
        self._repeated: dict[Any, set[int]] = {}  # by variable, the dims whose positions have one value
        self.sliced: dict[Any, Any] = {}  # what is nothing but slices, and the variable that is sliced
        self.makers: dict[Any, Any] = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._dependent = dependent_vars(jaxpr, range(len(jaxpr.invars)))
        self.plans: dict[int, _Plan] = {}  # by the number of the equation
        self._places = _Places()
        self._follow()
        if self._places.improved():
            self._follow()
        self.demanded = self._demanded()

    def _follow(self) -> None:
        for found in (self.cuts, self._repeated, self.sliced, self.plans):
            found.clear()
        for number, eqn in enumerate(self.jaxpr.eqns):
            plan = self._slice(eqn) or self._pad(eqn) or self._plan(number, eqn)
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
        return self.is_constant(v) or _size(v, d) == 1 or d in self._repeated.get(v, ())

    def _repeats(self, eqn: Any) -> set[int]:
        """The dims of an equation's results whose positions have one value, by what its operands have."""
        if eqn.primitive.name == "broadcast_in_dim":
            dims = tuple(eqn.params["broadcast_dimensions"])
            return {
                d for d in range(eqn.outvars[0].aval.ndim) if d not in dims or self.fills(eqn.invars[0], dims.index(d))
            }
        if not acts_per_element(eqn.primitive.name):
            return set()
        return {d for d in range(eqn.outvars[0].aval.ndim) if all(self.fills(x, d) for x in eqn.invars)}

    def _slice(self, eqn: Any) -> _Plan | None:
        if eqn.primitive.name != "slice":
            return None
        (x,) = eqn.invars
        cuts = _cuts(eqn, self.sizes, self.of(x))
        if cuts and (not self.of(x) or x in self.sliced):
            y = eqn.outvars[0]
            self.sliced[y] = self.sliced.get(x, x) if _shape_before(x, self.of(x)) == _shape_before(y, cuts) else y
        return _Plan((self.of(x),), (cuts,)) if cuts else None

    def _pad(self, eqn: Any) -> _Plan | None:
        """The plan of a pad of what was computed of slices to the sizes before."""
        x, cuts = eqn.invars[0] if eqn.invars else None, self.of(eqn.invars[0]) if eqn.invars else {}
        if eqn.primitive.name != "pad" or not cuts or x in self.sliced:
            return None
        pads = {d: (int(low), int(high), int(gap)) for d, (low, high, gap) in enumerate(eqn.params["padding_config"])}
        others = [pad for d, pad in pads.items() if d not in cuts]
        restores = all(
            min(pads[d]) >= 0 == pads[d][2] and eqn.outvars[0].aval.shape[d] == c.size for d, c in cuts.items()
        )
        if not restores or any(map(any, others)):
            return None
        for d, cut in cuts.items():
            low, high, _ = pads[d]
            self._places.padded((x, d), cut, Cut(low, cut.size - high, cut.size))
        return _Plan((cuts, {}), ({},), restores=True)

    def _plan(self, number: int, eqn: Any) -> _Plan | None:
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
        may = eqn.primitive.name in _SHARING or not shares
        return _Plan(operands, results, list(map(frozenset, reduced)), shares) if may else None

    def has_gradient(self, v: Any) -> bool:
        """Whether a value could have a gradient."""
        return not self.is_constant(v) and _is_float(v)

    def _common(self, eqn: Any, along: _Along, place: Any) -> Cut | None:
        """The slice of all operands along a dim for which the fewest bytes move; None if some cannot have one."""
        cuts: list[tuple[Any, Cut]] = []
        sizes = set()
        for v, d in zip(eqn.invars, along.operands, strict=True):
            if d is None:
                continue
            if _size(v, d) > 1:
                sizes.add(_size(v, d))
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
        needed: set[Any] = set()
        numbers = set()
        for number in reversed(range(len(self.jaxpr.eqns))):
            eqn, plan = self.jaxpr.eqns[number], self.plans.get(number)
            if plan is None:
                continue
            if plan.restores or any(plan.reduced) or not needed.isdisjoint(eqn.outvars):
                numbers.add(number)
                needed.update(v for v in eqn.invars if self.of(v))
        return numbers

    def rewritten(self) -> Any:
        """The program that computes what is demanded before slices."""
        builder = _Builder(self)
        for number, eqn in enumerate(self.jaxpr.eqns):
            if number in self.demanded:
                builder.add(eqn, self.plans[number])
            else:
                builder.eqns.append(eqn)
        return with_equations(self.jaxpr, used(builder.eqns, self.jaxpr.outvars), self.jaxpr.outvars)


class _Builder:
    """Writes equations before slices."""

    def __init__(self, program: _Program) -> None:
        self.program = program
        self.eqns: list[Any] = []
        self._before: dict[Any, Any] = {}  # by variable, its value before slices
        self._made: dict[Any, Any] = {}
        self._fills: set[Any] = set()  # values with their slices, and what is outside

    def add(self, eqn: Any, plan: _Plan) -> None:
        """Adds an equation before slices, and slices of its results."""
        if plan.restores:
            self._restore(eqn, plan.operands[0])
            return
        if eqn.primitive.name == "slice" and eqn.outvars[0] in self.program.cuts:
            operands = [self._before.get(x, x) for x in eqn.invars]
        else:
            operands = [self._at(v, cuts, eqn) for v, cuts in zip(eqn.invars, plan.operands, strict=True)]
        if plan.shares:
            operands = [self._zeroed(w, cuts, eqn) for w, cuts in zip(operands, plan.operands, strict=True)]
        for i, dims in enumerate(plan.reduced):
            fill = _REDUCTIONS[name](operands[i].aval.dtype) if (name := eqn.primitive.name) in _REDUCTIONS else 0
            operands[i] = self._filled(operands[i], {d: plan.operands[i][d] for d in dims}, fill, eqn)
        outs = self._bound(eqn, plan, operands)
        for v, w, cuts in zip(eqn.outvars, outs, plan.results, strict=True):
            if cuts:
                self._before[v] = self._zeroed(w, cuts, eqn) if plan.shares else w
                self._traced(_sliced, [self._before[v]], eqn, [v], cuts=cuts)

    def _bound(self, eqn: Any, plan: _Plan, operands: Sequence[Any]) -> list[Any]:
        """Binds the primitive on operands before slices."""
        p, shape, x = dict(eqn.params), _shape_before(eqn.outvars[0], plan.results[0]), operands[0].aval.shape
        for name in ("shape", "new_sizes"):
            p.update({name: shape} if name in p else {})
        if eqn.primitive.name == "slice":
            if shape == x:
                return list(operands)
            p["start_indices"] = tuple(0 if d in plan.results[0] else n for d, n in enumerate(p["start_indices"]))
            p["limit_indices"] = tuple(x[d] if d in plan.results[0] else n for d, n in enumerate(p["limit_indices"]))
        elif "slice_sizes" in p:
            sliced = zip(p["slice_sizes"], eqn.invars[0].aval.shape, x, strict=True)
            p["slice_sizes"] = tuple(after if n == before else n for n, before, after in sliced)
        outs = [None if cuts else v for v, cuts in zip(eqn.outvars, plan.results, strict=True)]
        f = with_rule(eqn).fn if eqn.primitive.name == RULED else functools.partial(_bound, eqn.replace(params=p))
        try:
            bound = self._traced(f, operands, eqn, outs)
        except (TypeError, ValueError) as error:
            raise _SizedError from error
        if bound[0].aval.shape != shape:
            raise _SizedError
        return bound

    def _at(self, v: Any, cuts: Cuts, eqn: Any) -> Any:
        """A value before slices; moved where it was sliced elsewhere, and zero outside if it could have a gradient."""
        w = self._with_dims(v, {d: cut for d, cut in cuts.items() if _size(v, d) > 1}, eqn)
        broadcast = {d: cut for d, cut in cuts.items() if _size(v, d) == 1}
        if not broadcast or not self.program.has_gradient(v):
            return w
        shape = [cuts[d].size if d in cuts else _size(w, d) for d in range(eqn.outvars[0].aval.ndim)]
        y = self._once((w, *shape), lambda: self._traced(_broadcast, [w], eqn, shape=tuple(shape)))
        return self._zeroed(y, broadcast, eqn)

    def _with_dims(self, v: Any, cuts: Cuts, eqn: Any) -> Any:
        own, program = self.program.of(v), self.program
        if not cuts:
            return v
        if own.keys() == cuts.keys():
            w = self._before[v]
            if own == cuts:
                return self._zeroed(w, cuts, eqn) if v in program.sliced else w
            return self._filled(w, own, 0, eqn, cuts)
        if program.is_constant(v):
            return self._once((v, *cuts.items()), lambda: self._traced(_padded, [v], eqn, cuts=cuts, fill=0))
        pending = self._lacking([(v, cuts)])  # no recursion: programs may be longer than Python's stack
        while pending:
            if parts := self._lacking(self._parts(*pending[-1])):
                pending += parts
            else:
                self._repeat(*pending.pop())
        return self._zeroed(self._made[v, *cuts.items()], cuts, eqn)

    def _parts(self, v: Any, cuts: Cuts) -> list[tuple[Any, Cuts]]:
        """The operands of the equation that repeats one value, and which slices of them it takes."""
        fill = self.program.makers[v]
        if fill.primitive.name != "broadcast_in_dim":
            return [(x, cuts) for x in fill.invars]
        dims = fill.params["broadcast_dimensions"]
        return [(fill.invars[0], {i: cuts[d] for i, d in enumerate(dims) if d in cuts})]

    def _lacking(self, parts: Sequence[tuple[Any, Cuts]]) -> list[tuple[Any, Cuts]]:
        """Those of values that have yet to be repeated at the sizes before slices."""
        found: list[tuple[Any, Cuts]] = []
        for v, of_v in parts:
            cuts = {d: cut for d, cut in of_v.items() if _size(v, d) > 1}
            has = not cuts or self.program.is_constant(v) or self.program.of(v).keys() == cuts.keys()
            if not has and (v, *cuts.items()) not in self._made:
                found.append((v, cuts))
        return found

    def _repeat(self, v: Any, cuts: Cuts) -> None:
        """Makes a value that is repeated at the sizes before slices."""
        fill, parts = self.program.makers[v], self._parts(v, cuts)
        operands = [x if is_literal(x) else self._at(x, of_x, fill) for x, of_x in parts]
        plan = _Plan([of_x for _, of_x in parts], [cuts])
        self._once((v, *cuts.items()), lambda: self._bound(fill, plan, operands))

    def _zeroed(self, w: Any, cuts: Cuts, eqn: Any) -> Any:
        """A value that is zero outside of slices, if it could have a gradient."""
        return self._filled(w, cuts, 0, eqn) if cuts and _is_float(w) else w

    def _filled(self, w: Any, cuts: Cuts, fill: Any, eqn: Any, to: Cuts | None = None) -> Any:
        """A value that is ``fill`` outside of slices, which are moved ``to`` others."""
        if not cuts:
            return w
        own, place = (tuple(sorted(each.items())) for each in (cuts, cuts if to is None else to))
        if own == place and (w, own, fill) in self._fills:
            return w
        y = w
        for (d, cut), (_, there) in zip(own, place, strict=True):
            moves = functools.partial(self._traced, _moved, [y], eqn, fill=fill, d=d, cut=cut, to=there)
            y = self._once((y, d, cut, there, fill), moves)
        self._fills.add((y, place, fill))
        return y

    def _restore(self, eqn: Any, cuts: Cuts) -> None:
        """Adds a pad to the sizes before slices."""
        (x, fill), pads = eqn.invars, eqn.params["padding_config"]
        y = self._before[x]
        for i, (d, cut) in enumerate(cuts.items()):
            start = int(pads[d][0])
            there = Cut(start, start + cut.stop - cut.start, cut.size)
            outs = eqn.outvars if i == len(cuts) - 1 else (None,)
            (y,) = self._traced(_moved, [y, fill], eqn, outs, d=d, cut=cut, to=there)

    def _once(self, key: Any, make: Callable[[], list[Any]]) -> Any:
        if key not in self._made:
            (self._made[key],) = make()
        return self._made[key]

    def _traced(
        self, f: Callable[..., Any], operands: Sequence[Any], eqn: Any, outs: Sequence[Any] = (None,), **options: Any
    ) -> list[Any]:
        """Adds the equations of a function at the place of an equation; returns its results."""
        avals = [jax.core.ShapedArray(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in operands]
        with alone():
            closed, *_ = trace_plain(functools.partial(f, **options), avals)
        body = jaxpr_of(closed)
        env: dict[Any, Any] = dict(zip(body.invars, operands, strict=True))
        env.update((v, out) for v, out in zip(body.outvars, outs, strict=True) if out is not None)
        for e in body.eqns:
            for v in e.outvars:
                env.setdefault(v, variable(v.aval))
            self.eqns.append(
                e.replace(
                    invars=[v if is_literal(v) else env[v] for v in e.invars],
                    outvars=[env[v] for v in e.outvars],
                    source_info=eqn.source_info,
                    ctx=eqn.ctx,
                )
            )
        return [env[v] for v in body.outvars]


def _is_float(v: Any) -> bool:
    return bool(jnp.issubdtype(v.aval.dtype, jnp.inexact))


def _has_no_numbers(v: Any) -> bool:
    """Whether a value, of keys of random numbers say, cannot be padded."""
    return bool(jnp.issubdtype(v.aval.dtype, jax.dtypes.extended))


def _size(v: Any, d: int) -> int:
    return int(v.aval.shape[d]) if v.aval.shape else 1


def _shape_before(v: Any, cuts: Cuts) -> tuple[int, ...]:
    return tuple(cuts[d].size if d in cuts else n for d, n in enumerate(v.aval.shape))


def _bound(eqn: Any, *xs: Any) -> list[Any]:
    return bind_in_program(eqn, xs)


def _broadcast(x: Any, shape: Sequence[int]) -> Any:
    dims = [d for d, n in enumerate(x.shape) if n == shape[d]]
    return lax.broadcast_in_dim(lax.squeeze(x, [d for d in range(x.ndim) if d not in dims]), shape, dims)


def _sliced(x: Any, cuts: Cuts) -> Any:
    starts = [cuts[d].start if d in cuts else 0 for d in range(x.ndim)]
    return lax.slice(x, starts, [cuts[d].stop if d in cuts else n for d, n in enumerate(x.shape)])


def _padded(x: Any, cuts: Cuts, fill: Any) -> Any:
    pads = [(cuts[d].start, cuts[d].size - cuts[d].stop, 0) if d in cuts else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, jnp.asarray(fill, x.dtype), pads)


def _moved(x: Any, fill: Any, d: int, cut: Cut, to: Cut) -> Any:
    """A value whose slice of a dim is moved, with ``fill`` around it."""
    return _padded(_sliced(x, {d: cut}), {d: to}, fill)
