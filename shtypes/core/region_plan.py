"""Plans which equations run inside a region, before lowering."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import jax
from jax.extend import source_info_util
from jax.sharding import AxisType

from shtypes._compat import HiPrimitive
from shtypes._compat.jaxprs import (
    UnknownEquationError,
    captured,
    control,
    has_context,
    inner_jaxprs,
    jaxpr_of,
    variables,
)
from shtypes.core.callbacks import Callback
from shtypes.core.collective import Collective
from shtypes.core.combined_collectives import Joint
from shtypes.core.device_put import EnsureMapped, FromJax, Raise, ToJax
from shtypes.core.jax_type import HiShType
from shtypes.core.local import Local
from shtypes.core.operation import Operation, applied_by
from shtypes.core.physical import physical_spec
from shtypes.core.reshard import Reshard

#: The maximum size of replicated arrays of a plain equation that is computed on every device.
SMALL: Final = 1 << 16
#: JAX's primitives that accept typed values, and pass their operands on.
HANDS_ON: Final = {"name", "copy", "copy_p"}
#: Primitives with a placement.
PLACED: Final = {
    *("shard_map", "sharding_constraint", "mesh_cast", "device_put", "layout_constraint", "custom_partitioning"),
    *("pure_callback", "io_callback", "debug_callback", "ffi_call"),
}


class UnsupportedError(Exception):
    """Raised for a program that the region lowering leaves to JAX, with the reason."""


class UnknownReleaseError(UnsupportedError):
    """Raised for a program that it leaves to JAX because of an unsupported JAX release."""


class Segment(NamedTuple):
    """Equations that are lowered together, in one region, or one by one on global arrays."""

    region: bool  # whether they are in a region
    equations: tuple[Any, ...]  # in program order
    operands: tuple[Any, ...]  # variables defined before
    results: tuple[Any, ...]  # variables used after


def is_typed(atom: Any) -> bool:
    """Whether a variable has a sharding type."""
    return type(atom.aval) is HiShType


def spec_of(aval: Any) -> Any:
    """The spec of a variable's global array, as far as JAX tracks it."""
    if type(aval) is HiShType:
        return physical_spec(aval)
    sharding = getattr(aval, "sharding", None)
    return jax.P() if sharding is None or sharding.mesh.empty else sharding.spec


def same_spec(a: Any, b: Any) -> bool:
    """Whether two specs are equal up to trailing unsharded dims."""
    return _entries(a) == _entries(b)


def _entries(spec: Any) -> tuple[Any, ...]:
    entries = tuple(spec)
    while entries and not entries[-1]:
        entries = entries[:-1]
    return entries


class Planner:
    """Plans one program; caches results for its bodies."""

    def __init__(self) -> None:
        self._bodies: dict[int, str] = {}
        self._segments: dict[int, list[Segment]] = {}

    # reasons against a region; empty for none

    def obstacle(self, eqn: Any) -> str:
        """Why an equation cannot be in a region; empty if it can."""
        p, ins, outs = applied_by(eqn), [v.aval for v in eqn.invars], [v.aval for v in eqn.outvars]
        if has_context(eqn):
            return "it is to run in a special way (offloaded, or with metadata)"
        if isinstance(p, (Operation, HiPrimitive)) and control(eqn) is None:
            return _obstacle_ours(p, ins, outs)
        if eqn.effects and control(eqn) is None:  # equations with bodies have the bodies' effects
            return f"it has an effect ({', '.join(sorted(type(e).__name__ for e in eqn.effects))})"
        if p.name in PLACED:
            return "it says itself where it runs"
        if control(eqn) is not None:
            return next(filter(None, map(self._obstacle_body, inner_jaxprs(eqn))), "") or _obstacle_entering(ins)
        if p.name in HANDS_ON:
            return _obstacle_plain([a for a in ins if type(a) is not HiShType])
        if p.name == "broadcast_in_dim" and not ins[0].shape:
            return ""  # each shard is the scalar, whatever its placement
        return "it has a body of its own" if inner_jaxprs(eqn) else _obstacle_plain(ins + outs)

    def _obstacle_body(self, body: tuple[Any, Any]) -> str:
        jaxpr = jaxpr_of(body[0])
        if id(jaxpr) not in self._bodies:
            reasons = ((self.obstacle(eqn), eqn) for eqn in jaxpr.eqns)
            self._bodies[id(jaxpr)] = next((_in_body(r, e) for r, e in reasons if r), "")
        return self._bodies[id(jaxpr)]

    # segments

    def segments(self, jaxpr: Any) -> list[Segment]:
        """Splits the live equations of a jaxpr into regions, greedily as few as possible."""
        if id(jaxpr) not in self._segments:
            self._segments[id(jaxpr)] = self._walk(jaxpr)
        return self._segments[id(jaxpr)]

    def _walk(self, jaxpr: Any) -> list[Segment]:
        waiting = live(jaxpr)
        native = self._native(waiting)
        defined = {*jaxpr.invars, *jaxpr.constvars}
        groups: list[tuple[bool, list[Any]]] = []
        region, idle = False, False
        while waiting:
            taken, rest = _ready(waiting, defined, native, region)
            if idle and not taken:
                raise AssertionError(f"nothing makes what these equations take: {waiting}")
            idle = not taken
            if taken:
                # a region needs a typed value, for its mesh and to be worthwhile
                typed = any(is_typed(v) for eqn in taken for v in (*eqn.invars, *eqn.outvars))
                groups.append((region and typed, taken))
            waiting, region = rest, not region
        return _with_borders(groups, jaxpr.outvars)

    def _native(self, eqns: list[Any]) -> set[int]:
        """The ids of equations that run outside regions: those that must, and plain ones that they depend on."""
        ids: set[int] = set()
        needed: set[Any] = set()
        for eqn in reversed(eqns):
            plain = not any(is_typed(v) for v in (*eqn.invars, *eqn.outvars))
            if self.obstacle(eqn) or (plain and any(v in needed for v in eqn.outvars)):
                ids.add(id(eqn))
                needed.update(variables(eqn.invars))
        return ids


