"""`suggest`: the types of a whole model, found; and `apply`, the model in these types."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import json
import math
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, overload

import jax

from shtypes.analysis.svg import Mark, front
from shtypes.autodiff.grad import positions
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.meshes import AnyMesh, to_mesh
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import CostModel, Link, as_cost_model
from shtypes.resharding.devices import Device, as_device
from shtypes.solver.apply import taken, typed_function, unknown, with_types_at
from shtypes.solver.axis_states import INVARIANT, REDUCED, axis_states, typed
from shtypes.solver.graph import Graph, Node
from shtypes.solver.items import Value
from shtypes.solver.program import Function, Program
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.search import Point, Search, size
from shtypes.solver.tables import Costs
from shtypes.suggestions.plan import SCHEMA, Plan, Problem, Said, decisions_of, ms
from shtypes.types import ShType
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.tables import Report, Table, Text, notebook, page

#: Plans within so much of the quickest are equals; of these the reader gets the one with the fewest reshards.
_EQUAL: Final = 0.005
#: Of so many scans each may be checkpointed without the others.
_SCANS: Final = 3
#: How often a bound on memory is tightened by what `sh.memory` says beyond the prediction.
_TIGHTENED: Final = 6
#: How often costs are corrected by what the typed plans send.
_CORRECTED: Final = 12
#: Plans that may fit in spite of their prediction: of at most so much of the bound.
_LIKELY: Final = 1.5
_UNITS: Final = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Suggestions(Sequence[Plan], Report):
    """The plans that were found, the quickest first; each is smaller than those before it.

    Attributes:
        problem: What they are for.
        limit: The bytes that a device has; None where that was not said.
        solves: How many minima were found for them.
        settled: Whether nothing was left out because the time limit was reached.
    """

    def __init__(self, plans: Sequence[Plan], search: Search, limit: float | None) -> None:
        self.plans, self.limit = tuple(plans), limit
        self.problem, self.solves, self.settled = plans[0].problem, search.solves, search.settled
        self._overlap = search.overlap

    @overload
    def __getitem__(self, index: int) -> Plan: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Plan]: ...
    def __getitem__(self, index: int | slice) -> Plan | Sequence[Plan]:
        return self.plans[index]

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def title(self) -> str:
        """The heading of its page."""
        links = ", ".join(
            f"{a}={n} ({self.problem.model.link(a).bandwidth / 1e9:g} GB/s)" for a, n in self.problem.mesh.shape.items()
        )
        limit = "" if self.limit is None else f", {size(self.limit)}"
        return f"suggestion 1 of {len(self)} for {self.problem.name} on {links}{limit}"

    @public
    def why_not(self, fixed: Mapping[str, Any]) -> Plan:
        """The best plan in which some arguments have other types: what it would cost; `Plan.diff` compares.

        Args:
            fixed: Types by path, as for `suggest`.

        Raises:
            ShardingTypeError: no argument has such a path, or the types do not fit.
        """
        was = self.problem
        arguments, at = _by_path(was.program, fixed)
        said = was.said._replace(arguments={**was.said.arguments, **arguments}, at={**was.said.at, **at})
        graph = was.costs.graph
        costs = _costs(was.program, graph.mesh, graph.grad, said, was.costs.prices, was.device, was.state)
        problem, search = was._replace(said=said, costs=costs), Search(costs, overlap=self._overlap)
        for _ in range(_CORRECTED):
            plan = Plan(problem, _readable(search, self.limit))
            if not plan.corrects():
                break
            search.again()
        plan.bound = search.bound(self.limit)
        return plan

    def parts(self) -> list[Table | Text]:
        """The quickest plan, and what the others of the front cost."""
        first = self.plans[0]
        more = "" if self.settled else "\nunsettled: the time limit was reached, and there may be quicker plans"
        return [Text(f"{self.title}\n{first.head}{more}".replace("\n", "\n  ")), *self.tables()]

    def tables(self) -> list[Table]:
        """The decisions of the quickest plan, and the front."""
        first = self.plans[0]
        rows = [
            (ms(p.seconds), f"{100 * (p.seconds / first.seconds - 1):+.2f} %", size(p.point.cost.memory))
            for p in self.plans
        ]
        headings = ("ms", "", "predicted memory")
        edit = 'edit: sh.suggest(..., fixed={"path": "[_, _@dp]"})'
        note = f"{edit}   use: sh.apply(f, plan)   patch: shtypes suggest --patch"
        return [*first.tables(), Table("time against memory", headings, tuple(rows), frozenset(headings), note)]

    def pictures(self) -> list[str]:
        """The front of time against memory as they are predicted; the first plan is typed, too."""
        marks = [
            Mark(m, p.seconds, f"{i}: {p.seconds * 1e3:,.4g} ms, {size(m)}", i == 1)
            for i, p in enumerate(self.plans, 1)
            for m in [float(p.point.cost.memory)]
        ]
        line = None if self.limit is None else (self.limit, f"bound {size(self.limit)}")
        return [front("time against memory", marks, ("predicted memory on each device", "step"), line)]

    def to_html(self) -> str:
        """A page: the front as a picture, the quickest plan, and the decisions of the others."""
        others: list[Table | Text] = []
        for i, plan in enumerate(self.plans[1:], 2):
            what = f"{plan.predicted}, predicted memory {size(plan.point.cost.memory)}"
            others += [Text(f"suggestion {i} of {len(self)}: {what}"), *plan.tables()]
        return page(self.title, [notebook(*self.pictures(), *self.parts(), *others)])

    def to_dict(self) -> dict[str, Any]:
        """The decisions of each plan, for JSON."""
        return {"schema": SCHEMA, "plans": [plan.to_dict() for plan in self.plans]}


@public
def suggest(
    f: Callable[..., Any],
    *args: Any,
    mesh: AnyMesh | Mapping[str, int] | None = None,
    memory: float | str | None = None,
    fixed: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
    out: Any = None,
    links: CostModel | Link | str | Mapping[str, Any] = "h100-nvlink",
    compute: Device | str = "h100-sxm",
    state: float = 2.0,
    grad: bool | int | Sequence[int] = True,
    checkpoint: bool = False,
    overlap: float = 0.0,
    time_limit: float | None = None,
    seed: int = 0,
) -> Suggestions:
    """The types of a plain function's arguments and the reshards inside it by which a step takes least time.

    Each equation may do a few things along each mesh axis; what they cost is known from the types alone: the work of
    one device's part, and the reshards between them, forward and backward. The least sum is found exactly on meshes of
    up to two axes, and by pairs of axes in turn on others. Then the plan is typed, so that its `ledger` and `memory`
    are those of the program as it would run (docs: suggest).

    Args:
        f: A function of trees of arrays that `lift` can type.
        *args: Its arguments: arrays, `jax.ShapeDtypeStruct`, or texts such as ``"f32[8, 16]"``, in trees.
        mesh: The mesh; or its axes with their sizes; by default the one in context. It needs no devices.
        memory: What a device has, in bytes or as ``"80GiB"``. By default that does not count.
        fixed: Types of arguments by path, such as ``{"params/layers/*/up": "[_, _@tp]"}``; ``*`` stands for anything,
            and the name of the parameter may be left out. Also of what a line takes, and of carries of scans:
            ``{"model.py:48 <- up": "[_, _]", "model.py:30 <- carry[0]": "[_@dp, _]"}``.
        inputs: The same of arguments that arrive so, as data do.
        out: The types of the results, in their tree; None for what may be chosen. Results are never pending.
        links: What connects the devices: a cost model, a link or the name of one; links by axis, ``{"dp":
            "infiniband-ndr", "default": "h100-nvlink"}``; or the name of a .toml file of `benchmarks/calibrate.py`.
        compute: What one device is: a device, or the name of one or of such a file.
        state: Bytes of optimizer state for each byte of a differentiated argument: 2 for Adam in the dtype of the
            parameters.
        grad: Which positional arguments are differentiated, as ``argnums`` of `jax.grad`: True for the first. False for
            the forward pass alone.
        checkpoint: Whether a plan may checkpoint the bodies of scans, too: of the outermost ones that are not so yet,
            each by itself if there are up to three, else of all or of none. Plans of all kinds are in the front.
        overlap: How much of communication hides behind computing: a step takes their sum less this part of the
            shorter. 0: one after the other; 1: as long as the longer of the two.
        time_limit: Seconds after which the best plan so far is returned, as soon as there is one; it is said to be
            unsettled. Tracing the function and typing the plan come on top.
        seed: Of the search on more than two axes, which starts with two orders of them. What it finds within the time
            limit is the same each time.

    Returns:
        The plans of the front of time against memory, the quickest first. Each has ``arguments``, ``rules``,
        ``reshards``, ``ledger``, ``memory``, ``seconds`` and ``bound``, and prints.

    Raises:
        ShardingTypeError: nothing is known of an operation, no plan fits, a path is no argument's.

    Communicates: nothing.

    Examples:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> def loss(params, x):
        ...     return jnp.mean(jnp.square(jnp.tanh(x @ params["up"]) @ params["down"]))
        >>> params = {"up": "f32[256, 1024]", "down": "f32[1024, 256]"}
        >>> found = sh.suggest(loss, params, "f32[4096, 256]", mesh=sh.abstract_mesh({"dp": 8}))
        >>> found[0].rules["x"]
        '[4096@dp,256]'
    """
    check_function("suggest", f)
    if not 0 <= overlap <= 1:
        raise ShardingTypeError(f"`overlap` of `suggest` is {overlap!r}", why="it is a part", hints=["overlap=0.5"])
    if time_limit is not None and not time_limit >= 0:
        raise ShardingTypeError(f"`time_limit` of `suggest` is {time_limit!r}", hints=["time_limit=60"])
    if not state >= 0:
        raise ShardingTypeError(
            f"`state` of `suggest` is {state!r}", why="it is bytes for each byte", hints=["state=2"]
        )
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    on = current_mesh() if mesh is None else Mesh(mesh) if isinstance(mesh, Mapping) else to_mesh(mesh)
    chosen = (0,) * grad if isinstance(grad, bool) else (grad,) if isinstance(grad, int) else tuple(grad)
    argnums = tuple(positions(chosen, len(args), "suggest"))
    shapes, types = _shapes(args, on)
    model = as_cost_model(links, "`links` of `suggest` is")
    device = as_device(compute, "`compute` of `suggest` is")
    limit = None if memory is None else _bytes(memory)

    def found(program: Function) -> Suggestions:
        program.name = name_of(f) or "f"
        arguments, at = _by_path(program, {**(inputs or {}), **(fixed or {})})
        arguments |= {v: t for v, t in zip(program.inputs, types, strict=True) if t is not None}
        said = Said(arguments, at, out)
        costs = _costs(program, on, bool(argnums), said, Prices(on, model), device, float(state))
        problem = Problem(program.name, program, costs, model, device, argnums, float(state), said)
        search = Search(costs, seed=operator.index(seed), overlap=float(overlap), deadline=deadline)
        return _found(problem, search, limit)

    programs = [Function(f, shapes, argnums, on)]
    if checkpoint and argnums:
        n = len(programs[0].scans)
        kinds = [
            k for size in range(1, n + 1) if n <= _SCANS or size == n for k in itertools.combinations(range(n), size)
        ]
        programs += [Function(f, shapes, argnums, on, checkpoint=kind) for kind in kinds]
    return _front_of_all(found, programs)


def _front_of_all(found: Callable[[Function], Suggestions], programs: Sequence[Function]) -> Suggestions:
    """The front of the plans of programs with other checkpoints."""
    some, refused = list[Suggestions](), list[ShardingTypeError]()
    for program in programs:
        try:
            some.append(found(program))
        except ShardingTypeError as error:  # such as that nothing fits
            refused.append(error)
    if not some:
        raise refused[-1]
    if len(programs) == 1:
        return some[0]
    bounds = [None if refused else each[0].bound for each in some]
    plans: list[Plan] = []
    for plan in sorted((plan for each in some for plan in each), key=lambda p: p.seconds):
        plan.bound = None if None in bounds else min(filter(None, bounds))
        if not plans or plan.point.cost.memory < 0.99 * plans[-1].point.cost.memory:
            plans.append(plan)
    first = next(each for each in some if plans[0] in each)
    first.plans, first.solves = tuple(plans), sum(each.solves for each in some)
    first.settled = all(each.settled for each in some)
    return first


def _found(problem: Problem, search: Search, limit: float | None) -> Suggestions:
    """The front, whose plans type; the first fits."""
    for _ in range(_CORRECTED):
        try:
            point = _fitting(problem, search, limit)
        except ShardingTypeError:
            if search.settled:
                raise
            search.deadline, late = math.inf, search.deadline  # what fits is looked for as long as it takes
            point = _fitting(problem, search, limit)
            search.deadline = late
        search.explore(point)
        plans = _front(problem, search, point, limit)
        corrected = [plan.corrects() for plan in plans]
        if search.late or not any(corrected):
            break
        search.again()
    else:  # as they cost after the last correction
        plans = [plan.priced_again() for plan in plans]
    others = sorted((p for p in search.visited if p.cost.memory <= (limit or math.inf)), key=lambda p: p.seconds)
    fitting = (p for p in (Plan(problem, point) for point in others) if p.fits(limit))
    typed = [p for p in plans if p.fits(limit)] or [*itertools.islice(fitting, 1)]
    if typed:
        return Suggestions(typed, search, limit)
    refusal = plans[0].refusal
    raise (
        _does_not_fit(limit) if refusal is None else ShardingTypeError("no plan that was found types", why=str(refusal))
    )


def _fitting(problem: Problem, search: Search, limit: float | None) -> Point:
    """The quickest that fits by `sh.memory`."""
    bound, refused = limit, _does_not_fit(limit)
    for _ in range(_TIGHTENED):
        try:
            point = _readable(search, bound)
        except ShardingTypeError as error:
            refused = error if bound == limit else refused
            break
        plan = Plan(problem, point)
        if limit is None or plan.refusal is not None or plan.fits(limit):
            return point
        bound = min(bound or limit, float(point.cost.memory)) - (plan.memory - limit)
        if bound <= 0:
            break
    if limit is None or (found := _quickest(problem, search, limit)) is None:
        raise refused
    return found.point


def _does_not_fit(limit: float | None) -> ShardingTypeError:
    return ShardingTypeError(
        f"nothing that was found fits in {size(limit or 0)} on each device",
        why="what a step needs besides arguments and what it keeps is more than is left",
        hints=["a larger mesh", "jax.checkpoint around the layers"],
    )


def _quickest(problem: Problem, search: Search, limit: float, seconds: float = math.inf) -> Plan | None:
    """The quickest plan that fits by `sh.memory`, of the quickest few seen whose prediction is not far above it."""
    near = (p for p in search.visited if p.seconds < seconds and p.cost.memory <= _LIKELY * limit)
    plans = [Plan(problem, p) for p in sorted(near, key=lambda p: p.seconds)[:_TIGHTENED]]
    return next((p for p in plans if p.fits(limit)), None)


def _front(problem: Problem, search: Search, point: Point, limit: float | None) -> list[Plan]:
    """The plans of the front from the quickest that fits by `sh.memory`, which may be less than was predicted."""
    first = Plan(problem, point)
    if limit is not None and not search.late:
        first = _quickest(problem, search, limit, point.seconds * (1 - 1e-6)) or first
        limit = max(limit, float(first.point.cost.memory))  # as it is predicted
    first.bound = search.bound(limit)
    smaller = (p for p in search.front(limit) if p.cost.memory < 0.99 * first.point.cost.memory)
    return [first, *(Plan(problem, p, first.bound) for p in smaller if p.seconds > first.seconds)]


def _readable(search: Search, bound: float | None) -> Point:
    """The quickest, or one as quick for a reader that has fewer reshards."""
    point = search.solve() if bound is None else search.within(bound)
    simple = search.solve(point.byte, _EQUAL * point.seconds / 100, warm=point.assignment)
    fits = bound is None or simple.cost.memory <= bound
    return simple if fits and simple.seconds <= (1 + _EQUAL) * point.seconds else point


@public
def apply(
    f: Callable[..., Any], plan: Plan | Suggestions | str | Path, *, at: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """A plain function in the types of a plan: `lift` with the reshards of the plan written into it.

    Args:
        f: The function that the plan was made for.
        plan: The plan; of several the first; or the name of a file with its JSON.
        at: Other types of what lines take, by line and value: ``{"model.py:48 <- up": "[_, _@tp]"}``; of a carry of a
            scan ``"model.py:30 <- carry[0]"``. The plan's reshards have such names (``plan.reshards[0].at``).

    Returns:
        A function of typed values. Plain arrays among its arguments are placed as the plan has them.

    Raises:
        ShardingTypeError: (when called) the plan is of another program, an argument has another type, or no line takes
            a value that ``at`` names.

    Communicates: what the plan says.

    Examples:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> def loss(w, x):
        ...     return jnp.mean(jnp.square(x @ w))
        >>> found = sh.suggest(loss, "f32[16, 4]", "f32[8, 16]", mesh=sh.abstract_mesh({"dp": 2}))
        >>> typed = sh.apply(loss, found)
        >>> sh.check(typed, *found[0].arguments).results
        f32[]{I:dp}
    """
    check_function("apply", f)
    first = plan[0] if isinstance(plan, Suggestions) else plan
    saved = first.to_dict() if isinstance(first, Plan) else json.loads(Path(first).read_text(encoding="utf-8"))
    saved = saved["plans"][0] if "plans" in saved else saved

    @functools.wraps(f)
    def run(*args: Any) -> Any:
        # Traced for each call: it may close over something else by now, or be another function than the plan's.
        again = saved["checkpoint"] if saved.get("schema") == SCHEMA else ()
        mesh = Mesh(saved["mesh"])
        program = Function(f, _shapes(args, mesh)[0], mesh=mesh, checkpoint=again)
        return typed_function(program, with_types_at(decisions_of(saved, program), program, at or {}))(*args)

    return run


# the arguments


def _shapes(args: tuple[Any, ...], mesh: Mesh) -> tuple[tuple[Any, ...], list[ShType | None]]:
    """The arguments as shapes, and the types of the arrays among them that come with one."""
    types: list[ShType | None] = []

    def one(x: Any) -> Any:
        t = ShType.parse(x, mesh) if isinstance(x, str) else x.type if isinstance(x, Array) else x
        if isinstance(t, ShType):
            types.append(t if any(d.axes for d in t.dims) else None)
            return jax.ShapeDtypeStruct(t.shape, t.dtype)
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            types.append(None)
        return x

    return jax.tree.map(one, args, is_leaf=lambda x: isinstance(x, (Array, ShType))), types


def _bytes(memory: float | str) -> float:
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", memory)
        if found is None or found[2] not in _UNITS:
            raise ShardingTypeError(f"`memory` of `suggest` is {memory!r}", hints=['"80GiB"', "80e9"])
        return float(found[1]) * _UNITS[found[2]]
    if not memory > 0:
        raise ShardingTypeError(f"`memory` of `suggest` is {memory!r}, and no plan fits in that", hints=['"80GiB"'])
    return float(memory)


def _by_path(program: Program, fixed: Mapping[str, Any]) -> tuple[dict[Value, Any], dict[str, Any]]:
    """The types that are said of the arguments whose paths fit a pattern, and those of what lines take."""
    arguments, at = dict[Value, Any](), dict[str, Any]()
    for pattern, said in fixed.items():
        if " <- " in pattern:
            at[pattern] = said
            continue
        met = [v for v in program.inputs if _fits(v.name, pattern)]
        if not met:
            some = ", ".join(f"`{v.name}`" for v in program.inputs[:6])
            raise ShardingTypeError(f"no argument has the path `{pattern}`", why=f"there are {some}", hints=[])
        arguments |= dict.fromkeys(met, said)
    return arguments, at


def _costs(program: Program, mesh: Mesh, grad: bool, said: Said, prices: Prices, device: Device, state: float) -> Costs:
    """The costs of the decisions that the user leaves."""
    graph = Graph(program, mesh, grad=grad, said={v: str(t) for v, t in said.arguments.items()})
    costs = Costs(graph, prices, device, state)
    for v, t in said.arguments.items():
        _leave(costs, graph.source[v.id][0], v, t, "made")
    for place, t in said.at.items():
        _fix_at(costs, place, t)
    _fix_results(costs, said.results)
    return costs


def _fix_at(costs: Costs, at: str, said: Any) -> None:
    """Leaves what lines take, or carries, the types that are said."""
    every = taken(costs.graph.program)
    places = {t.place for t in every if t.fits(at)}
    if not places:
        raise unknown(at, every)
    for node in costs.graph.nodes:
        for i, x in enumerate(node.operands):
            if node.item is None or node.place(i) not in places:
                continue
            if node.kind != "carry":
                _leave(costs, node, x, said, "needed", i)
            elif i == 1:
                _leave(costs, node, node.results[0], said, "made")


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.partition("/")[2], pattern)


def _leave(costs: Costs, node: Node, v: Value, said: Any, which: str, at: int = 0) -> None:
    """Leaves a node the options by which a value that it makes or needs has a type."""
    mesh = costs.graph.mesh
    plain = typed(mesh, v.dtype, v.shape, [REDUCED] * len(mesh.axis_names))
    t = said if isinstance(said, ShType) else ShType.parse(said, mesh, like=plain)
    if (states := axis_states(t)) is None:
        why = "no value of a plan varies, and axes on one dim are in the mesh's order, but for some in front"
        raise ShardingTypeError(f"`{v.name}` cannot be {t} in a plan", why=why)
    allowed: list[Sequence[int] | None] = []
    before = costs.allowed.get(node.first.id) if node.kind == "op" else None  # by another of its operands
    for k, (a, options, state) in enumerate(zip(mesh.axis_names, node.first.options, states, strict=True)):
        whole = state in (REDUCED, INVARIANT) and node.kind in ("argument", "result")
        meant = (REDUCED, INVARIANT) if whole else (state,)
        fits = [(o.results if which == "made" else o.operands)[at] in meant for o in options]
        left = [i for i, fit in enumerate(fits) if fit and (before is None or i in (before[k] or ()))]
        if not left:
            raise ShardingTypeError(f"`{v.name}` cannot be {t} in a plan", why=f"it may not be so on mesh axis `{a}`")
        allowed.append(left)
    costs.allowed[node.first.id] = allowed


def _fix_results(costs: Costs, out: Any) -> None:
    """Leaves results the types that are said."""
    if out is None:
        return
    program = costs.graph.program
    said = jax.tree.leaves(out, is_leaf=lambda x: x is None or isinstance(x, (str, ShType)))
    if len(said) != len(program.outputs):
        raise ShardingTypeError(
            f"`out` of `suggest` says {len(said)} types, and `{program.name}` has {len(program.outputs)} results",
            hints=["a tree of types like the results, with None for what may be chosen"],
        )
    for i, t in enumerate(said):
        node = costs.graph.results.get(i)
        if t is not None and node is not None:
            _leave(costs, node, program.outputs[i], t, "needed")
