"""A view of jaxprs that is independent of JAX's release: equations, and the bodies in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax.extend.core import Var
from jax.interpreters import ad

from shtypes._compat import private
from shtypes.types import dtypes

#: JAX's class of a literal's value, whose type has the mesh of its program.
_typed_literal: Any = private("jax._src.literals", "TypedNdArray")
#: JAX's rule for primitives whose derivative is zero.
zero_jvp: Any = private("jax._src.interpreters.ad", "zero_jvp")
_UnusedVar: Any = private("jax._src.core", "DropVar")


def jaxpr_of(jaxpr: Any) -> Any:
    """The open jaxpr of a closed one; 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a literal and not a variable."""
    return hasattr(atom, "val")


#: The dtypes that Python numbers can have.
_PYTHON: Final = {"bool", "int32", "int64", "float32", "float64", "complex64", "complex128"}


def variables(atoms: Iterable[Any]) -> list[Any]:
    """The atoms that are variables."""
    return [v for v in atoms if not is_literal(v)]


def literal_array(literal: Any) -> Any:
    """A literal's value as a number or a numpy array, without its program's mesh."""
    value = literal.val
    if jax.numpy.issubdtype(literal.aval.dtype, jax.dtypes.extended):
        return value
    array = np.asarray(value, literal.aval.dtype)
    if not literal.aval.weak_type or array.ndim or array.dtype.name not in _PYTHON:
        return array
    number = array.item()
    return number if jax.typeof(number).dtype == array.dtype else array


_WIDE: Final = tuple(map(np.dtype, ("int64", "uint64", "float64", "complex128")))
#: The 64-bit dtypes, which JAX has only in x64 mode, and their names.
WIDE: Final = frozenset((*_WIDE, *map(dtypes.from_numpy, _WIDE)))


def wide_enough(*names: Any) -> AbstractContextManager[Any]:
    """Context manager that enables x64 if one of the dtypes (or dtype names) has 64 bits."""
    manager: AbstractContextManager[Any] = nullcontext() if WIDE.isdisjoint(names) else jax.enable_x64(True)
    return manager


def result_type(*xs: Any) -> Any:
    """The dtype to which JAX promotes arrays, dtypes and numbers; of 64 bits where one has 64, whatever the mode."""
    with wide_enough(*[getattr(x, "dtype", x) for x in xs]):
        return jax.numpy.result_type(*xs)


def unrounded(value: Any) -> Any:
    """A value that JAX does not round: a 64-bit numpy array becomes a JAX array."""
    if not isinstance(value, (np.ndarray, np.generic)) or jax.dtypes.canonicalize_dtype(value.dtype) == value.dtype:
        return value
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return jax.numpy.asarray(value)


def literal_value(atom: Any) -> Any:
    """A literal's value, without a mesh."""
    return np.asarray(atom.val)[()] if type(atom.val) is _typed_literal else atom.val


def inner_jaxprs(eqn: Any) -> list[tuple[Any, int | None]]:
    """The jaxprs inside an equation with their trip counts; None in a while loop."""
    trips: int | None = 1
    if eqn.primitive.name == "scan":
        trips = int(eqn.params["length"])
    elif eqn.primitive.name == "while":
        trips = None
    bodies = []
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(jaxpr_of(item), "eqns"):
                bodies.append((item, trips))
    return bodies


def variable(aval: Any) -> Any:
    """A new variable of a type."""
    return Var(aval)


def with_unused(eqn: Any, used: Sequence[bool]) -> Any:
    """The equation with its other results marked as unused, as JAX marks them."""
    return eqn.replace(outvars=[v if u else _UnusedVar(v.aval) for v, u in zip(eqn.outvars, used, strict=True)])


def is_used(variable: Any) -> bool:
    """Whether a result of an equation is not marked as unused."""
    return type(variable) is not _UnusedVar


def with_equations(jaxpr: Any, eqns: Sequence[Any], outvars: Sequence[Any]) -> Any:
    """The jaxpr, open or closed, with other equations and results."""
    opened = jaxpr_of(jaxpr)
    changed = opened.replace(eqns=list(eqns), outvars=list(outvars))
    return changed if opened is jaxpr else jaxpr.replace(jaxpr=changed)


