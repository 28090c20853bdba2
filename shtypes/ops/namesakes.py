"""Fixes of plain programs that call the typed form of a function of JAX with ``out=``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import jax

from shtypes.errors import Fix, ShardingTypeError
from shtypes.evaluation.source_fixes import connect_namesakes
from shtypes.evaluation.user_calls import Call
from shtypes.ops.jax_functions import JaxFunction
from shtypes.ops.table import OPS
from shtypes.ops.traced_calls import Trace
from shtypes.scopes.comm import under_rules
from shtypes.scopes.scope_rules import FinishesSums
from shtypes.types import State


def out_fixes(called: str, call: Call, evaluated: Callable[..., list[Any]]) -> list[Fix]:
    """The fixes of a call of the function of JAX whose name is ``called``, that pass ``out=``."""
    name, types = _names().get(_function(called)), tuple(call.types())
    if name is None or any(t.axes(State.UNREDUCED) for t in types):
        return []
    run, trace = under_rules(None, evaluated, FinishesSums()), Trace(call.jaxpr, call.consts, None, ())
    no_arguments = jax.tree.structure(((), {})), ()  # in listings
    error = JaxFunction(name, evaluated).with_out_fixes(ShardingTypeError(name), no_arguments, trace, types, run)
    return [] if error.out_fixes is None else error.out_fixes()


#: The module of ops whose ``out=`` reshards results alone.
_OF_RESULTS: Final = "shtypes.ops.einsum"


@functools.cache
def _names() -> dict[Any, str]:
    """The names of ops whose ``out=`` may move operands, by the functions of JAX whose typed forms they are."""
    having = (op for op in OPS.values() if op.out and op.jax and op.module != _OF_RESULTS)
    return {_function(op.jax): op.name for op in having}


def _function(name: str) -> Any:
    """The function of JAX of a public name; None if there is none."""
    module, _, attr = name.replace("jnp.", "jax.numpy.").rpartition(".")
    try:
        return getattr(importlib.import_module(module), attr, None)
    except ImportError:
        return None


connect_namesakes(out_fixes)
