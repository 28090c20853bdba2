"""`compute`: the work of one device, operations and bytes through its memory, from types alone; nothing runs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from shtypes.analysis.buffers import Fusion
from shtypes.analysis.device_steps import Graph, Kind, Step, Value
from shtypes.analysis.memory import DeviceProgram, device_program, part_text
from shtypes.analysis.target import Target, mesh_of, target_in_scope
from shtypes.context.user_line import public
from shtypes.core.meshes import AnyMesh
from shtypes.programs.jit import JitFunction
from shtypes.resharding.devices import Device, as_device
from shtypes.traced.equations import SourceLine
from shtypes.traced.merging import merge_reshards
from shtypes.types import dtypes
from shtypes.types.mesh import context
from shtypes.types.tables import Report, Table

#: The version of what `Compute.to_json` writes.
SCHEMA: Final = 1
#: So many kernels are shown; JSON has all.
_SHOWN: Final = 12


class Kernel(NamedTuple):
    """What a device computes at once, with what the compiler fuses into it; several alike from one line together.

    Attributes:
        what: The operation that writes the result.
        type: The type of one device's part of the result.
        runs: How often it runs.
        flops: Operations of one run.
        dtype: Of products of matrices and convolutions, the operands' dtype by its short name; else empty.
        bytes: Bytes of one run that are read from and written to memory.
        direction: ``"forward"``, ``"backward"`` or ``"recomputed"`` (by checkpoint, in the backward pass).
        place: The user's line.
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
        """What all of its runs take: products by the device's rate, all else by the bandwidth of its memory."""
        once = device.seconds(self.flops, self.dtype, self.bytes) if self.dtype else self.bytes / device.bandwidth
        return self.runs * once


