"""The public surface: which names there are, and where each is. Nothing of JAX is loaded before `load`.

The functions of arrays are the rows of `OPS`; what else is public is listed here. What type checkers read is
`__init__.pyi`, which `python generate/stubs.py` writes from both.
"""

from __future__ import annotations

import copyreg
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, Final

from shtypes.context.user_line import is_public, maker, public
from shtypes.ops.rows import named
from shtypes.ops.table import OPS

#: The public names that are no functions of arrays, by the module that has them; ``a=b`` if it calls ``a`` otherwise.
OTHERS: Final[Mapping[str, str]] = {
    "jax": "eval_shape make_jaxpr",
    "shtypes.analysis.check": "Signature assert_comm check",
    "shtypes.analysis.compare": "Comparison compare",
    "shtypes.analysis.compute": "Compute compute",
    "shtypes.analysis.memory": "Memory memory",
    "shtypes.resharding.costs": "CostModel Link cost_model use_cost_model",
    "shtypes.resharding.devices": "Device",
    "shtypes.analysis.explain.explanation": "Explanation explain",
    "shtypes.analysis.visualize": "Picture visualize",
    "shtypes.autodiff.checkpoint": "checkpoint checkpoint_name checkpoint_policies",
    "shtypes.autodiff.custom": "custom_vjp",
    "shtypes.autodiff.grad": "grad jvp linearize value_and_grad vjp",
    "shtypes.autodiff.jacobian": "hessian jacfwd jacrev",
    "shtypes.autodiff.train_step": "train_step",
    "shtypes.control.branches": "cond switch",
    "shtypes.control.loops": "fori_loop map=map_ scan while_loop",
    "shtypes.control.vmap": "vmap",
    "shtypes.core.array": "Array",
    "shtypes.core.checks": "debug_checks set_debug_checks",
    "shtypes.traced.merging": "merge_reshards",
    "shtypes.core.meshes": "abstract_mesh make_mesh set_mesh use_mesh",
    "shtypes.lifting.lift": "lift",
    "shtypes.local_mode.local_map": "local_map",
    "shtypes.local_mode.shard_map": "shard_map",
    "shtypes.ops.describe": (
        "bfloat16 bool_ broadcast_shapes can_cast complex128 complex64 complexfloating e finfo float16 float32 float64 "
        "floating iinfo inexact inf int16 int32 int64 int8 integer iscomplexobj isdtype isrealobj isscalar issubdtype "
        "nan ndim newaxis number pi promote_types result_type shape signedinteger size uint16 uint32 uint64 uint8 "
        "unsignedinteger"
    ),
    "shtypes.core.conversion": "abstract_array array from_jax to_jax typeof",
    "shtypes.core.processes": "addressable_slices array_from_process",
    "shtypes.programs.jit": "jit set_region",
    "shtypes.scopes.comm": "comm_budget implicit_comm no_comm",
    "shtypes.signatures.typed": "typed",
    "shtypes.suggestions.suggest": "apply suggest",
    "shtypes.traced.ledger": "Ledger ledger",
    "shtypes.training.batches": "prefetch_to_device",
}
#: The public names that need no JAX.
PURE: Final[Mapping[str, str]] = {
    "shtypes.analysis.explain_reshard": "ReshardPrice Resharding explain_reshard price",
    "shtypes.errors": "Fix ShardingTypeError",
    "shtypes.types": "Dim ShType State",
    "shtypes.types.notation.dim_names": "dim_axes dims",
    "shtypes.types.policy": "current_policy policy set_policy",
}
#: The public names that are modules.
NAMESPACES: Final[Mapping[str, str]] = {
    "debug": "shtypes.control.debug",
    "fft": "shtypes.numerics.namespaces",
    "init": "shtypes.numerics.namespaces",
    "lax": "shtypes.local_mode.lax",
    "linalg": "shtypes.numerics.namespaces",
    "nn": "shtypes.numerics.namespaces",
    "optim": "shtypes.training.optim",
    "random": "shtypes.numerics.namespaces",
    "tree": "shtypes.numerics.namespaces",
}
#: Modules that set themselves up when they are imported.
_CONNECTED: Final = (
    "shtypes.core.jax_context",
    "shtypes.autodiff.grad",
    "shtypes.dispatch.call_fixes",
    "shtypes.ops.indexing",
    "shtypes.ops.operators",
    "shtypes.solver.complete",
)
#: Functions that take functions and return others.
_MAKERS: Final = frozenset(
    {"checkpoint", "grad", "hessian", "jacfwd", "jacrev", "local_map", "shard_map", "train_step"}
    | {"value_and_grad", "vmap"}
)


def places() -> Iterator[tuple[str, str, str]]:
    """Each public name of ``sh``, the module that has it, and what it is called there."""
    for listed in (PURE, OTHERS):
        for module, names in listed.items():
            for name, attr in named(names):
                yield name, module, attr
    for op in OPS.values():
        if not op.space:
            yield op.name, op.module, op.attr


@functools.cache
def names() -> tuple[str, ...]:
    """The public names of ``sh``."""
    return tuple(sorted({name for name, _, _ in places()} | set(NAMESPACES)))


@functools.cache
def load() -> dict[str, Any]:
    """The public names of ``sh`` with their objects; loads JAX."""
    for module in _CONNECTED:
        importlib.import_module(module)
    names = {name: getattr(importlib.import_module(module), attr) for name, module, attr in places()}
    for name, path in NAMESPACES.items():
        home = importlib.import_module(path)
        names[name] = getattr(home, "NAMESPACES", {}).get(name, home)
    copyreg.pickle(names["Array"], _pickled)
    # Every error of a public function names the user's line, and so does one of a function that it returns.
    for name, value in names.items():
        ours = isinstance(value, FunctionType) and value.__module__.startswith("shtypes")
        if ours and not is_public(value):
            names[name] = (maker if name in _MAKERS else public)(value)
    return names


def _pickled(x: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The pickled form of a typed value, which loads its operators where it is read."""
    _, parts = x.__reduce__()
    return unpickled, parts


def unpickled(*parts: Any) -> Any:
    """A typed value from its pickle."""
    load()
    return importlib.import_module("shtypes.core.array").unpickled(*parts)
