"""`compute`: the FLOPs and memory traffic of one device, from types alone; nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.analysis.buffers import Fusion
from shtypes.analysis.device_steps import Graph, Kind, Step, Value, bytes_of, graph_of
from shtypes.analysis.flops import product_flops, step_flops
from shtypes.analysis.memory import DeviceProgram, device_program, part_text
from shtypes.analysis.target import Target, target_in_scope
from shtypes.context.user_line import public
from shtypes.core.meshes import AnyMesh
from shtypes.programs.jit import JitFunction
from shtypes.resharding.devices import Device, as_device
from shtypes.traced.equations import SourceLine
from shtypes.types import dtypes
from shtypes.types.tables import Report, Table

#: The version of the format of `Compute.to_json`.
SCHEMA: Final = 1
#: The maximum number of kernels in a table; JSON has all.
_SHOWN: Final = 12


class Kernel(NamedTuple):
    """A kernel with the steps fused into it; equal ones of one line are merged.

    Attributes:
        what: The operation that writes the result.
        type: The type of one device's shard of the result.
        flops: Operations of one run.
        dtype: For matrix products and convolutions, the operands' dtype by its short name; else empty.
        bytes: Bytes read from and written to memory in one run.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"`` (by checkpoint, in the backward pass).
    """

    what: str
    type: str
    runs: int
    flops: int
    dtype: str
    bytes: int
    direction: str
    place: SourceLine

    def seconds(self, device: Device) -> float:
        """The time of all runs: products by the device's rate, others by its memory bandwidth."""
        seconds_per_run = (
            device.seconds(self.flops, self.dtype, self.bytes) if self.dtype else self.bytes / device.bandwidth
        )
        return self.runs * seconds_per_run