@dataclass(frozen=True)
class Compute(Report):
    """The work of one device: operations, and bytes through its memory.

    Attributes:
        name: The function's name.
        mesh: The mesh, as text.
        kernels: What is computed, the most operations first, then the most bytes.
        not_counted: Operations whose work is not known, by name: callbacks, kernels in other languages.
        known: Whether every loop's length is known; the body of another counts once.
        device: The device by which times are shown, if one was given.
    """

    name: str
    mesh: str
    kernels: tuple[Kernel, ...]
    not_counted: tuple[str, ...] = ()
    known: bool = True
    device: Device | None = None

    @property
    def flops(self) -> int:
        """Operations, of products and of all else."""
        return sum(k.runs * k.flops for k in self.kernels)

    @property
    def products(self) -> dict[str, int]:
        """Operations of products of matrices and convolutions, by the operands' dtype."""
        names = dict.fromkeys(k.dtype for k in self.kernels if k.dtype)
        return {name: sum(k.runs * k.flops for k in self.kernels if k.dtype == name) for name in names}

    @property
    def bytes(self) -> int:
        """Bytes that are read from and written to the device's memory."""
        return sum(k.runs * k.bytes for k in self.kernels)

    def seconds(self, device: Device | str | None = None) -> float:
        """What the kernels take one after the other, collectives not counted.

        Args:
            device: A device, the name of a known one or a file; by default the one that the report was made with.
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
        """The totals, and the kernels that do most."""
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
        rows = [
            (str(k.place), k.direction, k.what, k.type, *map(str, (k.runs, k.flops, k.bytes)), *self._ms(k))
            for k in order[:_SHOWN]
        ]
        note = f"and {len(order) - _SHOWN} more" if len(order) > _SHOWN else "" if rows else "nothing"
        headings = ("line", "direction", "made by", "each device has", *numbers)
        return Table("the most work; operations and bytes of one run", headings, tuple(rows), frozenset(numbers), note)

    def _ms(self, kernel: Kernel) -> tuple[str, ...]:
        return () if self.device is None else (f"{1e3 * kernel.seconds(self.device):.3g}",)


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
    """The work of one device, as the function is compiled, from types alone: no device, and no data.

    The program that would be compiled is walked on shards, as by `memory`: an operation counts for each element of the
    device's part, a product of matrices two for each term, and what is fused moves no bytes. Collectives are the
    ledger's. What each device repeats because a value is replicated is counted on each: where `compute` says much more
    than the work by the number of devices, the types do not split it.

    Args:
        f: A function of trees of typed values, such as a training step.
        *types: Its arguments: texts of types such as ``"f32[8@dp, 16]"``, types, values, or trees of these; numbers are
            as they are. Without any, those that the annotations of ``f`` say.
        grad: Whether its backward pass, to all arguments with gradients, is counted too.
        mesh: The mesh of the texts; by default the one in context.
        policy: The policy; by default the one in force.
        dims: Sizes of dim names.
        device: A device by which times are shown, too: a `Device`, the name of one (docs: compute) or a file.
        **named: More arguments of ``f``.

    Returns:
        The report: it prints, and has the parts as attributes.

    Raises:
        ShardingTypeError: the program does not type, a text cannot be read, the annotations leave a type open, or there
            is no such device.

    Communicates: nothing.

    Examples:
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return sh.silu(x @ w)
        >>> mesh = sh.abstract_mesh({"dp": 64, "tp": 64})
        >>> found = compute(layer, "bf16[8192@dp, 1024]", "bf16[1024, 4096@tp]", mesh=mesh)
        >>> found.products == {"bf16": 2 * 128 * 1024 * 64}
        True
        >>> f"{1e6 * found.seconds('h100-sxm'):.2f} microseconds"
        '0.13 microseconds'
    """
    chosen = None if device is None else as_device(device, "`compute` takes")
    with target_in_scope(f, types, named, mesh, policy, dims) as target:
        if isinstance(f, JitFunction):
            target = target._replace(function=f)
        with contextlib.nullcontext() if target.merges else merge_reshards(False):
            return compute_of(target, device_program(target, grad=grad), chosen)


def compute_of(target: Target, program: DeviceProgram, device: Device | None) -> Compute:
    """The work of a call."""
    walk = _Walk()
    kernels: dict[Kernel, int] = {}
    for kernel in walk.kernels(program.graph):
        alike = kernel._replace(runs=1)
        kernels[alike] = kernels.get(alike, 0) + kernel.runs
    counted = [kernel._replace(runs=n) for kernel, n in kernels.items()]
    counted.sort(key=lambda k: (-k.runs * k.flops, -k.runs * k.bytes))
    used = mesh_of((target.args, target.kwargs)) or context()
    mesh = "no mesh" if used is None else str(used)
    return Compute(target.name, mesh, tuple(counted), tuple(walk.not_counted), walk.known, device)


class _Walk:
    """Walks graphs, and notes what of them is not known."""

    def __init__(self) -> None:
        self.not_counted: dict[str, None] = {}
        self.known = True

    def kernels(self, graph: Graph, runs: int = 1) -> Iterator[Kernel]:
        """The kernels of a body, and of those inside."""
        fusion = Fusion(graph)
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
            elif fusion.materialized(step) and step.kind not in (Kind.VIEW, Kind.BARRIER) and not _communicates(step):
                yield self._kernel(step, fused.get(step, []), fusion, runs)

    def _kernel(self, step: Step, fused: Sequence[Step], fusion: Fusion, runs: int) -> Kernel:
        flops, dtype = self._flops(step), ""
        if _product(step.eqn) is not None:
            dtype = dtypes.from_any(str(step.operands[0].aval.dtype))
        flops += sum(map(self._flops, fused))
        types = [part_text(v.aval) for v in step.results]
        read = sum(_read(step, fusion, {}).values())
        maker = step if step.eqn is not None else step.operands[-1].step or step
        moved = read + _written(step)
        return Kernel(step.name, ", ".join(types), runs, flops, dtype, moved, maker.direction, maker.place)

    def _flops(self, step: Step) -> int:
        name, eqn = step.name, step.eqn
        counted = _product(eqn) or _COUNTED.get(name)
        if counted is not None:
            return round(counted(eqn))
        if name in _MOVES or step.kind in (Kind.VIEW, Kind.BARRIER, Kind.STORE):
            return 0
        if step.kind in (Kind.MAP, Kind.COSTLY):
            return sum(_size(v.aval) for v in step.results)
        if step.kind is Kind.FOLD or name.startswith("cum"):
            return sum(_size(v.aval) for v in step.operands)
        self.not_counted[name] = None
        return 0


def _communicates(step: Step) -> bool:
    """Whether a step is a collective, whose time is the ledger's."""
    effects = () if step.eqn is None else step.eqn.effects
    return step.kind is Kind.SEND or any(type(effect).__name__ == "NamedAxisEffect" for effect in effects)


def _read(step: Step, fusion: Fusion, found: dict[Value, int]) -> dict[Value, int]:
    """The bytes that a step reads of each value in memory, through what is fused into it."""
    part = sum(v.bytes for v in step.results) if step.name in _PARTS else None
    for i, v in enumerate(step.operands):
        if step.kind is Kind.STORE and i == 0:  # it is written in place
            continue
        if v.step is not None and not fusion.materialized(v.step):
            _read(v.step, fusion, found)
        else:
            read = v.bytes if part is None or i > 0 else min(part, v.bytes)
            found[v] = max(found.get(v, 0), read)
    return found


