"""A user's function of shards: its trace, the checks of it, and its derivative."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from shtypes._compat.jaxprs import captured, equations, jaxpr_of
from shtypes._compat.local_axes import traced_type
from shtypes.caches import CACHE_SIZE, Bounded
from shtypes.context.signature_errors import jax_error
from shtypes.context.user_line import line_of, shortened
from shtypes.core.jax_errors import PlainCode
from shtypes.core.jax_type import as_jax_type
from shtypes.core.local import local_all
from shtypes.core.meshes import context_mesh, inside_a_device
from shtypes.core.operation import applied_by
from shtypes.core.shard_fn import ShardFn, as_tuple, tell_apart
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.rules.claims import Dependence
from shtypes.traced.dependence import dependences
from shtypes.types import Dim, ShType, State, dtypes

_NUMBERS: Final = (bool, int, float, complex)
#: The local shape and dtype of each operand.
Shards = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class UserFn(ShardFn):
    """A user's function, with its static arguments."""

    f: Callable[..., Any]
    name: str
    tree: Any
    static: tuple[Any, ...] = field(compare=False)  # for each leaf of the arguments, a static value or `Shard`
    same: Any = field(init=False, repr=False)  # compared in place of `static`, see `tell_apart`

    def __post_init__(self) -> None:
        tell_apart(self, *[x for x in self.static if isinstance(x, _NUMBERS)])
        others = tuple(None if isinstance(x, _NUMBERS) else x for x in self.static)
        object.__setattr__(self, "same", (self.same, others))

    def __str__(self) -> str:
        return self.name

    def call(self, shards: Sequence[Any]) -> Any:
        """The results in the user's structure."""
        rest = iter(shards)
        args, kwargs = jax.tree.unflatten(self.tree, [next(rest) if x is Shard else x for x in self.static])
        return self.f(*args, **kwargs)

    def __call__(self, *shards: Any) -> Any:
        """The results as a tuple."""
        # Results may be numbers and NumPy arrays too.
        return tuple(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in jax.tree.leaves(self.call(shards)))


class Shard:
    """A placeholder, the class itself, for a shard among the arguments."""


class ShardResults(NamedTuple):
    """The abstract results of a function of shards."""

    shards: Shards  # the shape and dtype of each result
    tree: Any
    has_custom_backward: bool  # whether it contains a `jax.custom_vjp`
    sources: tuple[Dependence, ...]  # the operands that each result depends on


#: JAX's errors about a function of shards that places arrays.
_SPEC: Final = re.compile("with_sharding_constraint|PartitionSpec|NamedSharding")
_PLACEMENT: Final = re.compile(r"with_sharding_constraint|\breshard\b|\beinsum\b")
#: JAX's primitives that place arrays.
_PLACING: Final = {"shard_map", "sharding_constraint", "mesh_cast", "reshard"}


@functools.lru_cache(maxsize=CACHE_SIZE)
def trace_on_shards(fn: UserFn, operands: Shards) -> ShardResults:
    """Traces a function on shards, outside any mesh, so that a collective in it is an error."""
    jaxpr, outs = _traced(fn, fn.call, operands, "")
    leaves, tree = jax.tree.flatten(outs)
    shards = tuple((tuple(map(int, o.shape)), dtypes.from_numpy(o.dtype)) for o in leaves)
    custom = _has_custom_derivative(jaxpr_of(jaxpr))
    active, float_results = (
        [not dtypes.is_key(dtype) and jnp.issubdtype(dtypes.to_numpy(dtype), jnp.inexact) for _, dtype in each]
        for each in (operands, shards)
    )
    if custom and any(active) and any(float_results):  # check the backward pass, which the trace does not contain
        _traced_backward(fn, operands, shards, active, float_results)
    has_custom_backward = custom and _has_custom_derivative(jaxpr_of(jaxpr), "custom_vjp_call")
    sources = [Dependence() if 0 in shape else d for (shape, _), d in zip(shards, dependences(jaxpr), strict=True)]
    return ShardResults(shards, tree, has_custom_backward, tuple(sources))


