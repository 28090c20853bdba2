"""Groups equations that are evaluated on shards together into calls.

``x[1:] - x[:-1]`` and ``jnp.pad(x, (1, 0))[:-1]`` are several equations with sizes in between that the devices do not
divide. As one call they are evaluated on shards (`moves`).
"""

from __future__ import annotations

import functools
import graphlib
import heapq
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import is_literal, jaxpr_of, variable, variables, with_equations
from shtypes._compat.plain_programs import alone, trace_plain
from shtypes.evaluation.table import REWRITES
from shtypes.evaluation.undo_ravel import with_used
from shtypes.lifting.ways.before_slices import before_slices
from shtypes.lifting.ways.choice import name_of
from shtypes.lifting.ways.cuts import Sizes
from shtypes.lifting.ways.extremes import extremes
from shtypes.lifting.ways.moving import (
    GROUPED,
    MOVES,
    RESHAPES,
    carried_dims,
    kind_in_group,
    kind_of,
    moves_alone,
    without_empty_parts,
)
from shtypes.lifting.ways.paddings import with_paddings
from shtypes.lifting.ways.programs import opened, uses_of, without_equal
from shtypes.lifting.ways.scatters import with_sorted_places
from shtypes.lifting.ways.selection import selections
from shtypes.lifting.ways.windows import CONV, result_dims, window_dims


@functools.lru_cache(maxsize=256)
def grouped(jaxpr: Any, sharded: frozenset[int] | None = frozenset(), windowed: frozenset[int] | None = None) -> Any:
    """Groups equations that are connected by odd sizes into calls; returns the program itself if there are none.

    Sorts of which only some places are read become calls, too, as do maxima that their operand is compared with. Dims
    that may be ``sharded``, by their sizes, are sliced late, any with None. Windows along ``windowed`` ones, by
    default the same, are computed of all positions, and their results sliced.
    """
    if jaxpr in GROUPED:
        return jaxpr
    sizes = Sizes(sharded, sharded if windowed is None else windowed)
    jaxpr = before_slices(with_paddings(without_empty_parts(jaxpr)), sizes)
    jaxpr = without_equal(jaxpr, (*RESHAPES, *MOVES, "transpose"))
    jaxpr = _with_moves_of_their_own(with_sorted_places(jaxpr))
    selecting = [*selections(jaxpr), *extremes(jaxpr)]
    groups, odd = _groups(jaxpr, {i for g in selecting for i in g})
    groups = [g for g in groups if _may_be_call(jaxpr, g, odd)]
    taken = {i for g in groups for i in g}
    groups += [g for g in selecting if taken.isdisjoint(g) and len({set_at(jaxpr.eqns[i]) for i in g}) == 1]
    while groups:
        try:
            order = _order(jaxpr, groups)
        except graphlib.CycleError as error:  # two groups depend on each other
            groups = [g for g in groups if g[0] != max({h[0] for h in groups}.intersection(error.args[1]))]
            continue
        calls = {g[0]: _call(jaxpr, g) for g in groups}
        return with_equations(jaxpr, [calls.get(i, jaxpr.eqns[i]) for i in order], jaxpr.outvars)
    return jaxpr


def _order(jaxpr: Any, groups: Sequence[Sequence[int]]) -> list[int]:
    """A topological order of equations where each group is one unit, named by its first; effects keep their order."""
    first = {i: g[0] for g in groups for i in g}
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    number = uses_of(jaxpr).number
    effects: list[int] = []
    for i, eqn in enumerate(jaxpr.eqns):
        unit = first.get(i, i)
        made = (number[v] for v in variables(eqn.invars) if v in number)
        before = {first.get(j, j) for j in made}
        if eqn.effects:
            before.update(effects)
            effects = [unit]
        sorter.add(unit, *(before - {unit}))
    sorter.prepare()
    order: list[int] = []
    ready: list[int] = []
    while sorter.is_active():
        for unit in sorter.get_ready():
            heapq.heappush(ready, unit)
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
    return order


REWRITES.append(grouped)


class _Odd(NamedTuple):
    """A value of an odd size: the number of its equation, the even shapes before it, and whether it is of windows."""

    number: int
    even: frozenset[Any]
    of_windows: bool

    def alike(self, v: Any) -> list[Any]:
        """The even shapes with as many dims; none where the dims of odd sizes were squeezed."""
        return [shape for shape in self.even if len(shape) == v.aval.ndim]

    def dims(self, v: Any) -> set[int]:
        """The dims that have other sizes than in each of the even shapes."""
        differ = [{d for d, n in enumerate(v.aval.shape) if n != e[d]} for e in self.alike(v)]
        return set.intersection(*differ) if differ else set()

    def beside(self, eqn: Any) -> set[Any]:
        """The shapes of the result of what changes dims behind, or beside, at the even sizes of its operand."""
        before, after = (v.aval.shape for v in (eqn.invars[0], eqn.outvars[0]))
        dims = [d for d in self.dims(eqn.invars[0]) if before[: d + 1] == after[: d + 1]]
        if not dims:
            return set()
        return {tuple(e[d] if d in dims else n for d, n in enumerate(after)) for e in self.alike(eqn.invars[0])}