def _written(step: Step) -> int:
    if step.kind is Kind.STORE:
        return step.operands[1].bytes
    if step.name.startswith("scatter"):
        return step.operands[-1].bytes
    return sum(v.bytes for v in step.results)


def _size(aval: Any) -> int:
    """The number of elements."""
    return math.prod(aval.shape)


def _matrix(eqn: Any, operand: int = 0) -> tuple[int, int, int]:
    """The number of matrices of an operand, and their rows and columns."""
    *batch, rows, columns = eqn.invars[operand].aval.shape
    return math.prod(batch), rows, columns


def _dot(eqn: Any) -> float:
    (contracted, _), _ = eqn.params["dimension_numbers"]
    return float(2 * _size(eqn.outvars[0].aval) * math.prod(eqn.invars[0].aval.shape[d] for d in contracted))


def _convolution(eqn: Any) -> float:
    kernel, features = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec[0]
    terms = math.prod(kernel) / kernel[features] / math.prod(eqn.params["lhs_dilation"])
    return float(2 * _size(eqn.outvars[0].aval) * terms)


def _ragged_dot(eqn: Any) -> float:
    rows, columns = eqn.invars[0].aval.shape[-2:], eqn.invars[1].aval.shape[-1]
    return float(2 * math.prod(rows) * columns)


def _product(eqn: Any) -> Callable[[Any], float] | None:
    """The count of a product of matrices or a convolution, which say which dims they contract; None of all else."""
    params = {} if eqn is None else eqn.params
    if "ragged_dot_dimension_numbers" in params:
        return _ragged_dot
    numbers = params.get("dimension_numbers")
    if hasattr(numbers, "rhs_spec"):
        return _convolution
    return _dot if isinstance(numbers, tuple) and len(numbers) == 2 and "preferred_element_type" in params else None


def _window(eqn: Any) -> float:
    return float(_size(eqn.outvars[0].aval) * math.prod(eqn.params["window_dimensions"]))


def _sorted(eqn: Any) -> float:
    shape, dim = eqn.invars[0].aval.shape, eqn.params.get("dimension", -1)
    return float(math.prod(shape) * math.log2(max(2, shape[dim] if shape else 2)))


def _fft(eqn: Any) -> float:
    return 5 * _size(eqn.outvars[0].aval) * math.log2(max(2, math.prod(eqn.params["fft_lengths"])))


def _cubic(factor: float) -> Callable[[Any], float]:
    """The count of a factorization of a matrix: ``factor * rows * columns * min(rows, columns)``."""

    def flops(eqn: Any) -> float:
        count, rows, columns = _matrix(eqn)
        return factor * count * rows * columns * min(rows, columns)

    return flops


def _triangular_solve(eqn: Any) -> float:
    return float(_size(eqn.invars[1].aval) * eqn.invars[0].aval.shape[-1])


def _updates(eqn: Any) -> float:
    return _size(eqn.invars[-1].aval)


#: Operations whose count is neither one for each element nor none; factorizations by their textbooks' leading term.
_COUNTED: Final[Mapping[str, Callable[[Any], float]]] = {
    **dict.fromkeys(("reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window"), _window),
    **dict.fromkeys(("sort", "top_k", "approx_top_k"), _sorted),
    "fft": _fft,
    "cholesky": _cubic(1 / 3),
    "lu": _cubic(2 / 3),
    **dict.fromkeys(("qr", "geqrf", "householder_product"), _cubic(2)),
    **dict.fromkeys(("eigh", "eig", "svd", "schur", "tridiagonal", "hessenberg"), _cubic(9)),
    "triangular_solve": _triangular_solve,
    **dict.fromkeys(("scatter-add", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"), _updates),
    **dict.fromkeys(("argmax", "argmin"), lambda eqn: _size(eqn.invars[0].aval)),
    **dict.fromkeys(("select_and_scatter_add", "select_and_gather_add"), lambda eqn: _size(eqn.invars[0].aval)),
    **dict.fromkeys(("threefry2x32", "random_bits"), lambda eqn: 80 * sum(_size(v.aval) for v in eqn.outvars)),
}
#: Operations that move elements and compute none.
_MOVES: Final = frozenset({
    *("slice", "dynamic_slice", "dynamic_update_slice", "gather", "scatter", "concatenate", "split", "pad", "rev"),
    *("transpose", "broadcast_in_dim", "iota", "select_n", "convert_element_type", "copy", "real", "imag", "complex"),
    *("axis_index", "is_finite", "random_wrap", "random_unwrap", "random_seed", "random_split", "random_fold_in"),
    "debug_callback",
})  # fmt: skip
#: Operations that read of their first operand as much as they give.
_PARTS: Final = frozenset({"slice", "dynamic_slice", "gather"})
