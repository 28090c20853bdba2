"""The attributes of JAX that are replaced, all of them: a part of `_compat`.

Each is there for a capability that JAX's hooks for types do not reach. A program of plain JAX runs through JAX's own
code: what is replaced looks for typed values, and calls the original where there are none.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from shtypes._compat import private
from shtypes._compat.program_mesh import allowed_in_program, in_program, pspec_in_program, shard_map_in_program
from shtypes._compat.tracers import by_operands, by_type
from shtypes._compat.transformations import Scoping, Selecting, counted, lowered_calls, seeded


class Patch(NamedTuple):
    """An attribute of JAX that is replaced."""

    module: str  # the module that it is in
    path: str  # the attribute, from there
    gives: str  # what users have by it
    why: str  # what JAX lacks, and where that was seen
    until: str  # when it can go
    replaced: Callable[[Any], Any]  # from the original to what stands for it
    needed: Callable[[], bool] = lambda: True  # whether this release needs it

    @property
    def name(self) -> str:
        """The attribute in full."""
        return f"{self.module}.{self.path}"

    def holder(self) -> tuple[Any, str]:
        """The object that has the attribute, and its name there."""
        *outer, name = self.path.split(".")
        return functools.reduce(getattr, outer, importlib.import_module(self.module)), name


def _has_own(primitive: str, rule: str) -> bool:
    """Whether one of JAX's primitives has a rule of its own, and not only that of all."""
    return rule in getattr(private("jax._src.core", primitive), "__dict__", {})


PATCHES: Final = (
    Patch(
        "jax._src.core",
        "Tracer.__init__",
        "operators with a plain array on the left in traced code; `isinstance(x, jax.Array)`; refusals of numpy",
        "0.10.2 to 0.12: one class for the tracers of all types, and `isinstance` asks for `ShapedArray`",
        "a type can say which class its tracers have",
        by_type,
    ),
    Patch(
        "jax._src.core",
        "Primitive.bind",
        "loops, branches and results of `jax.vmap` that are not mapped; `jax.checkpoint`; `optimization_barrier` and "
        "`jax_remat3`; refusals of JAX's functions of arrays",
        "0.10.2 to 0.12: `batching.broadcast` and `optimization_barrier` take arrays only, and `_remat_to_lojax` "
        "returns carriers; no rule of a primitive can be given by type",
        "types say how their values are repeated and barred, and `_remat_to_lojax` raises its results",
        by_operands,
    ),
    Patch(
        "jax._src.core",
        "closed_call_p.to_lojax",
        "`jax.checkpoint` of a scan that is compiled",
        "0.10.2 to 0.11: the call that it makes of what does not change in the scan has no lowering for types",
        "0.10 and 0.11 are left behind: 0.12 has it",
        lowered_calls,
        needed=lambda: not _has_own("closed_call_p", "to_lojax"),
    ),
    Patch(
        "jax._src.lax.control_flow.loops",
        "_infer_scan_length",
        "`jax.lax.scan` and `jax.lax.map` over typed values without `length`, and refusals of other sizes",
        "0.10.2 to 0.12: of types that are not its own it asks for `length`, and believes it",
        "a type can say how many slices its values have",
        counted,
    ),
    Patch(
        "jax._src.lax.control_flow.conditionals",
        "lax",
        "`cond` and `switch` under `vmap` with a mapped predicate",
        "0.10.2 to 0.12: the batching rule of `cond` applies `select_n` and `stop_gradient` to all results",
        "types say how their values are selected",
        Selecting,
    ),
    Patch(
        "jax._src.custom_derivatives",
        "lu",
        "scopes (`no_comm`, `comm_budget`, `implicit_comm`) hold in the functions of `jax.custom_vjp` and "
        "`jax.custom_jvp`, whenever JAX runs these",
        "0.10.2 to 0.12: the functions run in the context of the backward pass, not in that of the call",
        "JAX runs them in the user context of the call",
        Scoping,
    ),
    Patch(
        "jax._src.lax.lax",
        "_one_vjp",
        "`jax.grad` and `jax.value_and_grad` of a typed loss",
        "0.10.2 to 0.12: the first cotangent is made by `full_like`, which takes arrays only",
        "types say what one is, as they say what zero is",
        seeded,
    ),
    Patch(
        "jax._src.pjit",
        "_create_sharding_for_array",
        "``in_shardings=`` and ``out_shardings=`` of `jax.jit` in lifted programs",
        "0.10.2 to 0.12: a `PartitionSpec` needs a mesh of devices in context, and not only an abstract one",
        "jit takes a `PartitionSpec` for the abstract mesh in context, as `jax.reshard` does",
        in_program,
    ),
    Patch(
        "jax._src.pjit",
        "check_shardings_are_auto",
        "`jax.lax.with_sharding_constraint` in lifted programs, on meshes of explicit axes too",
        "0.10.2 to 0.12: a constraint may name auto axes only",
        "a constraint to explicit axes is a reshard",
        allowed_in_program,
    ),
    Patch(
        "jax._src.api",
        "pspec_to_sharding",
        "`jax.device_put` to a `PartitionSpec` in lifted programs",
        "0.10.2 to 0.12: it needs a mesh of devices in context, and not only an abstract one",
        "it takes a `PartitionSpec` for the abstract mesh in context, as `jax.reshard` does",
        pspec_in_program,
    ),
    Patch(
        "jax._src.shard_map",
        "_shmap_checks",
        "`jax.shard_map` in lifted programs, on the mesh that the user gives it",
        "0.10.2 to 0.12: it wants the mesh in context, and that operands lie as ``in_specs`` say on explicit axes",
        "`in_specs` are annotations on explicit axes too",
        shard_map_in_program,
    ),
)

#: The patches that are installed, and of each the original and what stands for it.
INSTALLED: Final[dict[Patch, tuple[Any, Any]]] = {}


def install() -> None:
    """Replaces what there is of the table in this release; once."""
    for patch in PATCHES:
        if patch in INSTALLED or not patch.needed():
            continue
        try:
            holder, name = patch.holder()
            original = getattr(holder, name)
        except (ImportError, AttributeError):
            continue  # this release has it elsewhere: the test of its capability says whether it is needed
        INSTALLED[patch] = (original, patch.replaced(original))
        setattr(holder, name, INSTALLED[patch][1])


@contextlib.contextmanager
def without(patch: Patch) -> Iterator[None]:
    """JAX with the original of one of them, to see whether it is needed."""
    holder, name = patch.holder()
    original, replaced = INSTALLED[patch]
    setattr(holder, name, original)
    try:
        yield
    finally:
        setattr(holder, name, replaced)
