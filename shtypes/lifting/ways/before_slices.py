"""Computes before slices, at sizes that the devices divide: of ``f(x[:, :-1]).sum()`` all of ``f(x)``.

What is computed of each position of a dim alone can be computed before most of the dim is sliced: reductions and pads
read the slice of the result. Positions outside of the slice add nothing to results or gradients: where they are summed,
or their derivatives could be, they are zero.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, jaxpr_of
from shtypes._compat.plain_programs import bind_in_program
from shtypes._compat.program_keys import key_of_equation
from shtypes.evaluation.undo_ravel import with_used
from shtypes.lifting.ways.cuts import OF_ANY_SIZE, Cut, Cuts, Sizes, begins, slices_most
from shtypes.lifting.ways.moving import at_sizes
from shtypes.lifting.ways.per_element import RULED, with_rule
from shtypes.lifting.ways.programs import equations_of, opened
from shtypes.lifting.ways.slices import REDUCTIONS, Plan, Plans, is_float, shape_before, size_of
from shtypes.lifting.ways.windows import fill_of


def before_slices(jaxpr: Any, sizes: Sizes = OF_ANY_SIZE) -> Any:
    """Computes a program's values before slices where that ends in reductions, or in pads to the size before.

    Args:
        jaxpr: The program.
        sizes: The sizes of the dims whose slices may come later.
    """
    if not slices_most(jaxpr, sizes):
        return jaxpr
    flat = opened(
        jaxpr,
        lambda eqn, is_after: set_at(eqn) is None and (is_after or slices_most(jaxpr_of(eqn.params["jaxpr"]), sizes)),
        lambda eqn: begins(eqn, sizes),
    )
    sized: set[Any] = set()
    while (plans := Plans(flat, sizes, sized)).demanded:
        try:
            return _Writer(plans).program()
        except _SizedError as error:
            sized.update(error.args)
    return jaxpr


class _SizedError(Exception):
    """A primitive, of a package say, has a parameter for the size of a dim that is not known here: its key."""


class _Writer:
    """Writes a program that computes what is demanded before slices."""

    def __init__(self, plans: Plans) -> None:
        self.plans = plans
        self.eqns: list[Any] = []
        self._before: dict[Any, Any] = {}  # by variable, its value before slices
        self._made: dict[Any, Any] = {}
        self._fills: set[Any] = set()  # values with their slices, and what is outside
        self._ranked: dict[Any, Any] = {}  # by variable with slices, the operand of its maximum or minimum

    def program(self) -> Any:
        """The program."""
        jaxpr = self.plans.jaxpr
        for number, eqn in enumerate(jaxpr.eqns):
            if number in self.plans.demanded:
                self._add(eqn, self.plans.plans[number])
            else:
                self.eqns.append(eqn)
        return with_used(jaxpr, self.eqns)

    def _add(self, eqn: Any, plan: Plan) -> None:
        """Adds an equation before slices, and slices of its results."""
        if plan.restores:
            self._restore(eqn, plan.operands[0])
            return
        if eqn.primitive.name == "slice" and eqn.outvars[0] in self.plans.cuts:
            operands = [self._before.get(x, x) for x in eqn.invars]
        else:
            operands = [self._at(v, cuts, eqn) for v, cuts in zip(eqn.invars, plan.operands, strict=True)]
        if plan.shares:
            operands = [self._zeroed(w, cuts, eqn) for w, cuts in zip(operands, plan.operands, strict=True)]
        name = eqn.primitive.name
        for i, dims in enumerate(plan.reduced):
            neutral = REDUCTIONS[name](operands[i].aval.dtype) if name in REDUCTIONS else 0
            fill = fill_of(eqn) if plan.params else neutral
            operands[i] = self._filled(operands[i], {d: plan.operands[i][d] for d in dims}, fill, eqn)
            if name in ("reduce_max", "reduce_min"):
                self._ranked[eqn.invars[i], *plan.operands[i].items()] = operands[i]
        if name == "eq":  # it tells which elements are the maximum
            triples = zip(eqn.invars, plan.operands, operands, strict=True)
            operands = [w if is_literal(v) else self._ranked.get((v, *c.items()), w) for v, c, w in triples]
        outs = self._bound(eqn, plan, operands)
        for v, w, cuts in zip(eqn.outvars, outs, plan.results, strict=True):
            if cuts:
                self._before[v] = self._zeroed(w, cuts, eqn) if plan.shares else w
                if plan.params and not plan.shares and self.plans.has_gradient(v):
                    (self._before[v],) = self._traced(_guarded, [w], eqn, cuts=cuts)
                self._traced(_sliced, [self._before[v]], eqn, [v], cuts=cuts)

    def _bound(self, eqn: Any, plan: Plan, operands: Sequence[Any]) -> list[Any]:
        """Binds the primitive on operands before slices."""
        shape, x = shape_before(eqn.outvars[0], plan.results[0]), operands[0].aval.shape
        if eqn.primitive.name == "slice" and shape == x:
            return list(operands)
        p = plan.params or at_sizes(eqn, x, {d: cut.size for d, cut in plan.results[0].items()})
        outs = [None if cuts else v for v, cuts in zip(eqn.outvars, plan.results, strict=True)]
        f = with_rule(eqn).fn if eqn.primitive.name == RULED else lambda *xs: bind_in_program(eqn.replace(params=p), xs)
        try:
            bound = self._traced(f, operands, eqn, outs)
        except (TypeError, ValueError) as error:
            raise _SizedError(key_of_equation(eqn)) from error
        if bound[0].aval.shape != shape:
            raise _SizedError(key_of_equation(eqn))
        return bound

    def _at(self, v: Any, cuts: Cuts, eqn: Any) -> Any:
        """A value before slices; moved where it was sliced elsewhere, and zero outside if it could have a gradient."""
        w = self._with_dims(v, {d: cut for d, cut in cuts.items() if size_of(v, d) > 1}, eqn)
        broadcast = {d: cut for d, cut in cuts.items() if size_of(v, d) == 1}
        if not broadcast or not self.plans.has_gradient(v) or not any(map(is_float, eqn.outvars)):
            return w
        sizes = enumerate(w.aval.shape or eqn.outvars[0].aval.shape)
        shape = tuple(cuts[d].size if d in cuts else n for d, n in sizes)
        y = self._once((w, *shape), lambda: self._traced(_spread, [w], eqn, shape=shape))
        return self._zeroed(y, broadcast, eqn)

    def _with_dims(self, v: Any, cuts: Cuts, eqn: Any) -> Any:
        own, w = self.plans.of(v), v
        if here := {d: cut for d, cut in cuts.items() if d in own}:
            w = self._before[v]
            if own != here:
                w = self._filled(w, own, 0, eqn, here)
            elif v in self.plans.sliced:
                w = self._guarded(w, here, eqn)
        lacking = {d: cut for d, cut in cuts.items() if d not in own}
        return self._repeated(v, w, lacking, eqn) if lacking else w

    def _repeated(self, v: Any, w: Any, cuts: Cuts, eqn: Any) -> Any:
        """A value with dims at the sizes before: one position of those that are equal, repeated; a constant padded."""
        fill = self.plans.makers.get(v) if v is w and not is_literal(v) else None
        if fill is not None and fill.primitive.name == "broadcast_in_dim":
            sizes = dict(zip(fill.params["broadcast_dimensions"], fill.invars[0].aval.shape, strict=True))
            if all(sizes.get(d, 1) == 1 for d in cuts):
                return self._once((v, *cuts.items()), lambda: self._bound(fill, Plan([{}], [cuts]), fill.invars))
        if self.plans.is_constant(v):
            return self._once((w, *cuts.items()), lambda: self._traced(_padded, [w], eqn, cuts=cuts, fill=0))
        shape = tuple(cuts[d].size if d in cuts else n for d, n in enumerate(w.aval.shape))
        y = self._once((w, *shape), lambda: self._traced(_spread, [w], eqn, shape=shape))
        return self._zeroed(y, cuts, eqn)

    def _zeroed(self, w: Any, cuts: Cuts, eqn: Any) -> Any:
        """A value that is zero outside of slices, if it could have a gradient."""
        return self._filled(w, cuts, 0, eqn) if cuts and is_float(w) else w

    def _guarded(self, w: Any, cuts: Cuts, eqn: Any) -> Any:
        """A value whose gradient is zero outside of slices."""
        if not is_float(w) or self.plans.is_constant(w):
            return w
        key = (w, *cuts.items(), "guarded")
        return self._once(key, lambda: self._traced(functools.partial(_guarded, cuts=cuts), [w], eqn))

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
        eqns, results = equations_of(functools.partial(f, **options), operands, eqn, outs)
        self.eqns += eqns
        return results


def _spread(x: Any, shape: Sequence[int]) -> Any:
    """The first position of the dims that have another size, repeated to a shape."""
    one = lax.slice(x, [0] * x.ndim, [n if n == m else 1 for n, m in zip(x.shape, shape, strict=False)])
    return jnp.broadcast_to(one, shape)


def _sliced(x: Any, cuts: Cuts) -> Any:
    starts = [cuts[d].start if d in cuts else 0 for d in range(x.ndim)]
    return lax.slice(x, starts, [cuts[d].stop if d in cuts else n for d, n in enumerate(x.shape)])


def _guarded(x: Any, cuts: Cuts) -> Any:
    """A value whose tangents are zero outside of slices."""
    f = jax.custom_jvp(lambda x: x)
    f.defjvp(lambda xs, tangents: (xs[0], _padded(_sliced(tangents[0], cuts), cuts, 0)))
    return f(x)


def _padded(x: Any, cuts: Cuts, fill: Any) -> Any:
    pads = [(cuts[d].start, cuts[d].size - cuts[d].stop, 0) if d in cuts else (0, 0, 0) for d in range(x.ndim)]
    return lax.pad(x, jnp.asarray(fill, x.dtype), pads)


def _moved(x: Any, fill: Any, d: int, cut: Cut, to: Cut) -> Any:
    """A value whose slice of a dim is moved, with ``fill`` around it."""
    return _padded(_sliced(x, {d: cut}), {d: to}, fill)
