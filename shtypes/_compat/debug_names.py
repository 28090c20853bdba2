"""Where arguments and results of an inner jaxpr are in the user's program: names, paths, and operands passed on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from shtypes._compat.eqn_frames import Frame, eqn_source_of
from shtypes._compat.jaxprs import Cond, Scan, While, control, inner_jaxprs, jaxpr_of

#: Where the results of the user's body are in those of the jaxpr, for functions of JAX that wrap the body.
_WRAPPED: Final = {"jax.lax.fori_loop": "[0][1]", "jax.lax.map": "[1]"}
#: JAX's file of `jax.lax.map`.
_LOOPS: Final = "lax/control_flow/loops.py"
#: Functions of JAX that return the results of one equation in a tuple.
_TUPLES: Final = ("jax.lax.top_k", "jax.lax.split", "jnp.split")
#: Functions of JAX whose jaxprs are of the user's functions themselves.
_UNWRAPPED: Final = ("", "jax.lax.scan", "jax.lax.while_loop", "jax.lax.cond", "jax.lax.switch")


def argument_names(jaxpr: Any) -> Sequence[str]:
    """For each argument, its expression in the function, such as ``params['w']``; empty if unknown."""
    return _names(jaxpr, "arg_names", len(jaxpr_of(jaxpr).invars))


def name_in(jaxpr: Any, name: str, frame: Frame) -> str:
    """An argument's name in the user's function of a frame, which a jaxpr was traced from; empty if it was not."""
    info = getattr(jaxpr_of(jaxpr), "debug_info", None)
    file, _, line = str(getattr(info, "func_src_info", "")).rpartition(" at ")[2].rpartition(":")
    code = frame.code
    if (file, line) == (code.co_filename, str(code.co_firstlineno)):
        return name
    # `jax.lax.map` wraps a function of a single argument
    root, rest = re.fullmatch(r"(\w*)(.*)", name).groups()  # type: ignore[union-attr]
    return code.co_varnames[0] + rest if root == "x" and file.endswith(_LOOPS) and code.co_argcount == 1 else ""


def result_path(eqn: Any, index: int, frames: Sequence[Frame]) -> str | None:
    """Where a result is in what the user's call of an equation returns: ``[0]['carry']``; None if unknown."""
    called = eqn_source_of(frames).called
    if called in _TUPLES and len(eqn.outvars) > 1:
        return f"[{index}]"
    wrapped = _WRAPPED.get(called, "" if called in _UNWRAPPED else None)
    count = len(eqn.outvars)
    body = next((body for body, _ in inner_jaxprs(eqn) if len(jaxpr_of(body).outvars) == count), None)
    if body is None or wrapped is None:
        return None
    path = _names(body, "result_paths", count)[index]
    return path.removeprefix(prefix) if path.startswith(prefix := f"result{wrapped}") else None


def is_part(eqn: Any) -> bool:
    """Whether the only result of a call's equation is a part of what the call returns; others may be unused."""
    (body, _), *others = inner_jaxprs(eqn) or [(None, None)]
    return body is not None and not others and _names(body, "result_paths", 1)[0] not in ("", "result")


def passed_to(eqn: Any, jaxpr: Any, var: Any) -> Any:
    """The operand of an equation that it passes to a jaxpr in it as an argument, as it is; None if it passes parts."""
    if var not in jaxpr.invars:
        return None
    i, operands = jaxpr.invars.index(var), list(eqn.invars)
    match control(eqn):
        case Scan(consts=count):
            return operands[i] if i < count else None
        case While(body=body, cond_consts=before, body_consts=count):
            return operands[before + i] if i < count and jaxpr.invars == jaxpr_of(body).invars else None
        case Cond():
            operands = operands[1:]
    if eqn.primitive.name == "custom_jvp_call" and len(operands) < len(jaxpr.invars):  # a rule takes tangents, too
        operands = operands[eqn.params["num_consts"] :]
        return operands[i] if i < len(operands) else None
    return operands[i] if len(operands) == len(jaxpr.invars) else None


def _names(jaxpr: Any, field: str, count: int) -> Sequence[str]:
    names = getattr(getattr(jaxpr_of(jaxpr), "debug_info", None), field, None) or ()
    of_user = [name if re.match(r"[A-Za-z_]", str(name)) else "" for name in names]
    return of_user if len(of_user) == count else [""] * count
