"""Groups equations that are evaluated on shards together into calls.

``x[1:] - x[:-1]`` and ``jnp.pad(x, (1, 0))[:-1]`` are several equations with sizes in between that the devices do not
divide. As one call they are evaluated on shards (`moves`).
"""

from __future__ import annotations

import functools
import graphlib
import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shtypes._compat.in_force import set_at
from shtypes._compat.jaxprs import dependent_vars, is_literal, jaxpr_of, variable, with_equations
from shtypes._compat.plain_programs import alone, trace_plain
from shtypes.caches import Bounded
from shtypes.evaluation.table import REWRITES
from shtypes.lifting.ways.before_slices import before_slices
from shtypes.lifting.ways.blocks import with_padded_blocks
from shtypes.lifting.ways.choice import name_of
from shtypes.lifting.ways.extremes import extremes
from shtypes.lifting.ways.moves import kind_of
from shtypes.lifting.ways.order import numbered
from shtypes.lifting.ways.paddings import with_paddings
from shtypes.lifting.ways.permutations import with_unique_places
from shtypes.lifting.ways.selection import in_any_order, selections
from shtypes.rules.lookups import DimensionNumbers

#: The bodies of calls that were made here, which are not grouped again.
_bodies: Final[Bounded[bool]] = Bounded()


class _Uses(NamedTuple):
    """The readers of the variables of a program."""

    jaxpr: Any
    readers: dict[Any, set[int]]  # equation numbers; the number of equations for the results
    sized: set[Any]  # variables that depend on an argument with dims


@functools.lru_cache(maxsize=256)
def grouped(jaxpr: Any, sharded: frozenset[int] | None = frozenset()) -> Any:
    """Groups equations that are connected by odd sizes into calls; returns the program itself if there are none.

    Sorts of which only some places are read, and those that take an iota along, become calls, too, as do maxima that
    their operand is compared with. Dims that may be ``sharded``, by their sizes, are sliced late; any with None.
    """
    if jaxpr in _bodies:
        return jaxpr
    jaxpr = before_slices(with_padded_blocks(with_paddings(jaxpr)), sharded)
    jaxpr = in_any_order(_with_narrow_windows(with_unique_places(jaxpr)))
    sized = dependent_vars(jaxpr, [i for i, v in enumerate(jaxpr.invars) if v.aval.shape])
    selecting = [*selections(jaxpr), *_numbered(jaxpr), *extremes(jaxpr)]
    groups = _groups(jaxpr, sized, {i for g in selecting for i in g})
    if groups or selecting:
        uses = _uses(jaxpr, sized)
        groups = [g for g in _closed(jaxpr, groups) if _may_be_call(uses, g)]
        taken = {i for g in groups for i in g}
        groups += [g for g in selecting if taken.isdisjoint(g) and len({set_at(jaxpr.eqns[i]) for i in g}) == 1]
    while groups:
        try:
            order = _order(jaxpr, groups)
        except graphlib.CycleError as error:  # two groups depend on each other
            groups = [g for g in groups if g[0] != max({h[0] for h in groups}.intersection(error.args[1]))]
            continue
        calls = {g[0]: _call(uses, g) for g in groups}
        return with_equations(jaxpr, [calls.get(i, jaxpr.eqns[i]) for i in order], jaxpr.outvars)
    return jaxpr


def _with_narrow_windows(jaxpr: Any) -> Any:
    """Broadcasts along window dims after a gather or scatter-add and not before, as in gradients of scatter-max."""
    fills: dict[Any, Any] = {}  # broadcasts by result
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        eqns += _narrow(eqn, fills)
        if eqns[-1].primitive.name == "broadcast_in_dim":
            fills[eqn.outvars[0]] = eqns[-1]
    return with_equations(jaxpr, eqns, jaxpr.outvars) if len(eqns) > len(jaxpr.eqns) else jaxpr