def _traced_backward(
    fn: UserFn, operands: Shards, results: Shards, active: Sequence[bool], live: Sequence[bool]
) -> Any:
    """The jaxpr of the backward pass, for operands and cotangents of the ``live`` results."""

    def backward(shards: Sequence[Any]) -> Any:
        _, pull = vjp_of(fn, active, live, shards[: len(active)])
        return pull(tuple(shards[len(active) :]))

    cts = tuple(shard for shard, is_live in zip(results, live, strict=True) if is_live)
    return _traced(fn, backward, (*operands, *cts), "the backward pass of ")[0]


@functools.lru_cache(maxsize=CACHE_SIZE)
def gradients_of(
    fn: UserFn, operands: Shards, active: tuple[bool, ...], live: tuple[bool, ...]
) -> Sequence[Dependence] | None:
    """The dependences of the gradient of each active operand; None if JAX cannot differentiate the function."""
    try:
        return dependences(_traced_backward(fn, operands, trace_on_shards(fn, operands).shards, active, live))
    except (NotImplementedError, ShardingTypeError):
        return None


def vjp_of(fn: ShardFn, active: Sequence[bool], live: Sequence[bool], shards: Sequence[Any]) -> tuple[Any, Any]:
    """The results, and the vjp function from cotangents of the ``live`` results to those of the active operands.

    A result is live if its cotangent may be nonzero, an operand active if it is differentiated.
    """

    def of_active(*values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        rest = iter(values)
        outs = as_tuple(fn(*[next(rest) if a else x for a, x in zip(active, shards, strict=True)]))
        return tuple(out for out, is_live in zip(outs, live, strict=True) if is_live), outs

    _, pull, outs = jax.vjp(of_active, *[x for a, x in zip(active, shards, strict=True) if a], has_aux=True)
    return outs, pull


def structs_of(shards: Shards) -> list[jax.ShapeDtypeStruct]:
    """The shapes, dtypes and sharding of shards, for a trace in the current mesh context."""
    mesh = context_mesh()
    # Without a sharding JAX would move the array to the mesh in context before it combines it with a scalar.
    replicated = None if mesh is None else jax.sharding.NamedSharding(mesh, jax.P())
    return [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype), sharding=replicated) for shape, dtype in shards]


def _traced(fn: UserFn, run: Callable[[Sequence[Any]], Any], operands: Shards, prefix: str) -> tuple[Any, Any]:
    """The jaxpr of a function of shards, outside any mesh; converts JAX's errors.

    ``prefix`` begins their messages: it is empty for the function itself, or "the backward pass of ".
    """
    shards_text = " and ".join(f"{dtype}{list(shape)}" for shape, dtype in operands) or "nothing"
    code = PlainCode(run)

    def plain(*shards: Any) -> Any:
        outs = code(shards)
        _refuse_typed(fn, prefix, jax.tree.leaves(outs))
        return outs

    try:
        with inside_a_device():
            jaxpr, outs = jax.make_jaxpr(plain, return_shape=True)(*structs_of(operands))
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        raise ShardingTypeError(
            f"{prefix}`{fn}` is no function of shards: it uses a mesh axis",
            why=str(error).split(". ")[0].strip(),
            hints=["sh.shard_map takes functions that communicate", "sh.reshard before or after it"],
        ) from None
    except ShardingTypeError:
        raise
    except NotImplementedError as error:
        closed = re.search(r"Closing over inputs to shard_map.*shape (\w+\[[^\]]*\])", str(error))
        if closed is None:
            raise
        raise _captures(fn, prefix, "a traced value", closed[1]) from None
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        refusal = code.refusal_of(error)
        if refusal is None and line_of(error.__traceback__):
            raise
        if _SPEC.search(str(error)):
            match = _PLACEMENT.search(str(error))
            raise _placement_error(fn, prefix, match[0] if match else "a PartitionSpec") from None
        if not isinstance(error, (TypeError, ValueError)):
            raise
        what = f"cannot be applied to shards {shards_text}"
        if refusal is None:
            converted = jax_error(str(fn), what, error)
        else:
            converted = refusal.as_error(map(traced_type, refusal.operands))
            converted.what, converted.why = f"`{fn}` {what}", converted.why or converted.what
        converted.what = prefix + converted.what
        raise converted from shortened(error)
    for x in captured(jaxpr):
        _refuse_captured(fn, prefix, x)
    primitive = _placing_primitive(jaxpr_of(jaxpr))
    if primitive is not None:
        raise _placement_error(fn, prefix, primitive)
    return jaxpr, outs