def _odd(jaxpr: Any, taken: set[int]) -> tuple[dict[Any, _Odd], list[int]]:
    """The variables of odd sizes, and for each equation another with which it is connected by such."""
    parent = list(range(len(jaxpr.eqns)))
    uses = uses_of(jaxpr)

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    odd: dict[Any, _Odd] = {}
    for i, eqn in enumerate(jaxpr.eqns):
        kind, windows = kind_in_group(eqn), window_dims(eqn)
        if kind is None or i in taken:
            continue
        inputs = [v for v in variables(eqn.invars) if v in odd]
        if windows and not all(odd[v].dims(v) and odd[v].dims(v) <= windows for v in inputs):
            continue
        if windows:
            even = _even_shapes(jaxpr, eqn, odd)
        else:
            even = {v.aval.shape for v in variables(eqn.invars) if v not in odd and v in uses.sized}
            even = even.union(*(odd[v].even for v in inputs))
        if carried_dims(eqn) is not None and not _is_carried(eqn, {v: odd[v] for v in inputs}):
            continue
        if not windows and eqn.invars and eqn.invars[0] in inputs:
            even |= odd[eqn.invars[0]].beside(eqn)
        for v in inputs:
            parent[root(i)] = root(odd[v].number)
        if (inputs and not windows) or kind or (windows and even):
            here = _Odd(i, frozenset(even), bool(windows) or any(odd[v].of_windows for v in inputs))
            odd.update((v, here) for v in eqn.outvars if v.aval.shape not in even)
    return odd, [root(i) for i in range(len(parent))]


def _is_carried(eqn: Any, odd: Mapping[Any, _Odd]) -> bool:
    """Whether a product, a transpose or a sum computes each element alone along the dims of odd sizes."""
    if eqn.primitive.name == "reduce_sum":
        repeats = all(eqn.invars[0].aval.shape[d] == 1 for d in eqn.params["axes"])  # the gradient of a broadcast
        return any(repeats or (each.of_windows and bool(each.beside(eqn))) for each in odd.values())
    return bool(odd) and all(each.dims(v).issubset(carried_dims(eqn) or ()) for v, each in odd.items())


def _even_shapes(jaxpr: Any, eqn: Any, odd: Mapping[Any, _Odd]) -> set[Any]:
    """The shapes of results of windows at the even sizes of what they read, if theirs are odd and moved; else none."""
    (y,), x = eqn.outvars, eqn.invars[0 if eqn.primitive.name == CONV else -1]
    if not any(kind_of(e) for _, e in uses_of(jaxpr).read_by(y)):
        return set()
    before = odd[x].even if x in odd else [x.aval.shape]
    sizes = [{d: shape[d] for d in result_dims(eqn)} for shape in before if len(shape) == y.aval.ndim]
    shapes = {tuple(each.get(d, n) for d, n in enumerate(y.aval.shape)) for each in sizes}
    return {s for s in shapes if any(max(n, m) % max(min(n, m), 1) for n, m in zip(s, y.aval.shape, strict=True))}


def _groups(jaxpr: Any, taken: set[int]) -> tuple[list[list[int]], dict[Any, _Odd]]:
    """The numbers of equations that are connected by values of odd sizes, and single ones that move elements.

    Equations that are ``taken`` are left out, and windows that cannot be in a group. Also returns these values.
    """
    odd, roots = _odd(jaxpr, taken)
    members: dict[int, list[int]] = {}
    for i, root in enumerate(roots):
        members.setdefault(root, []).append(i)
    groups = [g for g in members.values() if len(g) > 1 or (g[0] not in taken and kind_of(jaxpr.eqns[g[0]]))]
    closed = _closed(jaxpr, [_without_what_follows(jaxpr, g, odd) for g in groups])
    lost = {i for g in groups for i in g if kind_of(jaxpr.eqns[i]) is None}.difference(*closed)
    return _groups(jaxpr, taken | lost) if lost else (closed, odd)


def _without_what_follows(jaxpr: Any, group: Sequence[int], odd: Mapping[Any, _Odd]) -> list[int]:
    """A group up to the first product, or reshape of the moved dims with others, if no move follows.

    That is of an even program: a product decides for itself, and what is moved within blocks is merged then.
    """

    def is_of_others(i: int) -> bool:
        eqn = jaxpr.eqns[i]
        inputs = [v for v in variables(eqn.invars) if v in odd]
        merges = eqn.primitive.name == "reshape" and bool(inputs) and not odd[inputs[0]].beside(eqn)
        return merges or eqn.primitive.name == "dot_general"

    last = max((i for i in group if kind_of(jaxpr.eqns[i])), default=-1)
    end = next((i for i in group if i > last and is_of_others(i)), len(jaxpr.eqns))
    return [i for i in group if i < end]