def with_inputs(jaxpr: Any, constvars: Sequence[Any], consts: Sequence[Any], invars: Sequence[Any]) -> Any:
    """The open jaxpr with other constants, which newer releases store in it, and other arguments."""
    values = {"consts": list(consts)} if hasattr(jaxpr, "consts") else {}
    return jaxpr.replace(constvars=list(constvars), invars=list(invars), **values)


def with_bodies(eqn: Any, change: Callable[[Any], Any]) -> Any:
    """The equation with each jaxpr in it changed; unchanged without any."""
    params = {name: _changed(value, change) for name, value in eqn.params.items()}
    same = all(params[name] is value for name, value in eqn.params.items())
    return eqn if same else eqn.replace(params=params)


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    if hasattr(jaxpr_of(value), "eqns"):
        return change(value)
    if type(value) not in (tuple, list) or not any(hasattr(jaxpr_of(item), "eqns") for item in value):
        return value
    items = [_changed(item, change) for item in value]
    return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)


def equations(jaxpr: Any) -> Iterator[Any]:
    """The equations of a program, and of all programs in them."""
    for eqn in jaxpr_of(jaxpr).eqns:
        yield eqn
        for body, _ in inner_jaxprs(eqn):
            yield from equations(body)


def dependent_vars(
    closed: Any, operands: Sequence[int], through: Callable[[Any, list[int]], Sequence[bool]] | None = None
) -> set[Any]:
    """The variables of a program that depend on some of its operands, and these.

    ``through`` returns which results of an equation depend on some of its operands, by index; by default, all.
    """
    jaxpr = jaxpr_of(closed)
    dependent = {jaxpr.invars[i] for i in operands}
    for eqn in jaxpr.eqns:
        active = [i for i, x in enumerate(eqn.invars) if not is_literal(x) and x in dependent]
        if active:
            moved = [True] * len(eqn.outvars) if through is None else through(eqn, active)
            dependent.update(v for v, m in zip(eqn.outvars, moved, strict=True) if m)
    return dependent


def reached(
    closed: Any, operands: Sequence[int], through: Callable[[Any, list[int]], Sequence[bool]] | None = None
) -> list[bool]:
    """Whether each result of a program depends on some of its operands; arguments as for `dependent_vars`."""
    dependent = dependent_vars(closed, operands, through)
    return [not is_literal(x) and x in dependent for x in jaxpr_of(closed).outvars]


def depends_smoothly(closed: Any, operands: Sequence[int]) -> list[bool]:
    """Whether each result may have a derivative by some operands; False only if it is zero in JAX."""
    return reached(closed, operands, moves_smoothly)


def moves_smoothly(eqn: Any, operands: list[int]) -> list[bool]:
    """Whether each result of an equation may have a derivative by some operands, as in `depends_smoothly`."""
    if has_zero_derivative(eqn):
        return [False] * len(eqn.outvars)
    inexact = [jax.numpy.issubdtype(v.aval.dtype, np.inexact) for v in eqn.outvars]
    if eqn.primitive.name == "cond":
        of_each = [depends_smoothly(b, [i - 1 for i in operands if i]) for b in eqn.params["branches"]]
        return [any(moved) and i for *moved, i in zip(*of_each, inexact, strict=True)]
    if eqn.primitive.name not in ("jit", "pjit"):
        return inexact
    moved = depends_smoothly(eqn.params["jaxpr"], operands)
    return [m and i for m, i in zip(moved, inexact, strict=True)]


