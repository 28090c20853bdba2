"""`suggest`, which searches for the types of a whole model, and `apply`, which runs the model in them."""

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
from typing import Any, Final, Literal, overload

import jax

from shtypes.analysis.check import Signature
from shtypes.analysis.compute import seconds_of
from shtypes.analysis.svg import Mark, front
from shtypes.autodiff.grad import positions
from shtypes.caches import Bounded
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import public, wrap_jax_errors
from shtypes.core.array import Array
from shtypes.core.meshes import AnyMesh, to_mesh
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import CostModel, Link, as_cost_model
from shtypes.resharding.devices import Device, as_device
from shtypes.solver.apply import named_uses, no_such_use, typed_function, with_types_at
from shtypes.solver.axis_states import INVARIANT, REDUCED, axis_states, typed
from shtypes.solver.graph import Graph, Node
from shtypes.solver.items import Value
from shtypes.solver.program import Function, Program
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.search import EXACT_AXES, Point, Search, size
from shtypes.solver.tables import Costs
from shtypes.suggestions.plan import SCHEMA, FixedTypes, Plan, Problem, decisions_of, ms, reading
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh, current_mesh
from shtypes.types.tables import Report, Table, Text, notebook, page

#: The relative tolerance within which the plan with the fewest reshards is preferred.
_EQUAL: Final = 0.005
#: The most scans of which all subsets are checkpointed.
_MOST_SCANS: Final = 3
#: The most times that a memory limit is tightened by the error of the predicted memory.
_MOST_TIGHTENED: Final = 6
#: The most corrections of costs by the communication of typed plans.
_MOST_CORRECTIONS: Final = 12
#: Plans may fit if their predicted memory is at most this multiple of the limit.
_LIKELY: Final = 1.5
#: The most ops of a program of which the work is measured first, since that takes a trace of its gradient.
_MOST_CALIBRATED: Final = 2000
#: The most typed plans that are remembered: more than a round of corrections types.
_MOST_TYPED: Final = 16
#: The default time limit in seconds, for each axis above those that vary together.
_TIME_LIMIT: Final = 60.0
_UNITS: Final = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class Suggestions(Sequence[Plan], Report):
    """The plans of the time-memory front, the quickest first; each needs less memory than those before it.

    Attributes:
        problem: The function, with its costs and fixed types.
        limit: The memory of a device in bytes; None for no limit.
        solves: The number of minima that the search computed.
        settled: Whether the search finished before its time limit.
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
        """The heading of the page."""
        links = ", ".join(
            f"{a}={n} ({self.problem.model.link(a).bandwidth / 1e9:g} GB/s)" for a, n in self.problem.mesh.shape.items()
        )
        limit = "" if self.limit is None else f", {size(self.limit)}"
        return f"suggestion 1 of {len(self)} for {self.problem.name} on {links}{limit}"

    @public
    def why_not(self, fixed: Mapping[str, Any]) -> Plan:
        """The best plan in which some arguments have other types, to compare by `Plan.diff`.

        Args:
            fixed: Types by path, as for `suggest`.

        Raises:
            ShardingTypeError: no argument has such a path, or the types do not fit.
        """
        old = self.problem
        arguments, at = _by_path(old.program, fixed)
        types = old.fixed._replace(arguments={**old.fixed.arguments, **arguments}, at={**old.fixed.at, **at})
        graph = old.costs.graph
        costs = _costs(old.program, graph.mesh, graph.grad, types, old.costs.prices, old.device, old.state)
        costs.fused = old.costs.fused
        problem, search = old._replace(fixed=types, costs=costs), Search(costs, overlap=self._overlap)
        for _ in range(_MOST_CORRECTIONS):
            plan = Plan(problem, _readable(search, self.limit))
            if not plan.correct_costs():
                break
            search.reset()
        plan.bound = search.bound(self.limit)
        return plan

    def parts(self) -> list[Table | Text]:
        """The quickest plan, and the costs of the others."""
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
        """A plot of the predicted time-memory front."""
        marks = [
            Mark(m, p.seconds, f"{i}: {p.seconds * 1e3:,.4g} ms, {size(m)}", i == 1)
            for i, p in enumerate(self.plans, 1)
            for m in [float(p.point.cost.memory)]
        ]
        line = None if self.limit is None else (self.limit, f"bound {size(self.limit)}")
        return [front("time against memory", marks, ("predicted memory on each device", "step"), line)]

    def to_html(self) -> str:
        """A page with a plot of the front, the quickest plan, and the decisions of the others."""
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

    Each equation has a few options along each mesh axis, with costs that follow from the types: the work of one device,
    and the reshards between equations, forward and backward. Their sum is minimized exactly on meshes of up to two
    axes, and by pairs of axes on others. Then the plan is typed, so that its `ledger` and `memory` are those of the
    program (docs: suggest).

    Args:
        f: A function of trees of arrays that `lift` can type.
        *args: Its arguments: arrays, `jax.ShapeDtypeStruct`, or strings such as ``"f32[8, 16]"``, in trees.
        mesh: The mesh; or its axes with their sizes; by default the one in context. It needs no devices.
        memory: The memory of a device, in bytes or as ``"80GiB"``. By default it is not limited.
        fixed: Types of arguments by path, such as ``{"params/layers/*/up": "[_, _@tp]"}``; ``*`` matches anything,
            and the name of the parameter may be left out. Also types of the operands of lines, and of carries of scans:
            ``{"model.py:48 <- up": "[_, _]", "model.py:30 <- carry[0]": "[_@dp, _]"}``.
        inputs: The same, for arguments that arrive in these types, such as data.
        out: The types of the results, in their tree; None for free ones. Results are never pending.
        links: The links between devices: a cost model, a link or the name of one; links by axis, ``{"dp":
            "infiniband-ndr", "default": "h100-nvlink"}``; or the name of a .toml file of `benchmarks/calibrate.py`.
        compute: The device, or the name of one or of such a file.
        state: Bytes of optimizer state for each byte of a differentiated argument: 2 for Adam in the dtype of the
            parameters.
        grad: Which positional arguments are differentiated, as ``argnums`` of `jax.grad`: True for the first. False for
            the forward pass alone.
        checkpoint: Whether a plan may checkpoint the bodies of scans: of any of the outermost scans without a
            checkpoint if there are up to three, else of all or none. The front contains plans of all kinds.
        overlap: The part of the shorter of computing and communication that overlaps with the longer. 0: one after the
            other; 1: a step takes as long as the longer of the two.
        time_limit: Seconds after which the best plan so far is returned, marked as unsettled, as soon as there is one.
            Tracing the function and typing the plan take extra time. By default 60 for each axis above two, and
            none (``math.inf``) on one or two.
        seed: Of the search on more than two axes, which starts with two orders of them. The result is deterministic
            if the search ends before the limit.

    Returns:
        The plans of the front of time against memory, the quickest first. Each has ``arguments``, ``rules``,
        ``reshards``, ``ledger``, ``memory``, ``seconds`` and ``bound``, and prints.

    Raises:
        ShardingTypeError: an operation has no known options, no plan fits, or no argument has a path.

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
    on = current_mesh() if mesh is None else Mesh(mesh) if isinstance(mesh, Mapping) else to_mesh(mesh)
    if not on.axis_names:
        raise ShardingTypeError("`mesh` of `suggest` has no axis", hints=['mesh={"dp": 8}'])
    if isinstance(links, Mapping) and (unknown := sorted(links.keys() - {*on.axis_names, "default"})):
        raise ShardingTypeError(
            f"`links` of `suggest` has {', '.join(map(repr, unknown))}",
            why=f"{on} has no such axis",
            hints=[f'links={{"{axis}": {links[unknown[0]]!r}}}' for axis in on.axis_names],
        )
    if time_limit is None:
        more = sum(n > 1 for n in on.axis_sizes) - EXACT_AXES
        time_limit = more * _TIME_LIMIT if more > 0 else math.inf
    deadline = time.monotonic() + time_limit
    chosen = (0,) * grad if isinstance(grad, bool) else (grad,) if isinstance(grad, int) else tuple(grad)
    argnums = tuple(positions(chosen, len(args), "suggest"))
    shapes, types = _shapes(args, on)
    model = as_cost_model(links, "`links` of `suggest` is")
    device = as_device(compute, "`compute` of `suggest` is")
    limit = None if memory is None else _bytes(memory)

    fused: float | None = None  # of all programs, which differ in their checkpoints

    def search_program(program: Function) -> Suggestions:
        nonlocal fused
        program.name = name_of(f) or "f"
        arguments, at = _by_path(program, {**(inputs or {}), **(fixed or {})})
        arguments |= {v: t for v, t in zip(program.inputs, types, strict=True) if t is not None}
        fixed_types = FixedTypes(arguments, at, out)
        costs = _costs(program, on, bool(argnums), fixed_types, Prices(on, model), device, float(state))
        if fused is None:
            if len(program.ops) <= _MOST_CALIBRATED:
                try:
                    with wrap_jax_errors(program.name, "has no gradient"):
                        costs.calibrate(seconds_of(program.with_gradient(), device))
                except ShardingTypeError:
                    raise
                except (ValueError, TypeError, NotImplementedError):
                    pass  # of a line of the user's: told when a plan is typed
            fused = costs.fused
        costs.fused = fused
        signatures = Bounded[Signature](_MOST_TYPED)
        problem = Problem(program.name, program, costs, model, device, argnums, float(state), fixed_types, signatures)
        search = Search(costs, seed=operator.index(seed), overlap=float(overlap), deadline=deadline)
        return _suggestions(problem, search, limit)

    programs = [Function(f, shapes, argnums, on)]
    if argnums:
        _check_loss(programs[0])
    if checkpoint and argnums:
        n = len(programs[0].scans)
        sizes = range(1, n + 1) if n <= _MOST_SCANS else (n,)
        subsets = [scans for k in sizes for scans in itertools.combinations(range(n), k)]
        programs += [Function(f, shapes, argnums, on, checkpoint=scans) for scans in subsets]
    return _joint_front(search_program, programs)


def _check_loss(program: Function) -> None:
    """Raises if a program does not return one floating number, and so has no gradient."""
    if program.out_tree != jax.tree.structure(0) or any(
        isinstance(v, Value) and (v.shape or not dtypes.differentiable(v.dtype)) for v in program.outputs
    ):
        raise ShardingTypeError(
            f"`suggest` has no gradient of `{program.name}` to price: it does not return one floating number",
            hints=["grad=False, to price the function alone", "lambda *args: f(*args)[0], if it is the loss"],
        )


def _joint_front(search: Callable[[Function], Suggestions], programs: Sequence[Function]) -> Suggestions:
    """The front of the plans of programs that differ in their checkpoints."""
    some, refused = list[Suggestions](), list[ShardingTypeError]()
    for program in programs:
        try:
            some.append(search(program))
        except ShardingTypeError as error:  # no plan fits, say
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


def _suggestions(problem: Problem, search: Search, limit: float | None) -> Suggestions:
    """The front of plans that type and fit."""
    for _ in range(_MOST_CORRECTIONS):
        try:
            point = _fitting(problem, search, limit)
        except ShardingTypeError:
            if search.settled:
                raise
            search.deadline, deadline = math.inf, search.deadline  # a plan that fits may take longer
            point = _fitting(problem, search, limit)
            search.deadline = deadline
        search.explore(point)
        plans = _front(problem, search, point, limit)
        corrected = [plan.correct_costs() for plan in plans]
        if not any(corrected) or (search.timed_out and any(plan.fits(limit) for plan in plans)):
            break
        search.reset()
    plans = [plan.repriced() if changed else plan for plan, changed in zip(plans, corrected, strict=True)]
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
    """The quickest point that fits by `sh.memory`."""
    bound, refused = limit, _does_not_fit(limit)
    for _ in range(_MOST_TIGHTENED):
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
    if limit is None:
        raise refused
    search.explore(search.solve())  # of these some may need less than predicted
    plan_that_fits = _quickest(problem, search, limit)
    if plan_that_fits is None:
        raise refused
    return plan_that_fits.point


def _does_not_fit(limit: float | None) -> ShardingTypeError:
    return ShardingTypeError(
        f"nothing that was found fits in {size(limit or 0)} on each device",
        why="what a step needs besides arguments and what it keeps is more than is left",
        hints=["a larger mesh", "jax.checkpoint around the layers"],
    )


def _quickest(problem: Problem, search: Search, limit: float, seconds: float = math.inf) -> Plan | None:
    """The first plan that fits by `sh.memory`, of the quickest few visited points that may fit and the smallest."""
    near = sorted(
        (p for p in search.visited if p.seconds < seconds and p.cost.memory <= _LIKELY * limit), key=lambda p: p.seconds
    )
    smallest = sorted(near[_MOST_TIGHTENED:], key=lambda p: p.cost.memory)[:1]
    plans = (Plan(problem, p) for p in near[:_MOST_TIGHTENED] + smallest)
    return next((p for p in plans if p.fits(limit)), None)


def _front(problem: Problem, search: Search, point: Point, limit: float | None) -> list[Plan]:
    """The plans of the front, from the quickest that fits by `sh.memory`."""
    first = Plan(problem, point)
    if limit is not None and not search.timed_out:
        first = _quickest(problem, search, limit, point.seconds * (1 - 1e-6)) or first
        limit = max(limit, float(first.point.cost.memory))  # the predicted memory may exceed it
    first.bound = search.bound(limit)
    smaller = (p for p in search.front(limit) if p.cost.memory < 0.99 * first.point.cost.memory)
    return [first, *(Plan(problem, p, first.bound) for p in smaller if p.seconds > first.seconds)]


def _readable(search: Search, bound: float | None) -> Point:
    """The quickest point, or one within the tolerance that has fewer reshards."""
    point = search.solve() if bound is None else search.within(bound)
    simple = search.simpler(point, _EQUAL * point.seconds / 100)
    fits = bound is None or simple.cost.memory <= bound
    return simple if fits and simple.seconds <= (1 + _EQUAL) * point.seconds else point


@public
def apply(
    f: Callable[..., Any], plan: Plan | Suggestions | str | Path, *, at: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Types a plain function by a plan: `lift` with the plan's reshards.

    Args:
        f: The function of the plan.
        plan: The plan; or suggestions, for the first one; or the name of a file with its JSON.
        at: Other types of operands, by line and value: ``{"model.py:48 <- up": "[_, _@tp]"}``; of a carry of a scan:
            ``"model.py:30 <- carry[0]"``. The plan's reshards have such names (``plan.reshards[0].at``).

    Returns:
        A function of typed values. It casts plain arrays among its arguments to the plan's types.

    Raises:
        ShardingTypeError: (when called) the plan is for another program, an argument has another type, or a name in
            ``at`` matches no operand.

    Communicates: the collectives of the plan.

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
    with reading(first):
        saved = first.to_dict() if isinstance(first, Plan) else json.loads(Path(first).read_text(encoding="utf-8"))
        saved = saved["plans"][0] if "plans" in saved else saved
        mesh, scans = Mesh(saved["mesh"]), tuple(saved["checkpoint"] if saved["schema"] == SCHEMA else ())

    @functools.wraps(f)
    def run(*args: Any) -> Any:
        # Traced for each call, since it may close over other values by now, or be another function than the plan's.
        program = Function(f, _shapes(args, mesh)[0], mesh=mesh, checkpoint=scans)
        with reading(first):
            decisions = decisions_of(saved, program)
        return typed_function(program, with_types_at(decisions, program, at or {}))(*args)

    return run


# the arguments


def _shapes(args: tuple[Any, ...], mesh: Mesh) -> tuple[tuple[Any, ...], list[ShType | None]]:
    """The arguments as shapes, and the types of the typed arrays among them."""
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
        match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", memory)
        if match is None or match[2] not in _UNITS:
            raise ShardingTypeError(f"`memory` of `suggest` is {memory!r}", hints=['"80GiB"', "80e9"])
        return float(match[1]) * _UNITS[match[2]]
    if not memory > 0:
        raise ShardingTypeError(f"`memory` of `suggest` is {memory!r}, and no plan fits in that", hints=['"80GiB"'])
    return float(memory)


def _by_path(program: Program, fixed: Mapping[str, Any]) -> tuple[dict[Value, Any], dict[str, Any]]:
    """Splits ``fixed`` into the types of the arguments that match a path, and those at operands of lines."""
    arguments, at = dict[Value, Any](), dict[str, Any]()
    for pattern, target in fixed.items():
        if " <- " in pattern:
            at[pattern] = target
            continue
        matching = [v for v in program.inputs if _fits(v.name, pattern)]
        if not matching:
            some = ", ".join(f"`{v.name}`" for v in program.inputs[:6])
            raise ShardingTypeError(f"no argument has the path `{pattern}`", why=f"there are {some}", hints=[])
        arguments |= dict.fromkeys(matching, target)
    return arguments, at


def _costs(
    program: Program, mesh: Mesh, grad: bool, fixed: FixedTypes, prices: Prices, device: Device, state: float
) -> Costs:
    """The costs of a program, restricted to the types that the user fixed."""
    graph = Graph(program, mesh, grad=grad, fixed={v: str(t) for v, t in fixed.arguments.items()})
    costs = Costs(graph, prices, device, state)
    for v, t in fixed.arguments.items():
        _fix(costs, graph.source[v.id][0], v, t, "results")
    for place, t in fixed.at.items():
        _fix_at(costs, place, t)
    _fix_results(costs, fixed.results)
    return costs


def _fix_at(costs: Costs, at: str, target: Any) -> None:
    """Fixes the types of the operands, or carries, that a name matches."""
    every = named_uses(costs.graph.program)
    places = {use.place for use in every if use.matches(at)}
    if not places:
        raise no_such_use(at, every)
    for node in costs.graph.nodes:
        for i, x in enumerate(node.operands):
            if node.item is None or node.place(i) not in places:
                continue
            if node.kind != "carry":
                _fix(costs, node, x, target, "operands", i)
            elif i == 1:
                _fix(costs, node, node.results[0], target, "results")


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.partition("/")[2], pattern)


def _fix(costs: Costs, node: Node, v: Value, target: Any, which: Literal["operands", "results"], at: int = 0) -> None:
    """Restricts a node to the options in which an operand or result has a type."""
    mesh = costs.graph.mesh
    plain = typed(mesh, v.dtype, v.shape, [REDUCED] * len(mesh.axis_names))
    t = target if isinstance(target, ShType) else ShType.parse(target, mesh, like=plain)
    if (states := axis_states(t)) is None:
        why = "no value of a plan varies, and axes on one dim are in the mesh's order, but for some in front"
        raise ShardingTypeError(f"`{v.name}` cannot be {t} in a plan", why=why)
    allowed: list[Sequence[int] | None] = []
    before = costs.allowed.get(node.leader.id) if node.kind == "op" else None  # from another operand
    for k, (a, options, state) in enumerate(zip(mesh.axis_names, node.leader.options, states, strict=True)):
        replicated = state in (REDUCED, INVARIANT) and node.kind in ("argument", "result")
        accepted = (REDUCED, INVARIANT) if replicated else (state,)
        fits = [getattr(o, which)[at] in accepted for o in options]
        left = [i for i, fit in enumerate(fits) if fit and (before is None or i in (before[k] or ()))]
        if not left:
            raise ShardingTypeError(f"`{v.name}` cannot be {t} in a plan", why=f"it may not be so on mesh axis `{a}`")
        allowed.append(left)
    costs.allowed[node.leader.id] = allowed


def _fix_results(costs: Costs, out: Any) -> None:
    """Fixes the types of results."""
    if out is None:
        return
    program = costs.graph.program
    types = jax.tree.leaves(out, is_leaf=lambda x: x is None or isinstance(x, (str, ShType)))
    if len(types) != len(program.outputs):
        raise ShardingTypeError(
            f"`out` of `suggest` says {len(types)} types, and `{program.name}` has {len(program.outputs)} results",
            hints=["a tree of types like the results, with None for what may be chosen"],
        )
    for i, t in enumerate(types):
        node = costs.graph.results.get(i)
        if t is not None and node is not None:
            _fix(costs, node, program.outputs[i], t, "operands")