@dataclass(frozen=True)
class Compute(Report):
    """The FLOPs and memory traffic of one device.

    Attributes:
        name: The function's name.
        mesh: The mesh, as text.
        kernels: The kernels, by decreasing operations and then bytes.
        not_counted: Operations of unknown work, by name: callbacks, kernels in other languages.
        known: Whether all loops have static lengths; other bodies count once.
        device: The device by which times are predicted, or None.
    """

    name: str
    mesh: str
    kernels: tuple[Kernel, ...]
    not_counted: tuple[str, ...] = ()
    known: bool = True
    device: Device | None = None

    @property
    def flops(self) -> int:
        """All operations, of products and others."""
        return sum(k.runs * k.flops for k in self.kernels)

    @property
    def products(self) -> dict[str, int]:
        """Operations of matrix products and convolutions, by the operands' dtype."""
        names = dict.fromkeys(k.dtype for k in self.kernels if k.dtype)
        return {name: sum(k.runs * k.flops for k in self.kernels if k.dtype == name) for name in names}

    @property
    def bytes(self) -> int:
        """Bytes read from and written to the device's memory."""
        return sum(k.runs * k.bytes for k in self.kernels)

    def seconds(self, device: Device | str | None = None) -> float:
        """The time of the kernels in sequence, without collectives.

        Args:
            device: A device, its name or a file; by default that of the report.
        """
        chosen = as_device(device if device is not None else self.device, "`seconds` takes")
        return sum(k.seconds(chosen) for k in self.kernels)

    def __repr__(self) -> str:
        return f"<Compute of {self.name}: {self.flops} FLOP, {self.bytes} B of memory traffic on each device>"

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"Compute of {self.name} on {self.mesh}"

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON, as described in the docs (compute)."""
        return {
            "schema": SCHEMA,
            "function": self.name,
            "mesh": self.mesh,
            "flops": self.flops,
            "products": self.products,
            "bytes": self.bytes,
            "seconds": None if self.device is None else self.seconds(),
            "known": self.known,
            "not_counted": list(self.not_counted),
            "kernels": [{**k._asdict(), "place": k.place.to_json()} for k in self.kernels],
        }

    def tables(self) -> list[Table]:
        """The totals, and the largest kernels."""
        rows = [(f"products in {name}", str(n)) for name, n in self.products.items()]
        rows += [
            ("other operations", str(self.flops - sum(self.products.values()))),
            ("memory traffic", f"{self.bytes} B"),
        ]
        rows += [] if self.device is None else [("time", f"{1e3 * self.seconds():.3g} ms")]
        notes = [] if self.known else ["the body of a while loop counts once: how often it runs is not known"]
        notes += [f"not counted: {', '.join(self.not_counted)}"] if self.not_counted else []
        heading = f"compute of {self.name} on {self.mesh}"
        total = Table(heading, ("", "each device"), tuple(rows), frozenset({"each device"}), "\n".join(notes))
        return [total, self._kernels()]

    def _kernels(self) -> Table:
        numbers = ("runs", "FLOP", "B") if self.device is None else ("runs", "FLOP", "B", "ms")
        order = self.kernels
        if self.device is not None:
            order = tuple(sorted(self.kernels, key=lambda k: -k.seconds(self.device)))  # type: ignore[arg-type]
        rows: list[tuple[str, ...]] = []
        for k in order[:_SHOWN]:
            ms = () if self.device is None else (f"{1e3 * k.seconds(self.device):.3g}",)
            rows.append((str(k.place), k.direction, k.what, k.type, *map(str, (k.runs, k.flops, k.bytes)), *ms))
        note = f"and {len(order) - _SHOWN} more" if len(order) > _SHOWN else "" if rows else "nothing"
        headings = ("line", "direction", "made by", "each device has", *numbers)
        return Table("the most work; operations and bytes of one run", headings, tuple(rows), frozenset(numbers), note)


@public
def compute(
    f: Callable[..., Any],
    *types: Any,
    grad: bool = False,
    mesh: AnyMesh | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    device: Device | str | None = None,
    **named: Any,
) -> Compute:
    """The FLOPs and memory traffic of one device, as the function is compiled, from types alone.

    The program that would be compiled is walked on shards, as by `memory`: an operation counts once for each element of
    a device's shard, a matrix product twice for each term, and fused values move no bytes. Collectives are in the
    ledger. Work on replicated values counts on each device: if `compute` is much more than the total work divided by
    the number of devices, the types do not split it.

    Args:
        f: A function of pytrees of typed values, such as a training step.
        *types: Its arguments: types, also as strings such as ``"f32[8@dp, 16]"``, values, or pytrees of these; numbers
            are passed as they are. By default those of the annotations of ``f``.
        grad: Whether to count its backward pass too, to all differentiable arguments.
        mesh: The mesh of strings; by default the one in context.
        policy: The policy; by default the current one.
        dims: Sizes of dim names.
        device: A device by which to predict times: a `Device`, its name (docs: compute) or a file.
        **named: More arguments of ``f``.

    Returns:
        The report: it prints, and has the parts as attributes.

    Raises:
        ShardingTypeError: the program does not type, a type has a syntax error, the annotations leave a type open, or
            there is no such device.

    Communicates: nothing.

    Examples:
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return sh.silu(x @ w)
        >>> mesh = sh.abstract_mesh({"dp": 64, "tp": 64})
        >>> report = compute(layer, "bf16[8192@dp, 1024]", "bf16[1024, 4096@tp]", mesh=mesh)
        >>> report.products == {"bf16": 2 * 128 * 1024 * 64}
        True
        >>> f"{1e6 * report.seconds('h100-sxm'):.2f} microseconds"
        '0.13 microseconds'
    """
    chosen = None if device is None else as_device(device, "`compute` takes")
    with target_in_scope(f, types, named, mesh, policy, dims) as target:
        if isinstance(f, JitFunction):
            target = target._replace(function=f)
        return compute_of(target, device_program(target, grad=grad), chosen)


def compute_of(target: Target, program: DeviceProgram, device: Device | None) -> Compute:
    """The work of a call."""
    walk = _Walk()
    kernels: dict[Kernel, int] = {}
    for kernel in walk.kernels(program.graph):
        one_run = kernel._replace(runs=1)
        kernels[one_run] = kernels.get(one_run, 0) + kernel.runs
    counted = [kernel._replace(runs=n) for kernel, n in kernels.items()]
    counted.sort(key=lambda k: (-k.runs * k.flops, -k.runs * k.bytes))
    return Compute(target.name, target.mesh_text, tuple(counted), tuple(walk.not_counted), walk.known, device)


def seconds_of(program: Any, device: Device) -> float:
    """The time of the kernels of a closed jaxpr on one device: of a plain one, or of a typed one on shards."""
    inputs = [Value(bytes_of(v.aval), v.aval) for v in jaxpr_of(program).invars]
    return sum(kernel.seconds(device) for kernel in _Walk().kernels(graph_of(program, inputs)))


class _Walk:
    """Walks graphs, and records uncounted operations."""

    def __init__(self) -> None:
        self.not_counted: dict[str, None] = {}
        self.known = True

    def kernels(self, graph: Graph, runs: int = 1) -> Iterator[Kernel]:
        """The kernels of a body, and of those inside."""
        fusion = Fusion(graph, repeats=True)
        fused: dict[Step, list[Step]] = {}
        for step, into in fusion.into.items():
            for kernel in into - {step}:
                fused.setdefault(kernel, []).append(step)
        for step in graph.steps:
            if step.kind is Kind.LOOP:
                length = step.eqn.params.get("length")
                self.known &= length is not None
                for body in step.bodies:
                    yield from self.kernels(body, runs * (1 if length is None else length))
            elif step.kind is Kind.BRANCH:
                bodies = [list(self.kernels(body, runs)) for body in step.bodies]
                yield from max(bodies, key=lambda ks: (sum(k.flops * k.runs for k in ks), sum(k.bytes for k in ks)))
            elif fusion.materialized(step) and step.kind not in (Kind.VIEW, Kind.BARRIER) and not step.communicates:
                yield self._kernel(step, fused.get(step, []), fusion, runs)

    def _kernel(self, step: Step, fused: Sequence[Step], fusion: Fusion, runs: int) -> Kernel:
        flops, dtype = self._flops(step), ""
        if step.eqn is not None and product_flops(step.eqn) is not None:
            dtype = dtypes.from_any(str(step.operands[0].aval.dtype))
        flops += sum(map(self._flops, fused))
        types = [part_text(v.aval) for v in step.results]
        read = sum(_read(step, fusion).values())
        maker = step if step.eqn is not None else step.operands[-1].step or step
        moved = read + _written(step)
        return Kernel(step.name, ", ".join(types), runs, flops, dtype, moved, maker.direction, maker.place)

    def _flops(self, step: Step) -> int:
        counted = step_flops(step)
        if counted is None:
            self.not_counted[step.name] = None
        return counted or 0


def _read(kernel: Step, fusion: Fusion) -> dict[Value, int]:
    """The bytes that a kernel reads of each value in memory, in its step and those that are fused into it."""
    bytes_read: dict[Value, int] = {}
    seen, waiting = {kernel}, [kernel]
    while waiting:
        step = waiting.pop()
        part = sum(v.bytes for v in step.results) if step.name in _PARTS else None
        for i, v in enumerate(step.operands):
            if step.kind is Kind.STORE and i == 0:  # it is written in place
                continue
            if v.step is None or fusion.materialized(v.step):
                read = v.bytes if part is None or i > 0 else min(part, v.bytes)
                bytes_read[v] = max(bytes_read.get(v, 0), read)
            elif v.step not in seen:
                seen.add(v.step)
                waiting.append(v.step)
    return bytes_read


def _written(step: Step) -> int:
    if step.kind is Kind.STORE:
        return step.operands[1].bytes
    if step.name.startswith("scatter"):
        return step.operands[-1].bytes
    return sum(v.bytes for v in step.results)


#: Operations that read as much of their first operand as they return.
_PARTS: Final = frozenset({"slice", "dynamic_slice", "gather"})