def vars_with_cotangents(
    closed: Any,
    results: Sequence[bool] | None = None,
    operands: Callable[[Any, Sequence[bool]], Sequence[bool]] | None = None,
) -> set[Any]:
    """The variables of a program by which some ``results``, by default all, may have a derivative, and these.

    ``operands``: the operands of an equation by which some of its results may have one; by default those of JAX's.
    """
    operands = operands or operands_with_cotangents
    jaxpr = jaxpr_of(closed)
    chosen = jaxpr.outvars if results is None else [v for v, r in zip(jaxpr.outvars, results, strict=True) if r]
    live = {v for v in chosen if not is_literal(v) and v.aval is not None}  # None: of a trace that goes on
    for eqn in reversed(jaxpr.eqns):
        outs = [v in live for v in eqn.outvars]
        if any(outs):
            moves = operands(eqn, outs)
            live.update(v for v, moved in zip(eqn.invars, moves, strict=True) if moved and not is_literal(v))
    return live


def operands_with_cotangents(eqn: Any, results: Sequence[bool]) -> list[bool]:
    """Whether some results of an equation may have a derivative by each operand, as `moves_smoothly` says."""
    if has_zero_derivative(eqn):
        return [False] * len(eqn.invars)
    smooth = [r and jax.numpy.issubdtype(v.aval.dtype, np.inexact) for v, r in zip(eqn.outvars, results, strict=True)]
    if eqn.primitive.name == "cond":
        of_each = [_arguments_with_cotangents(b, smooth) for b in eqn.params["branches"]]
        return [False, *map(any, zip(*of_each, strict=True))]
    if eqn.primitive.name in ("jit", "pjit"):
        return _arguments_with_cotangents(eqn.params["jaxpr"], smooth)
    return [any(smooth)] * len(eqn.invars)


def _arguments_with_cotangents(closed: Any, results: Sequence[bool]) -> list[bool]:
    live = vars_with_cotangents(closed, results)
    return [v in live for v in jaxpr_of(closed).invars]


def has_zero_derivative(eqn: Any) -> bool:
    """Whether JAX's derivative of an equation is always zero, as that of `floor`."""
    if eqn.primitive.name == "stop_gradient":
        return True
    if eqn.primitive.name == "sign":  # newer releases have a rule for complex numbers
        return bool(eqn.outvars[0].aval.dtype.kind != "c")
    if eqn.primitive.name == "integer_pow" and not eqn.params["y"]:
        return True
    return getattr(ad.primitive_jvps.get(eqn.primitive), "func", None) is zero_jvp


# control flow


class UnknownEquationError(Exception):
    """Raised for an equation whose parameters match no supported JAX release."""


class Scan(NamedTuple):
    """`lax.scan`: ``body(*consts, *carry, *x)`` returns the next carry and a slice of the results."""

    body: Any
    consts: int
    carry: int
    length: int
    reverse: bool
    unroll: int


class While(NamedTuple):
    """`lax.while_loop`: operands are the constants of ``cond``, those of ``body``, and the state."""

    cond: Any
    body: Any
    cond_consts: int
    body_consts: int


class Cond(NamedTuple):
    """`lax.cond` and `lax.switch`: the first operand is the index of the branch."""

    branches: tuple[Any, ...]


class ClosedCall(NamedTuple):
    """A body that runs once: jit, custom derivatives (already applied), `jax.checkpoint`."""

    body: Any
    scope: str = ""  # the name scope of the body
    barrier: tuple[bool, ...] = ()  # whether each operand passes an optimization barrier


Control = Scan | While | Cond | ClosedCall

