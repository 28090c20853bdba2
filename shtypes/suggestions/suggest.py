"""`suggest`, which searches for the types of a whole model, and `apply`, which runs the model in them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jax

from shtypes.analysis.check import Signature
from shtypes.analysis.compute import seconds_of
from shtypes.autodiff.grad import check_argument, positions
from shtypes.caches import Bounded
from shtypes.context.garbage import fewer_collections
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import public, wrap_jax_errors
from shtypes.core.array import Array
from shtypes.core.meshes import AnyMesh, to_mesh
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import CostModel, Link, as_cost_model
from shtypes.resharding.devices import Device, as_device
from shtypes.solver.apply import typed_function, with_types_at
from shtypes.solver.items import Value
from shtypes.solver.program import Function
from shtypes.solver.reshard_prices import Prices
from shtypes.solver.search import EXACT_AXES, Search
from shtypes.suggestions.fixed_types import FixedTypes, by_path, costs_of
from shtypes.suggestions.front import Suggestions, front_of, joint_front
from shtypes.suggestions.plan import Plan, Problem
from shtypes.suggestions.saved_plan import SCHEMA, decisions_of, reading
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh, current_mesh

#: The most scans of which all subsets are checkpointed.
_MOST_SCANS: Final = 3
#: The most ops of a program of which the work is measured first, since that takes a trace of its gradient.
_MOST_CALIBRATED: Final = 2000
#: The most typed plans that are remembered: more than a round of corrections types.
_MOST_TYPED: Final = 16
#: The default time limit in seconds, for each axis above those that vary together.
_TIME_LIMIT: Final = 60.0
_UNITS: Final = {"": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@public
@fewer_collections()
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
    and the reshards between equations, forward and backward. Their sum is minimized exactly on meshes of up to three
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
        arguments, at = by_path(program, {**(inputs or {}), **(fixed or {})})
        arguments |= {v: t for v, t in zip(program.inputs, types, strict=True) if t is not None}
        fixed_types = FixedTypes(arguments, at, out)
        costs = costs_of(program, on, bool(argnums), fixed_types, Prices(on, model), device, float(state))
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
        return front_of(problem, search, limit)

    programs = [Function(f, shapes, argnums, on)]
    if argnums:
        _check_loss(programs[0])
        _check_differentiable(argnums, shapes)
    if checkpoint and argnums:
        n = len(programs[0].scans)
        sizes = range(1, n + 1) if n <= _MOST_SCANS else (n,)
        subsets = [scans for k in sizes for scans in itertools.combinations(range(n), k)]
        programs += [Function(f, shapes, argnums, on, checkpoint=scans) for scans in subsets]
    return joint_front(search_program, programs)


def _check_loss(program: Function) -> None:
    """Raises if a program does not return one floating number, and so has no gradient."""
    if program.out_tree != jax.tree.structure(0) or any(
        isinstance(v, Value) and (v.shape or not dtypes.differentiable(v.dtype)) for v in program.outputs
    ):
        raise ShardingTypeError(
            f"`suggest` has no gradient of `{program.name}` to price: it does not return one floating number",
            hints=["grad=False, to price the function alone", "lambda *args: f(*args)[0], if it is the loss"],
        )


def _check_differentiable(argnums: Sequence[int], args: Sequence[Any]) -> None:
    """Raises if an argument to differentiate has an array of integers; with those that have none as a hint."""
    floats = list[int]()
    for i, arg in enumerate(args):
        with contextlib.suppress(ShardingTypeError):
            check_argument(arg, i)
            floats += [i] * bool(jax.tree.leaves(arg))
    hints = [f"grad={floats[0] if len(floats) == 1 else tuple(floats)}"] if floats else []
    for i in argnums:
        check_argument(args[i], i, [*hints, "grad=False, to price the function alone"])


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