def _with_moves_of_their_own(jaxpr: Any) -> Any:
    """Windows that read what is moved to an odd size, with moves of their own where others read that, too."""
    if not (results := {v for e in jaxpr.eqns if window_dims(e) for v in e.outvars}):
        return jaxpr
    jaxpr = opened(jaxpr, lambda eqn, _: _sums_some(eqn) and not results.isdisjoint(variables(eqn.invars)))
    (odd, _), uses, eqns = _odd(jaxpr, set()), uses_of(jaxpr), list[Any]()

    def own(v: Any, made: dict[Any, Any]) -> Any:
        """The variable, or a copy; adds the equations of the copy."""
        maker = jaxpr.eqns[odd[v].number] if not is_literal(v) and v in odd and v not in made else None
        if maker is not None and (kind_of(maker) or maker.primitive.name in RESHAPES):
            operands = [own(x, made) for x in maker.invars]
            made.update((y, variable(y.aval)) for y in maker.outvars)
            eqns.append(maker.replace(invars=operands, outvars=[made[y] for y in maker.outvars]))
        return v if is_literal(v) else made.get(v, v)

    for eqn in jaxpr.eqns:
        made: dict[Any, Any] = {}
        shared = [not is_literal(v) and len(uses.readers[v]) > 1 for v in eqn.invars]
        if window_dims(eqn) and any(shared):
            eqn = eqn.replace(invars=[own(v, made) if s else v for v, s in zip(eqn.invars, shared, strict=True)])
        eqns.append(eqn)
    return with_used(jaxpr, eqns)


def _sums_some(call: Any) -> bool:
    """Whether a call sums some of what it moves, as the gradient of a pad by edges."""
    return moves_alone(call, "reduce_sum") and not moves_alone(call)


def _closed(jaxpr: Any, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Adds to groups the equations between theirs, and joins groups that meet.

    Groups that depend on what cannot be in a group are left out.
    """
    members = {i for g in groups for i in g}
    closed: list[set[int]] = []
    for group in groups:
        inside, size = set(group), 0
        while len(inside) > size:
            size = len(inside)
            inside = uses_of(jaxpr).with_between(inside)
            inside.update(*(g for g in closed if g & inside))
        closed = [*(g for g in closed if not g & inside), inside]

    def may_be_inside(i: int) -> bool:
        return (kind_in_group if i in members else kind_of)(jaxpr.eqns[i]) is not None

    return [sorted(g) for g in closed if all(map(may_be_inside, g))]


def _may_be_call(jaxpr: Any, group: Sequence[int], odd: Mapping[Any, _Odd]) -> bool:
    """Whether a group's results have shapes of operands, even or few sizes, and its equations the same settings."""
    operands, results = _boundary(jaxpr, group)
    shapes = {v.aval.shape for v in operands if v in uses_of(jaxpr).sized}
    most = max((v.aval.size for v in operands), default=0)
    marks = {set_at(jaxpr.eqns[i]) for i in group}

    def is_even(v: Any) -> bool:
        return v.aval.shape in shapes or v not in odd or not any(v.aval.shape[d] % 2 for d in odd[v].dims(v))

    return len(marks) == 1 and bool(results) and all(is_even(v) or 2 * v.aval.size <= most for v in results)


def _boundary(jaxpr: Any, group: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The variables that a group reads from outside, and those of its own that are read outside."""
    eqns, inside, readers = jaxpr.eqns, set(group), uses_of(jaxpr).readers
    made = dict.fromkeys(v for i in group for v in eqns[i].outvars)
    read = dict.fromkeys(v for i in group for v in variables(eqns[i].invars) if v not in made)
    return list(read), [v for v in made if not readers[v] <= inside]


def _call(jaxpr: Any, group: Sequence[int]) -> Any:
    """The call of a group; its name is that of the sort, or of the last equation that moves elements."""
    operands, results = _boundary(jaxpr, group)
    template = _template()
    body = with_equations(jaxpr, [jaxpr.eqns[i] for i in group], results)
    body = body.replace(constvars=[], invars=operands)
    GROUPED.put(body, True)
    closed = template.params["jaxpr"]
    kinds = [kind_of(jaxpr.eqns[i]) for i in group]
    name = name_of(jaxpr.eqns[group[kinds.index(None) if None in kinds else len(kinds) - 1 - kinds[::-1].index(True)]])
    params: dict[str, Any] = {}
    for key, value in template.params.items():
        count = len(results) if key.startswith("out_") else len(operands)
        params[key] = value * count if isinstance(value, tuple) and len(value) == 1 else value
    params |= {"name": name, "jaxpr": body if closed is jaxpr_of(closed) else closed.replace(jaxpr=body)}
    last = jaxpr.eqns[group[-1]]
    return template.replace(invars=operands, outvars=results, params=params, source_info=last.source_info, ctx=last.ctx)


@functools.cache
def _template() -> Any:
    """An equation that calls a jitted function of one argument, without a mesh."""
    jitted = jax.jit(jnp.sin)
    with alone():
        closed, *_ = trace_plain(lambda x: [jitted(x)], [jax.core.ShapedArray((1,), np.dtype("float32"))])
    (eqn,) = jaxpr_of(closed).eqns
    return eqn