def _placement_error(fn: UserFn, prefix: str, placing: str) -> ShardingTypeError:
    return ShardingTypeError(
        f"{prefix}`{fn}` is no function of shards: `{placing}` in it says where arrays lie",
        why="a function of shards runs on each device, and sees its own shard only",
        hints=["sh.shard_map takes functions that communicate", "sh.reshard before or after it"],
    )


def _refuse_typed(fn: UserFn, prefix: str, outs: Sequence[Any]) -> None:
    """Refuses typed results."""
    typed = next(filter(is_typed, outs), None)
    if typed is not None:
        raise ShardingTypeError(
            f"{prefix}`{fn}` is no function of shards: it returns a typed value, {jax.typeof(typed)}",
            why="a function of shards is given plain arrays, one device's own parts, and makes such",
            hints=["jax.numpy in it", "no local_map around it: typed ops take typed values as they are"],
        )


def _refuse_captured(fn: UserFn, prefix: str, x: Any) -> None:
    """Refuses to capture typed or traced values, and arrays on several devices."""
    if is_typed(x):
        kind = "a typed value"
    elif isinstance(x, jax.core.Tracer):
        kind = "a traced value"
    elif isinstance(x, jax.Array) and len(x.sharding.device_set) > 1:
        kind = "an array on several devices"
    else:
        return
    raise _captures(fn, prefix, kind, str(jax.typeof(x)))


def _captures(fn: UserFn, prefix: str, kind: str, what: str) -> ShardingTypeError:
    return ShardingTypeError(
        f"{prefix}`{fn}` is no function of shards: it captures {kind}, {what}",
        why="what each device sees of it has no type",
        hints=["pass it as an argument: a function of shards is given its shard", "np.asarray(x) is a constant"],
    )


def _placing_primitive(jaxpr: Any) -> str | None:
    """The name of an equation that shards arrays or communicates, or None."""
    for eqn in equations(jaxpr):
        shardings = [*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ())]
        devices = eqn.params.get("devices", ()) if eqn.primitive.name == "device_put" else ()
        if eqn.primitive.name in _PLACING or any(isinstance(s, jax.sharding.Sharding) for s in (*shardings, *devices)):
            return str(eqn.primitive)
        if any(v.aval.is_high for v in eqn.outvars):  # a typed op
            return str(applied_by(eqn))
    return None


def _has_custom_derivative(jaxpr: Any, kind: tuple[str, ...] | str = ("custom_vjp_call", "custom_jvp_call")) -> bool:
    return any(eqn.primitive.name.startswith(kind) for eqn in equations(jaxpr))


def shards_of(types: Sequence[ShType]) -> Shards:
    """The shapes and dtypes of the shards of these types."""
    return tuple((t.local_shape, t.dtype_name) for t in types)


