"""`memory`: the memory that a program needs on each device, from types alone; nothing runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.analysis.buffers import Schedule, buffers_of, live, packed, saved_by
from shtypes.analysis.device_steps import Graph, Kind, Step, Value, bytes_of, graph_of
from shtypes.analysis.target import Target, target_in_scope
from shtypes.context.user_line import public
from shtypes.core.meshes import AnyMesh
from shtypes.errors import ShardingTypeError
from shtypes.programs.jit import JitFunction, jit
from shtypes.programs.stages import Traced
from shtypes.traced.equations import SourceLine
from shtypes.traced.merging import merge_reshards
from shtypes.traced.program import is_array, split, with_gradient
from shtypes.types import dtypes
from shtypes.types.tables import Report, Table

#: The version of the format of `Memory.to_json`.
SCHEMA: Final = 1
#: The maximum number of values in a table; JSON has all.
_SHOWN: Final = 12


class LiveValues(NamedTuple):
    """Values in memory: one, or equal ones of one line.

    Attributes:
        what: The operation that makes them.
        type: The type of one device's shard; for values that a loop saves, of all steps.
        bytes: Total bytes on each device.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"`` (by checkpoint, in the backward pass).
    """

    what: str
    type: str
    values: int
    bytes: int
    direction: str
    place: SourceLine


@dataclass(frozen=True)
class Memory(Report):
    """The memory that a program needs on each device, in bytes.

    Attributes:
        name: The function's name.
        mesh: The mesh, as text.
        arguments: Each argument.
        results: The results, and the gradients if ``grad``.
        gradients: The gradients among the results.
        donated: The results in the memory of donated arguments.
        temporaries: All other buffers.
        saved: The residuals of the backward pass besides arguments, largest first.
        live: The live values at the peak besides arguments, largest first.
    """

    name: str
    mesh: str
    arguments: Mapping[str, int]
    results: int
    gradients: int
    donated: int
    temporaries: int
    saved: tuple[LiveValues, ...]
    live: tuple[LiveValues, ...]

    @property
    def peak(self) -> int:
        """The estimated peak: arguments, results that are not in donated arguments, and temporaries."""
        return sum(self.arguments.values()) + self.results - self.donated + self.temporaries

    def __repr__(self) -> str:
        return f"<Memory of {self.name}: {self.peak} B/device>"

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"Memory of {self.name} on {self.mesh}"

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON, as described in the docs (memory)."""
        return {
            "schema": SCHEMA,
            "function": self.name,
            "mesh": self.mesh,
            "arguments": dict(self.arguments),
            "results": self.results,
            "gradients": self.gradients,
            "donated": self.donated,
            "temporaries": self.temporaries,
            "peak": self.peak,
            **{
                key: [{**h._asdict(), "place": h.place.to_json()} for h in values]
                for key, values in (("saved", self.saved), ("live", self.live))
            },
        }

    def tables(self) -> list[Table]:
        """The bytes of each part, the residuals of the backward pass, and the live values at the peak."""
        rows = [(f"argument {name}", n) for name, n in self.arguments.items()]
        rows += [("results", self.results - self.gradients)]
        rows += [("gradients", self.gradients)] if self.gradients else []
        rows += [("in donated arguments", -self.donated)] if self.donated else []
        rows += [("temporaries", self.temporaries), ("peak", self.peak)]
        title = f"memory of {self.name} on {self.mesh}"
        total = Table(title, ("", "B/device"), tuple((a, str(n)) for a, n in rows), frozenset({"B/device"}))
        saved = f"kept for the backward pass, besides arguments: {sum(h.bytes for h in self.saved)} B/device"
        live = f"in use at the peak, besides arguments: {sum(h.bytes for h in self.live)} B/device"
        return [total, *(_table(saved, self.saved) if self.saved else ()), *_table(live, self.live)]