def _narrow(eqn: Any, fills: Mapping[Any, Any]) -> list[Any]:
    """A gather or scatter-add of one element of each uniform window, and the broadcast of its result."""
    gathers, arrays = eqn.primitive.name == "gather", eqn.invars[::2]
    if not (gathers or eqn.primitive.name == "scatter-add") or any(is_literal(v) or v not in fills for v in arrays):
        return [eqn]
    p, (y,) = eqn.params, eqn.outvars
    numbers = (DimensionNumbers.of_gather if gathers else DimensionNumbers.of_scatter)(p["dimension_numbers"])
    x, rows = arrays[0], y if gathers else arrays[1]
    windows = {rows: numbers.window, x: numbers.windowed(x.aval.ndim)}
    windows[y] = windows.get(y, windows[x])

    def is_uniform(j: int) -> bool:
        n, read = (v.aval.shape[windows[v][j]] for v in (x, rows))
        return 1 < n == read and all(_is_broadcast(fills[v], windows[v][j]) for v in arrays)

    uniform = [j for j in range(len(numbers.window)) if is_uniform(j)]
    if not uniform or x is rows:
        return [eqn]

    def one(v: Any, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(1 if d in [windows[v][j] for j in uniform] else n for d, n in enumerate(shape))

    narrow = {v: variable(v.aval.update(shape=one(v, v.aval.shape))) for v in windows}
    operands = [
        fills[v].replace(outvars=[w := narrow[v]], params=fills[v].params | {"shape": w.aval.shape}) for v in arrays
    ]
    sizes = {"slice_sizes": one(x, p["slice_sizes"])} if gathers else {}
    spread = {"shape": y.aval.shape, "broadcast_dimensions": (*range(y.aval.ndim),)}
    return [
        *operands,
        eqn.replace(invars=[narrow.get(v, v) for v in eqn.invars], outvars=[narrow[y]], params=p | sizes),
        fills[x].replace(invars=[narrow[y]], outvars=[y], params=fills[x].params | spread),
    ]


def _is_broadcast(fill: Any, dim: int) -> bool:
    """Whether all elements along a dim of the result of a broadcast are one."""
    dims = tuple(fill.params["broadcast_dimensions"])
    return dim not in dims or fill.invars[0].aval.shape[dims.index(dim)] == 1


def _uses(jaxpr: Any, sized: set[Any]) -> _Uses:
    readers: dict[Any, set[int]] = {}
    for i, read in enumerate([*(e.invars for e in jaxpr.eqns), jaxpr.outvars]):
        for v in read:
            if not is_literal(v):
                readers.setdefault(v, set()).add(i)
    return _Uses(jaxpr, readers, sized)


def _order(jaxpr: Any, groups: Sequence[Sequence[int]]) -> list[int]:
    """A topological order of equations where each group is one unit, named by its first; effects keep their order."""
    first = {i: g[0] for g in groups for i in g}
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    made: dict[Any, int] = {}
    effects: list[int] = []
    for i, eqn in enumerate(jaxpr.eqns):
        unit = first.get(i, i)
        made.update((v, unit) for v in eqn.outvars)
    for i, eqn in enumerate(jaxpr.eqns):
        unit = first.get(i, i)
        before = {made[v] for v in eqn.invars if not is_literal(v) and v in made}
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


def _numbered(jaxpr: Any) -> list[list[int]]:
    """The equation numbers of sorts that take an iota along, each with its iota."""
    pairs = [(found[0], i) for i in range(len(jaxpr.eqns)) if (found := numbered(jaxpr, i))]
    read = [v for e in jaxpr.eqns for v in e.invars if not is_literal(v)] + list(jaxpr.outvars)
    return [[j, i] for j, i in pairs if sum(v is jaxpr.eqns[j].outvars[0] for v in read) == 1]


REWRITES.append(grouped)


def _groups(jaxpr: Any, sized: set[Any], taken: set[int]) -> list[list[int]]:
    """The numbers of equations that are connected by values of odd sizes, and single ones that move elements.

    Equations that are ``taken`` are left out.
    """
    parent = list(range(len(jaxpr.eqns)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    odd: dict[Any, tuple[int, frozenset[Any]]] = {}  # by variable: its equation, and the even shapes before it
    for i, eqn in enumerate(jaxpr.eqns):
        kind = kind_of(eqn)
        if kind is None or i in taken:
            continue
        inputs = [v for v in eqn.invars if not is_literal(v) and v in odd]
        for v in inputs:
            parent[root(i)] = root(odd[v][0])
        even = {v.aval.shape for v in eqn.invars if not is_literal(v) and v not in odd and v in sized}
        even = even.union(*(odd[v][1] for v in inputs))
        if inputs or kind:
            odd.update((v, (i, frozenset(even))) for v in eqn.outvars if v.aval.shape not in even)
    members: dict[int, list[int]] = {}
    for i in range(len(parent)):
        members.setdefault(root(i), []).append(i)
    return [g for g in members.values() if len(g) > 1 or (g[0] not in taken and kind_of(jaxpr.eqns[g[0]]))]


def _closed(jaxpr: Any, groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Adds to groups the equations between theirs, and joins groups that meet.

    Groups that depend on what cannot be in a group are left out.
    """
    makers = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}
    before = [{makers[v] for v in e.invars if not is_literal(v) and v in makers} for e in jaxpr.eqns]
    closed: list[set[int]] = []
    for group in groups:
        inside, size = set(group), 0
        while len(inside) > size:
            size = len(inside)
            among = range(min(inside), max(inside) + 1)
            after, needed = set(inside), set(inside)
            for i in among:
                after.update({i} if before[i] & after else ())
            for i in reversed(among):
                needed.update(before[i] if i in needed else ())
            inside |= after & needed
            inside.update(*(g for g in closed if g & inside))
        closed = [*(g for g in closed if not g & inside), inside]
    return [sorted(g) for g in closed if not any(kind_of(jaxpr.eqns[i]) is None for i in g)]


def _may_be_call(uses: _Uses, group: Sequence[int]) -> bool:
    """Whether a group's results have shapes of operands, even or few sizes, and its equations the same settings."""
    operands, results = _boundary(uses, group)
    shapes = {v.aval.shape for v in operands if v in uses.sized}
    most = max((v.aval.size for v in operands), default=0)
    marks = {set_at(uses.jaxpr.eqns[i]) for i in group}
    return (
        len(marks) == 1
        and bool(results)
        and all(
            v.aval.shape in shapes or not any(n % 2 for n in v.aval.shape) or 2 * v.aval.size <= most for v in results
        )
    )


def _boundary(uses: _Uses, group: Sequence[int]) -> tuple[list[Any], list[Any]]:
    """The variables that a group reads from outside, and those of its own that are read outside."""
    eqns = uses.jaxpr.eqns
    inside = set(group)
    made = dict.fromkeys(v for i in group for v in eqns[i].outvars)
    read = dict.fromkeys(v for i in group for v in eqns[i].invars if not is_literal(v) and v not in made)
    return list(read), [v for v in made if not uses.readers.get(v, inside) <= inside]


def _call(uses: _Uses, group: Sequence[int]) -> Any:
    """The call of a group; its name is that of the sort, or of the last equation that moves elements."""
    jaxpr = uses.jaxpr
    operands, results = _boundary(uses, group)
    template = _template()
    body = with_equations(jaxpr, [jaxpr.eqns[i] for i in group], results)
    body = body.replace(constvars=[], invars=operands)
    _bodies.put(body, True)
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