_JIT: Final = {
    *("jaxpr", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh", "name"),
    *("keep_unused", "inline", "compiler_options_kvs"),
}
_CUSTOM: Final = {"call_jaxpr", "num_consts", "symbolic_zeros"}
_SCAN: Final = {"reverse", "length", "jaxpr", "unroll"}

#: The parameters of each primitive in all supported releases.
_PARAMETERS: Final[dict[str, tuple[set[str], ...]]] = {
    "scan": (_SCAN | {"num_consts", "num_carry"}, _SCAN | {"ft_in", "ft_out"}),
    "while": ({"cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"},),
    "cond": ({"branches"}, {"branches", "branches_platforms"}),
    "jit": (_JIT,),
    "closed_call": ({"call_jaxpr"},),
    "core_call": ({"call_jaxpr"},),
    "eval_jaxpr": ({"call_jaxpr"},),
    "custom_jvp_call": (_CUSTOM | {"jvp_jaxpr_fun"},),
    "custom_vjp_call": (_CUSTOM | {"fwd_jaxpr_thunk", "bwd", "out_trees"},),
    "call_with_rules": ({"call_jaxpr", "num_consts", "rules"},),
    "remat2": ({"jaxpr", "prevent_cse", "differentiated", "policy"},),
}


def control(eqn: Any) -> Control | None:
    """The control flow of an equation with sub-jaxprs, or None."""
    name, params = eqn.primitive.name, eqn.params
    layouts = _PARAMETERS.get(name)
    if layouts is None:
        return None
    if set(params) not in layouts:
        raise UnknownEquationError(f"`{name}` has the parameters {sorted(params)}")
    if name == "scan":
        return Scan(params["jaxpr"], *_scan_counts(params), params["length"], params["reverse"], params["unroll"])
    if name == "while":
        return While(params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"])
    if name == "cond":
        return Cond(tuple(params["branches"]))
    if name == "remat2":
        return ClosedCall(params["jaxpr"], "checkpoint", _barrier(params, len(eqn.invars)))
    if name == "jit":
        return ClosedCall(params["jaxpr"], f"jit({params['name']})")
    return ClosedCall(params["call_jaxpr"])


def _scan_counts(params: Any) -> tuple[int, int]:
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    try:
        consts, carry, _ = (len(list(part)) for part in params["ft_in"].unpack())
    except (AttributeError, TypeError, ValueError) as err:
        raise UnknownEquationError("`scan` divides its operands in another way") from err
    return consts, carry


def _barrier(params: Any, operands: int) -> tuple[bool, ...]:
    """Whether each operand of a checkpoint passes an optimization barrier, by JAX's lowering rule."""
    prevent = params["prevent_cse"]
    flags = tuple(prevent) if isinstance(prevent, (tuple, list)) else (bool(prevent),) * operands
    return flags if params["differentiated"] and any(flags) else ()


def captured(body: Any) -> tuple[Any, ...]:
    """The constants of a body."""
    return tuple(getattr(body, "consts", ()))


def equation_context(eqn: Any) -> AbstractContextManager[Any]:
    """Context manager that sets an equation's trace settings."""
    manager: AbstractContextManager[Any] = eqn.ctx.manager
    return manager


def bits_as_traced(eqn: Any) -> AbstractContextManager[Any]:
    """Context manager in which random bits are those of an equation's trace."""
    traced: bool = eqn.ctx.threefry_partitionable
    same = jax.config.jax_threefry_partitionable == traced  # type: ignore[attr-defined]  # flags are attributes
    manager: AbstractContextManager[Any] = nullcontext() if same else jax.threefry_partitionable(traced)
    return manager


def has_context(eqn: Any) -> bool:
    """Whether an equation is offloaded, or has metadata for XLA."""
    return any(getattr(eqn.ctx, name, None) for name in ("compute_type", "xla_metadata"))


def dtypes_of(eqn: Any) -> Iterator[Any]:
    """The dtypes of an equation's operands and results."""
    return (v.aval.dtype for v in (*eqn.invars, *eqn.outvars) if hasattr(v.aval, "dtype"))


def references(eqn: Any) -> list[Any]:
    """The references among its operands that an equation reads or writes."""
    in_place = any(hasattr(effect, "input") for effect in eqn.effects)
    return [v for v in eqn.invars if in_place and _is_reference(v)]


def has_side_effects(eqn: Any) -> bool:
    """Whether an equation has effects besides creating and using references, so that it is not a pure function."""
    return not any(map(_is_reference, eqn.outvars)) and any(not hasattr(effect, "input") for effect in eqn.effects)


def _is_reference(v: Any) -> bool:
    return hasattr(v.aval, "inner_aval")


def bind_eqn(eqn: Any, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """Binds an equation's primitive to other operands, with some parameters changed."""
    primitive = eqn.primitive
    outs = primitive.bind(*operands, **primitive.get_bind_params({**eqn.params, **changed}))
    return list(outs) if primitive.multiple_results else [outs]