def _table(title: str, values: tuple[LiveValues, ...]) -> Iterable[Table]:
    rows = tuple(
        (str(h.place), h.direction, h.what, f"{h.values} of {h.type}" if h.values > 1 else h.type, str(h.bytes))
        for h in values[:_SHOWN]
    )
    rest = values[_SHOWN:]
    note = f"and {len(rest)} more, {sum(h.bytes for h in rest)} B/device" if rest else "" if rows else "nothing"
    headings = ("line", "direction", "made by", "each device has", "B/device")
    yield Table(title, headings, rows, frozenset({"B/device"}), note)


@public
def memory(
    f: Callable[..., Any],
    *types: Any,
    grad: bool = False,
    mesh: AnyMesh | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    barriers: bool = True,
    **named: Any,
) -> Memory:
    """The memory that a function needs on each device, as it is compiled, from types alone.

    The program that would be compiled is walked on shards: fused values are never in memory, a value lives until its
    last read, and in-place updates take no more. The result is an estimate of the compiler's (docs: memory).

    Args:
        f: A function of pytrees of typed values, such as a training step. One from `jit` may donate arguments.
        *types: Its arguments: types, also as strings such as ``"f32[8@dp, 16]"``, values, or pytrees of these; numbers
            are passed as they are. By default those of the annotations of ``f``.
        grad: Whether to count its backward pass too, to all differentiable arguments.
        mesh: The mesh of strings; by default the one in context.
        policy: The policy; by default the current one.
        dims: Sizes of dim names.
        barriers: Whether what a checkpoint recomputes waits for the backward pass that needs it. On CPUs, XLA of JAX
            0.10 does not wait, so that unrolled layers are recomputed early, and stay in memory.
        **named: More arguments of ``f``.

    Returns:
        The report: it prints, and has the parts as attributes.

    Raises:
        ShardingTypeError: the program does not type, a type has a syntax error, or the annotations leave a type open.

    Communicates: nothing.

    Examples:
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return sh.silu(x @ w)
        >>> mesh = sh.abstract_mesh({"dp": 64, "tp": 64})
        >>> report = memory(layer, "f32[8192@dp, 1024]", "f32[1024, 4096@tp]", mesh=mesh)
        >>> dict(report.arguments), report.results, report.temporaries
        ({'x': 524288, 'w': 262144}, 32768, 0)
    """
    with target_in_scope(f, types, named, mesh, policy, dims) as target:
        if isinstance(f, JitFunction):
            target = target._replace(function=f)
        return memory_of(target, device_program(target, grad=grad, barriers=barriers), grad=grad)


class _Traced(NamedTuple):
    """A traced call, and how to rebuild the arguments from its leaves."""

    traced: Traced
    rebuild: Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class DeviceProgram(NamedTuple):
    """A call's program on one device."""

    call: _Traced
    jaxpr: Any  # the lowered program
    leaves: Sequence[int | None]  # the leaf of the call for each operand; None for captured values
    inputs: list[Value]
    graph: Graph


def device_program(target: Target, *, grad: bool, barriers: bool = True) -> DeviceProgram:
    """A call's program on one device, with reshards merged if `sh.jit` compiles it; ``barriers`` as in `memory`."""
    with contextlib.nullcontext() if target.merges else merge_reshards(False):
        call = _traced(target, grad=grad)
        program, leaves, donated = call.traced.on_devices()
    jaxpr = jaxpr_of(program)
    inputs = [
        Value(n, v.aval, mutable=i in donated) for v, n, i in zip(jaxpr.invars, _sizes(jaxpr), leaves, strict=True)
    ]
    return DeviceProgram(call, jaxpr, leaves, inputs, graph_of(program, inputs, barriers=barriers))


def memory_of(target: Target, program: DeviceProgram, *, grad: bool) -> Memory:
    """The memory of a call; with ``grad``, its last results are gradients."""
    call, jaxpr, leaves, inputs, graph = program
    schedule = Schedule(graph)
    buffers = buffers_of(schedule)
    results = [bytes_of(v.aval) for v in jaxpr.outvars]
    aliased = _aliased([v for v in inputs if v.mutable], [v.aval for v in jaxpr.outvars])
    others = packed(buffers) - sum(results) + aliased
    sizes: dict[int | None, int] = {}
    for i, v in zip(leaves, inputs, strict=True):
        sizes[i] = sizes.get(i, 0) + v.bytes
    return Memory(
        target.name,
        target.mesh_text,
        _by_argument(target, call, sizes),
        sum(results),
        _gradient_bytes(call.traced) if grad else 0,
        aliased,
        max(others, 0),
        _live_values(saved_by(schedule)),
        _live_values(live(buffers)),
    )