@dataclass(frozen=True)
class Forward(ShardFn):
    """(operands) -> results and residuals."""

    fn: ShardFn
    active: tuple[bool, ...]
    live: tuple[bool, ...]
    forwarded: tuple[int | None, ...]  # for each residual that is an operand, its index; else None

    def __str__(self) -> str:
        return f"fwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        """The results, then the residuals that are not operands."""
        outs, pull = vjp_of(self.fn, self.active, self.live, shards)
        pairs = zip(jax.tree.leaves(pull), self.forwarded, strict=True)
        return (*outs, *[r for r, operand in pairs if operand is None])


@dataclass(frozen=True)
class Backward(ShardFn):
    """(residuals, cotangents of the ``live`` results) -> cotangents of the active operands."""

    fn: ShardFn
    active: tuple[bool, ...]
    live: tuple[bool, ...]
    operands: Shards
    residuals: int

    def __str__(self) -> str:
        return f"bwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        """The cotangents of the active operands."""
        # The residuals' structure depends on the mesh in context, so it is traced here.
        structures: list[Any] = []

        def traced(*xs: Any) -> None:
            structures.append(jax.tree.structure(vjp_of(self.fn, self.active, self.live, xs)[1]))

        jax.eval_shape(traced, *structs_of(self.operands))
        pull = jax.tree.unflatten(structures[0], shards[: self.residuals])
        return tuple(pull(tuple(shards[self.residuals :])))


@functools.lru_cache(maxsize=CACHE_SIZE)
def _residuals_of(fn: ShardFn, active: tuple[bool, ...], live: tuple[bool, ...], operands: Shards) -> tuple[Any, ...]:
    """For each residual, the index of the operand that it is, or its shape and dtype."""
    residuals = jax.make_jaxpr(lambda *xs: jax.tree.leaves(vjp_of(fn, active, live, xs)[1]))
    jaxpr = jaxpr_of(residuals(*structs_of(operands)))
    saved: list[Any] = []
    for v in jaxpr.outvars:
        operands_in = [i for i, invar in enumerate(jaxpr.invars) if invar is v]
        saved.append(operands_in[0] if operands_in else (tuple(v.aval.shape), dtypes.from_numpy(v.aval.dtype)))
    return tuple(saved)


_ops_with_residuals: Bounded[Callable[..., Any]] = Bounded()


def with_residuals(
    fn: UserFn, operands: tuple[ShType, ...], results: tuple[ShType, ...], active: tuple[bool, ...]
) -> Callable[..., Any]:
    """The op as a `jax.custom_vjp` that saves residuals, and recomputes nothing."""
    key = (fn, tuple(t.exact for t in operands), tuple(t.exact for t in results), active)
    return _ops_with_residuals.get_or_create(key, lambda: _op_with_residuals(fn, operands, results, active))


def _op_with_residuals(
    fn: UserFn, operands: tuple[ShType, ...], results: tuple[ShType, ...], active: tuple[bool, ...]
) -> Callable[..., Any]:
    live = tuple(t.differentiable for t in results)
    mesh = operands[0].mesh

    def op(*xs: Any) -> tuple[Any, ...]:
        return tuple(local_all(fn, *xs, out=results))

    def forward(*xs: Any) -> tuple[tuple[Any, ...], list[Any]]:
        # Computed here, since under `vmap` the operands have the types of one slice.
        saved = _residuals_of(fn, active, live, shards_of(operands))
        # Residuals vary over all axes: this is always sound, since they have no global meaning.
        varying = dict.fromkeys(mesh.axis_names, State.VARYING)
        types = [as_jax_type(ShType(mesh, s[1], map(Dim, s[0]), varying)) for s in saved if not isinstance(s, int)]
        ran = Forward(fn, active, live, tuple(s if isinstance(s, int) else None for s in saved))
        outs = local_all(ran, *xs, out=(*results, *types))
        rest = iter(outs[len(results) :])
        return tuple(outs[: len(results)]), [xs[s] if isinstance(s, int) else next(rest) for s in saved]

    def backward(residuals: list[Any], cts: Sequence[Any]) -> tuple[Any, ...]:
        pull = Backward(fn, active, live, shards_of(operands), len(residuals))
        out = tuple(t.cotangent() for t, a in zip(operands, active, strict=True) if a)
        live_cts = [ct for ct, is_live in zip(cts, live, strict=True) if is_live]
        cts_in = iter(local_all(pull, *residuals, *live_cts, out=out))
        return tuple(next(cts_in) if a else None for a in active)

    op.__name__ = op.__qualname__ = fn.name
    differentiable = jax.custom_vjp(op)
    differentiable.defvjp(forward, backward)
    return differentiable
