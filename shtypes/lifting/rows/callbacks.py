"""Rows of calls of the host."""

from __future__ import annotations

from typing import Any, Final

import jax

from shtypes._compat import no_trace_is_running
from shtypes._compat.plain_programs import bind_plain
from shtypes.control import debug
from shtypes.core.callbacks import HostFunction
from shtypes.core.local import local_all
from shtypes.dispatch.apply import all_replicated, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.bound_primitive import Bound
from shtypes.evaluation.rows.families import all_whole
from shtypes.evaluation.rows.generic import Row
from shtypes.evaluation.table import body_row, equation_row
from shtypes.evaluation.value_info import beside_others, typed_constant
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh, context


@body_row("pure_callback")
def _pure_callback(eqn: Any, operands: list[Any]) -> list[Any]:
    """Each device calls with what it has, of constants too: what one raises, all do that have the same."""
    if not any(map(is_typed, operands)):
        mesh = context()
        if mesh is None or no_trace_is_running():
            return bind_plain(eqn, operands)
        operands = [typed_constant(x, mesh) for x in operands]
        if not operands:
            return _of_nothing(eqn, mesh)
    return _PURE_CALLBACK(eqn, beside_others(operands))


_PURE_CALLBACK: Final = Row(
    "pure_callback",
    all_whole("pure_callback"),
    function=lambda call, operands, results: _host_function(call.eqn, operands[0].mesh),
)


def _of_nothing(eqn: Any, mesh: Mesh) -> list[Any]:
    states = all_replicated(mesh)
    types = [ShType(mesh, dtypes.from_numpy(v.aval.dtype), list(v.aval.shape), states) for v in eqn.outvars]
    return local_all(_host_function(eqn, mesh), out=types)


def _host_function(eqn: Any, mesh: Mesh) -> HostFunction:
    p = eqn.params
    results = tuple((tuple(v.aval.shape), dtypes.from_numpy(v.aval.dtype)) for v in eqn.outvars)
    return HostFunction(
        "pure_callback", Bound(eqn.primitive, p), p["callback"], results, mesh.axis_names, p["vmap_method"]
    )


@equation_row("debug_callback", "debug_print")
def _debug(eqn: Any, operands: list[Any]) -> list[Any]:
    """Each device that has another part calls with its own, as `sh.debug` does."""
    p = eqn.params
    if eqn.primitive.name == "debug_print":
        args, kwargs = _filled_in(p, operands)
        debug.print(p["fmt"], *args, ordered=p["ordered"], **kwargs)
    else:
        bind = eqn.primitive.get_bind_params(p)
        callback = bind["callback"]
        debug.callback(callback, *operands, ordered=type(p.get("effect")).__name__.startswith("Ordered"))
    return []


def _filled_in(params: Any, operands: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a print: those that are arrays, and those that were known when it was traced."""
    known = dict(params["static_args"])
    rest = iter(operands)
    count = params["in_tree"].num_leaves
    leaves = [known[i] if i in known else next(rest) for i in range(count)]
    args, kwargs = jax.tree.unflatten(params["in_tree"], leaves)
    return list(args), dict(kwargs)


@equation_row("io_callback")
def _io_callback(eqn: Any, operands: list[Any]) -> list[Any]:
    raise ShardingTypeError(
        "`io_callback` of typed values would run once on each device",
        hints=["sh.debug.callback, which calls once for each part", "x.to_jax() before it, outside of `lift`"],
    )