def _traced(target: Target, *, grad: bool) -> _Traced:
    """The call, traced as it is compiled: without merged reshards if `jax.jit` compiles it."""
    f = target.function
    if isinstance(f, JitFunction) and not grad:
        traced = f.trace(*target.args, **target.kwargs)
        return _Traced(traced, traced.arguments)
    arrays, rebuild = split((target.args, target.kwargs), is_array)

    def run(*values: Any) -> Any:
        args, kwargs = rebuild(values)
        return (with_gradient(f) if grad else f)(*args, **kwargs)

    run.__name__ = run.__qualname__ = target.name
    return _Traced(jit(run).trace(*arrays), rebuild)


class _Leaf(int):
    """Stands for a traced leaf of the arguments, by its position."""


def _by_argument(target: Target, call: _Traced, sizes: Mapping[int | None, int]) -> dict[str, int]:
    """The bytes of each argument, by name, and of captured values."""
    args, kwargs = call.rebuild([_Leaf(i) for i in range(sum(i is not None for i in sizes))])
    by_name = {
        name: sum(sizes[leaf] for leaf in jax.tree.leaves(tree) if isinstance(leaf, _Leaf))
        for name, tree in Target(target.function, args, kwargs).arguments.items()
    }
    by_name = {name: n for name, n in by_name.items() if n}
    return {**by_name, "(captured)": sizes[None]} if sizes.get(None) else by_name


def _sizes(jaxpr: Any) -> list[int]:
    """The bytes of each operand, or of its shard if it enters a region."""
    local: dict[Any, int] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            inner = jaxpr_of(eqn.params["jaxpr"]).invars
            local |= {v: bytes_of(w.aval) for v, w in zip(eqn.invars, inner, strict=True) if not hasattr(v, "val")}
    return [local.get(v, bytes_of(v.aval)) for v in jaxpr.invars]


def _aliased(donated: Iterable[Value], results: Iterable[Any]) -> int:
    """The bytes of the results that reuse the memory of equal donated arguments."""
    free = Counter((bytes_of(v.aval), v.aval.shape, str(v.aval.dtype)) for v in donated)
    sizes = Counter((bytes_of(t), t.shape, str(t.dtype)) for t in results)
    return sum(n * key[0] for key, n in (free & sizes).items())


def _gradient_bytes(traced: Traced) -> int:
    """The bytes of the gradients: the last results of `with_gradient`."""
    _, cotangents = traced.out_info
    return sum(bytes_of(x.type if hasattr(x, "type") else x) for x in jax.tree.leaves(cotangents))


def _live_values(values: Iterable[Value]) -> tuple[LiveValues, ...]:
    """Values for the report: equal ones merged, the largest first."""
    sizes: dict[tuple[str, str, str, SourceLine], list[int]] = {}
    for v in values:
        maker = v.maker or _COPY
        sizes.setdefault((maker.name, part_text(v.aval), maker.direction, maker.place), []).append(v.bytes)
    rows = (LiveValues(what, t, len(n), sum(n), direction, place) for (what, t, direction, place), n in sizes.items())
    return tuple(sorted(rows, key=lambda h: -h.bytes))


#: The step of a result that is an argument, or a repeated result.
_COPY: Final = Step("copy", Kind.KERNEL, [], 0)


def part_text(t: Any) -> str:
    """The type of one device's shard of a value, without a mesh."""
    name = str(t.dtype)
    with contextlib.suppress(ShardingTypeError):  # a plain dtype without a short name
        name = dtypes.short_name(name)
    return f"{name}[{','.join(map(str, t.shape))}]"