def _obstacle_ours(p: Operation | HiPrimitive, ins: list[Any], outs: list[Any]) -> str:
    if isinstance(p, Local | Reshard | Collective | Joint | EnsureMapped | Callback):
        return "it has no values (float0)" if any(t.dtype_name == "float0" for t in outs) else ""
    if not isinstance(p, FromJax | ToJax | Raise):
        return "it is lowered on its own"
    src, dst = spec_of(ins[0]), spec_of(outs[0])
    if same_spec(src, dst):
        return ""
    # a replicated array can be sliced in the region; if JAX does not track it, it may be sharded already
    if isinstance(p, FromJax) and not _entries(src) and _tracked(ins[0]):
        return ""
    return "its array is placed in another way than its type"


def _tracked(aval: Any) -> bool:
    """Whether JAX tracks an array's sharding."""
    mesh = aval.sharding.mesh
    return not mesh.empty and all(kind == AxisType.Explicit for kind in mesh.axis_types)


def _obstacle_plain(avals: list[Any]) -> str:
    """Why a plain equation cannot be computed on every device: operands that are sharded, or large."""
    for aval in avals:
        if type(aval) is HiShType or not hasattr(aval, "shape"):
            return "it is not an operation on arrays"
        if _entries(spec_of(aval)):
            return f"it computes on a plain array that is sharded, {aval}"
        if math.prod(aval.shape) > SMALL:
            return f"it computes on a large plain array, {aval}, which each device would do for itself"
    return ""


def _obstacle_entering(avals: list[Any]) -> str:
    """Why a plain array cannot enter a region: large, with a placement that JAX does not track."""
    for aval in avals:
        if type(aval) is not HiShType and math.prod(getattr(aval, "shape", ())) > SMALL and not _tracked(aval):
            return f"it takes a large plain array, {aval}, that lies somewhere"
    return ""


def _in_body(reason: str, eqn: Any) -> str:
    return f"`{applied_by(eqn).name}` in its body, {source_info_util.summarize(eqn.source_info)}: {reason}"


def live(jaxpr: Any) -> list[Any]:
    """The equations that results or effects need, with all operands of those."""
    needed = set(variables(jaxpr.outvars))
    equations = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or any(v in needed for v in eqn.outvars):
            equations.append(eqn)
            needed.update(variables(eqn.invars))
    return equations[::-1]


def _ready(eqns: list[Any], defined: set[Any], native: set[int], region: bool) -> tuple[list[Any], list[Any]]:
    """The equations of one kind that can run now, whose results are added to ``defined``, and the others."""
    taken, rest = [], []
    effects_wait = False
    for eqn in eqns:
        ready = (id(eqn) not in native) == region and all(v in defined for v in variables(eqn.invars))
        if ready and not (eqn.effects and effects_wait):
            taken.append(eqn)
            defined.update(eqn.outvars)
        else:
            rest.append(eqn)
            effects_wait = effects_wait or bool(eqn.effects)
    return taken, rest


def _with_borders(groups: list[tuple[bool, list[Any]]], outvars: list[Any]) -> list[Segment]:
    """Segments with their operands and results."""
    segments: list[Segment] = []
    later = set(variables(outvars))
    for region, eqns in reversed(groups):
        defined = {v for eqn in eqns for v in eqn.outvars}
        read = dict.fromkeys(v for eqn in eqns for v in variables(eqn.invars))
        operands = tuple(v for v in read if v not in defined)
        results = tuple(v for v in dict.fromkeys(v for eqn in eqns for v in eqn.outvars) if v in later)
        segments.append(Segment(region, tuple(eqns), operands, results))
        later.update(operands)
    return segments[::-1]


def check_supported(jaxpr: Any) -> bool:
    """Whether a jaxpr has typed values, in its bodies too; `UnsupportedError` if an equation cannot be lowered."""
    typed = any(is_typed(v) for v in (*jaxpr.invars, *jaxpr.outvars, *jaxpr.constvars))
    for eqn in jaxpr.eqns:
        inner = inner_jaxprs(eqn)
        try:
            has_control = control(eqn) is not None
        except UnknownEquationError as err:
            raise UnknownReleaseError(str(err)) from None
        takes_typed = isinstance(eqn.primitive, HiPrimitive) or any(
            getattr(v.aval, "is_high", False) for v in (*eqn.invars, *eqn.outvars)
        )
        if takes_typed and not (
            has_control or isinstance(eqn.primitive, HiPrimitive) or eqn.primitive.name in HANDS_ON
        ):
            raise UnsupportedError(f"`{eqn.primitive.name}` is not known to take typed values")
        if has_control:
            if any(captured(body) for body, _ in inner):
                raise UnsupportedError(f"`{eqn.primitive.name}` has captured constants in its body")
            for body, _ in inner:
                takes_typed = check_supported(jaxpr_of(body)) or takes_typed
        typed = typed or takes_typed
    return typed
