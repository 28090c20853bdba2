"""`local_map`: any JAX function of shards as a typed op, with result types that its user claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from shtypes import dtypes
from shtypes._compat import captured, inner_jaxprs, jaxpr_of
from shtypes.array import _as_type
from shtypes.errors import ShardingTypeError
from shtypes.hitype import hi
from shtypes.localfn import LocalFn, as_tuple, tell_apart
from shtypes.mesh import Mesh
from shtypes.notation.syntax import read_syntax
from shtypes.notation.target import Spec
from shtypes.ops.dispatch import cast, is_typed, lift, located
from shtypes.ops.rules.claims import claimed
from shtypes.ops.rules.typing import Typing
from shtypes.primitives import local_all
from shtypes.transforms import stop_gradient
from shtypes.types import Dim, ShType, State
from shtypes.where import public

Residuals = Literal["auto", "save", "recompute"]
#: What determines the shapes of a call: the local shape and dtype of each operand.
Shards = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class UserFn(LocalFn):
    """A user's function, with the arguments that are no arrays in their places."""

    f: Callable[..., Any]
    name: str
    tree: Any
    fixed: tuple[Any, ...] = field(compare=False)  # for each leaf of the arguments, a static value or `_SHARD`
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tell_apart(self, *[x for x in self.fixed if _is_number(x)])
        object.__setattr__(self, "same", (self.same, tuple(None if _is_number(x) else x for x in self.fixed)))

    def __str__(self) -> str:
        return self.name

    def call(self, shards: Sequence[Any]) -> Any:
        """The results in the user's structure."""
        rest = iter(shards)
        args, kwargs = jax.tree.unflatten(self.tree, [next(rest) if x is _SHARD else x for x in self.fixed])
        return self.f(*args, **kwargs)

    def __call__(self, *shards: Any) -> Any:
        # Results may be numbers and NumPy arrays too.
        return tuple(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in jax.tree.leaves(self.call(shards)))


class _Shard:
    """Marks the place of a shard among the arguments."""

    def __repr__(self) -> str:
        return "a shard"


_SHARD = _Shard()


def _is_number(x: Any) -> bool:
    return isinstance(x, (bool, int, float, complex))


class Made(NamedTuple):
    """What a function makes of shards.

    Attributes:
        shards: The shape and dtype of each result.
        tree: The structure in which it gives them.
        has_own_backward: Whether a `jax.custom_vjp` is somewhere in it.
    """

    shards: Shards
    tree: Any
    has_own_backward: bool


#: JAX's primitives that place arrays.
_PLACING: Final = {"shard_map", "sharding_constraint", "mesh_cast", "reshard"}


@functools.cache
def made(fn: UserFn, operands: Shards) -> Made:
    """Traces a function on shards, outside any mesh: what communicates has no axis to do it over.

    Raises:
        ShardingTypeError: it communicates, or does not take these shards.
    """
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    given = " and ".join(f"{dtype}{list(shape)}" for shape, dtype in operands) or "nothing"
    try:
        jaxpr, outs = jax.make_jaxpr(lambda *shards: fn.call(shards), return_shape=True)(*structs)
    except NameError as error:
        if "unbound axis name" not in str(error):
            raise
        raise ShardingTypeError(
            f"`{fn}` is no function of shards: it uses a mesh axis",
            why=str(error).split(". ")[0].strip(),
            hints=["sh.shard_map takes functions that communicate", "sh.reshard before or after it"],
        ) from None
    except ShardingTypeError:
        raise
    except (TypeError, ValueError) as error:
        raise ShardingTypeError(
            f"`{fn}` cannot be applied to shards {given}", why=str(error).strip().split("\n")[0]
        ) from error
    held = next((x for x in captured(jaxpr) if _is_sharded(x)), None)
    if held is not None:
        raise ShardingTypeError(
            f"`{fn}` is no function of shards: it captures a sharded array, {jax.typeof(held)}",
            why="it would see all of it on each device",
            hints=["pass it as an argument: a function of shards is given its shard"],
        )
    placing = _placing(jaxpr_of(jaxpr))
    if placing is not None:
        raise ShardingTypeError(
            f"`{fn}` is no function of shards: `{placing}` in it says where arrays lie",
            why="a function of shards runs on each device, and sees its own shard only",
            hints=["sh.shard_map takes functions that communicate", "sh.reshard before or after it"],
        )
    leaves, tree = jax.tree.flatten(outs)
    shards = tuple((tuple(map(int, o.shape)), dtypes.from_numpy(o.dtype)) for o in leaves)
    return Made(shards, tree, _has_own_backward(jaxpr_of(jaxpr)))


def _is_sharded(x: Any) -> bool:
    return is_typed(x) or (isinstance(x, jax.Array) and not x.sharding.is_fully_replicated)


def _placing(jaxpr: Any) -> str | None:
    """The name of an equation that places arrays or reaches other devices, if there is one."""
    for eqn in jaxpr.eqns:
        shardings = [*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ())]
        devices = eqn.params.get("devices", ()) if eqn.primitive.name == "device_put" else ()
        if eqn.primitive.name in _PLACING or any(isinstance(s, jax.sharding.Sharding) for s in (*shardings, *devices)):
            return str(eqn.primitive)
        inner = next(filter(None, (_placing(jaxpr_of(body)) for body, _ in inner_jaxprs(eqn))), None)
        if inner is not None:
            return inner
    return None


def _has_own_backward(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name.startswith("custom_vjp_call")
        or any(_has_own_backward(jaxpr_of(body)) for body, _ in inner_jaxprs(eqn))
        for eqn in jaxpr.eqns
    )


def _shards(types: Sequence[ShType]) -> Shards:
    return tuple((t.local_shape, t.dtype_name) for t in types)


# the claims


def _claims(name: str, found: Made, out: Any, mesh: Mesh) -> tuple[ShType, ...]:
    """The types that the results are claimed to have; they fit the shards that the function makes."""
    try:
        targets = jax.tree.leaves(jax.tree.broadcast(out, _placeholders(found), is_leaf=_is_target), is_leaf=_is_target)
    except ValueError:
        raise ShardingTypeError(
            f"`out` of `{name}` has another structure than its results",
            why=f"the function returns {found.tree}",
            hints=["one type for each result, in the same structure, or one for all"],
        ) from None
    return tuple(
        _claim(name, i, len(targets), t, shard, mesh)
        for i, (t, shard) in enumerate(zip(targets, found.shards, strict=True))
    )


def _placeholders(found: Made) -> Any:
    return jax.tree.unflatten(found.tree, [0] * len(found.shards))


def _is_target(x: Any) -> bool:
    return isinstance(x, (str, ShType, Spec))


def _claim(name: str, index: int, count: int, target: Any, shard: tuple[tuple[int, ...], str], mesh: Mesh) -> ShType:
    """One claim as a type; sizes that a text or a spec leaves out are those of the shards together."""
    shape, dtype = shard
    what = f"result {index} of `{name}`" if count > 1 else f"the result of `{name}`"
    if not _is_target(target):
        raise ShardingTypeError(f"the type of {what} cannot be {target!r:.60}", hints=['out="f32[8@x, 4]"'])
    try:
        t = target if isinstance(target, ShType) else _completed(target, shape, dtype, mesh)
    except ShardingTypeError as error:
        error.what = f"the type given for {what} does not fit: {error.what}"
        error.why = error.why and f"{error.why}; each device makes {dtype}{list(shape)}"
        raise
    if t.mesh is not mesh:
        raise ShardingTypeError(f"the type of {what}, {t}, is over the mesh ({t.mesh}), and its operands are on {mesh}")
    if t.local_shape != shape or t.dtype_name != dtype:
        raise ShardingTypeError(
            f"{what} does not fit the type {t}",
            why=f"the function makes shards {dtype}{list(shape)}, and those of the type are "
            f"{t.dtype_name}{list(t.local_shape)}",
        )
    return t


def _completed(target: Any, shape: tuple[int, ...], dtype: str, mesh: Mesh) -> ShType:
    """A text or a spec as a type of which each device holds a shard of this shape."""
    axes = _axes(target, len(shape))
    if len(axes) == len(shape):
        shape = tuple(n * mesh.product(over) for n, over in zip(shape, axes, strict=True))
    return _as_type(target, mesh, shape=shape, dtype=dtype)


def _axes(target: Any, rank: int) -> list[tuple[str, ...]]:
    """The axes that a text or a spec gives to each of ``rank`` dims."""
    if not isinstance(target, str):
        entries = [(e,) if isinstance(e, str) else tuple(e or ()) for e in target.partitions]
        return entries + [()] * (rank - len(entries))
    written = read_syntax(target).dims
    if written is None:
        return [()] * rank
    dims: list[tuple[str, ...]] = []
    for d in written:
        dims += [()] * (rank - len(written) + 1) if d.head == "..." else [tuple(a.text for a in d.axes)]
    return dims


# derivatives with saved residuals


@dataclass(frozen=True)
class Forward(LocalFn):
    """A function's results, and what its backward pass needs besides the operands."""

    fn: LocalFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]
    forwarded: tuple[int | None, ...]  # for each residual the operand that it is, or None

    def __str__(self) -> str:
        return f"fwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        outs, residuals, _ = _vjp(self.fn, self.active, self.kept, shards)
        return (*outs, *[r for r, known in zip(residuals, self.forwarded, strict=True) if known is None])


@dataclass(frozen=True)
class Backward(LocalFn):
    """(residuals, cotangents of the kept results) -> cotangents of the active operands."""

    fn: LocalFn
    active: tuple[bool, ...]
    kept: tuple[bool, ...]
    operands: Shards
    residuals: int

    def __str__(self) -> str:
        return f"bwd({self.fn})"

    def __call__(self, *shards: Any) -> Any:
        # The structure of the residuals comes from a trace made here, where the mesh is the one that they are under.
        structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in self.operands]
        pulls: list[Any] = []
        jax.eval_shape(lambda *xs: pulls.append(_vjp(self.fn, self.active, self.kept, xs)[2]), *structs)
        pull = jax.tree.unflatten(pulls[0], shards[: self.residuals])
        return tuple(pull(tuple(shards[self.residuals :])))


def _vjp(
    fn: LocalFn, active: Sequence[bool], kept: Sequence[bool], shards: Sequence[Any]
) -> tuple[tuple[Any, ...], list[Any], Any]:
    """The results, the residuals of the backward pass, and the structure that makes them its function."""

    def of_active(*values: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        rest = iter(values)
        outs = as_tuple(fn(*[next(rest) if a else x for a, x in zip(active, shards, strict=True)]))
        return tuple(o for o, k in zip(outs, kept, strict=True) if k), outs

    _, pull, outs = jax.vjp(of_active, *[x for a, x in zip(active, shards, strict=True) if a], has_aux=True)
    residuals, structure = jax.tree.flatten(pull)
    return outs, residuals, structure


@functools.cache
def _saved(fn: LocalFn, active: tuple[bool, ...], kept: tuple[bool, ...], operands: Shards) -> tuple[Any, ...]:
    """For each residual the operand that it is, or its shape and dtype."""
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    jaxpr = jaxpr_of(jax.make_jaxpr(lambda *xs: _vjp(fn, active, kept, xs)[1])(*structs))
    found: list[Any] = []
    for v in jaxpr.outvars:
        own = [i for i, given in enumerate(jaxpr.invars) if given is v]
        found.append(own[0] if own else (tuple(v.aval.shape), dtypes.from_numpy(v.aval.dtype)))
    return tuple(found)


_saving: dict[Any, Callable[..., Any]] = {}


def _with_residuals(
    fn: UserFn, operands: tuple[ShType, ...], results: tuple[ShType, ...], active: tuple[bool, ...]
) -> Callable[..., Any]:
    """The op as a `jax.custom_vjp` that saves what the backward pass needs, and computes nothing again."""
    key = (fn, tuple(t.exact for t in operands), tuple(t.exact for t in results), active)
    found = _saving.get(key)
    if found is None:
        found = _saving[key] = _made_saving(fn, operands, results, active)
    return found


def _made_saving(
    fn: UserFn, operands: tuple[ShType, ...], results: tuple[ShType, ...], active: tuple[bool, ...]
) -> Callable[..., Any]:
    kept = tuple(t.differentiable for t in results)
    mesh = operands[0].mesh

    def op(*xs: Any) -> tuple[Any, ...]:
        return tuple(local_all(fn, *xs, out=results))

    def forward(*xs: Any) -> tuple[tuple[Any, ...], list[Any]]:
        # Looked up here, since the types of operands under `vmap` are those of one slice.
        saved = _saved(fn, active, kept, _shards(operands))
        # Each device's own, without a global meaning: always sound, and no larger than on one device.
        types = [_varying(mesh, *s) for s in saved if not isinstance(s, int)]
        ran = Forward(fn, active, kept, tuple(s if isinstance(s, int) else None for s in saved))
        outs = local_all(ran, *xs, out=(*results, *types))
        rest = iter(outs[len(results) :])
        return tuple(outs[: len(results)]), [xs[s] if isinstance(s, int) else next(rest) for s in saved]

    def backward(residuals: list[Any], cts: Sequence[Any]) -> tuple[Any, ...]:
        pull = Backward(fn, active, kept, _shards(operands), len(residuals))
        out = tuple(t.cotangent() for t, a in zip(operands, active, strict=True) if a)
        given = [ct for ct, k in zip(cts, kept, strict=True) if k]
        moved = iter(local_all(pull, *residuals, *given, out=out))
        return tuple(next(moved) if a else None for a in active)

    op.__name__ = op.__qualname__ = fn.name
    differentiable = jax.custom_vjp(op)
    differentiable.defvjp(forward, backward)
    return differentiable


def _varying(mesh: Mesh, shape: tuple[int, ...], dtype: str) -> ShType:
    return hi(ShType(mesh, dtype, map(Dim, shape), dict.fromkeys(mesh.axis_names, State.VARYING)))


# the public function


def local_map(
    f: Any = None,
    /,
    *,
    out: Any,
    residuals: Residuals = "auto",
    differentiable: bool = True,
    name: str | None = None,
) -> Any:
    """Any JAX function of shards as a typed op: a kernel with its own backward pass, or what no typed op does.

    ``f`` sees plain arrays, one device's own parts, and does not communicate. What its results mean is your word, by
    their types; `debug_checks` verifies that results claimed to be replicated are equal on all devices. Checked without
    devices: that ``f`` takes the shards, that what it makes fits the claims, that it does not communicate, and that
    gradients can have the types that follow.

    Per axis: where the results are invariant, operands with a gradient are invariant too. Otherwise invariant operands
    are cast to reduced, free forward. An unreduced operand needs unreduced results, and ``f`` to be linear in it.

    Args:
        f: The function. JAX knows it by its identity: define it once, not at each call.
        out: The types of the results, in their structure: for each a text, an `sh.ShType` or a `jax.P`, whose sizes may
            be left out (``"[_@dp, _]"``, ``"[batch@dp, _]"``: those of the shards, times the axes); or a function from
            the operands' types to such types. One type stands for all results.
        residuals: What the backward pass uses. ``"save"``: residuals of the forward pass, as JAX finds them; there is
            no forward-mode derivative then. ``"recompute"``: the operands. By default, they are saved where a
            `jax.custom_vjp` is somewhere in ``f``.
        differentiable: Whether gradients pass. An optimizer's update has none, and then its results may be invariant
            and sharded on one axis.
        name: The name to print; that of ``f`` by default.

    Returns:
        A function of any trees. Typed values and plain arrays (as constants) arrive in ``f`` as shards, all else as it
        is, as a hashable constant. Without ``f``, a decorator.

    Raises:
        ShardingTypeError: (when called) one of the checks fails.

    Communicates: nothing; an invariant operand that is cast communicates backward. Transpose: that of ``f``, on shards;
    by the cotangent map, from the claimed types to those of the operands.

    Example:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> top = sh.local_map(lambda x: jnp.sort(x, axis=1)[:, -2:], out="[_@x, _]", name="top2")
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     top(sh.array([[3.0, 1.0, 2.0], [4.0, 6.0, 5.0]], "f32[2@x, 3]"))
        Array(f32[2@x,2], [[2. 3.]
               [5. 6.]])
    """
    if residuals not in get_args(Residuals):
        known = ", ".join(map(repr, get_args(Residuals)))
        raise ShardingTypeError(f"`residuals` of `local_map` is one of {known}, not {residuals!r}")
    if f is None:
        return lambda function: local_map(
            function, out=out, residuals=residuals, differentiable=differentiable, name=name
        )
    called = name or getattr(f, "__name__", None) or getattr(getattr(f, "func", None), "__name__", type(f).__name__)

    @functools.wraps(f, updated=())
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if not differentiable:
            args, kwargs = jax.tree.map(_stopped, (args, kwargs))
        return _apply(f, str(called), out, residuals, differentiable, args, kwargs)

    return public(mapped)


def _stopped(x: Any) -> Any:
    """Without a gradient, if it is an array."""
    return stop_gradient(x) if is_typed(x) or isinstance(x, jax.Array) else x


def _apply(
    f: Callable[..., Any],
    name: str,
    out: Any,
    residuals: Residuals,
    differentiable: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [is_typed(x) or isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in leaves]
    fn = UserFn(f, name, tree, tuple(_SHARD if a else x for x, a in zip(leaves, arrays, strict=True)))
    try:
        hash(fn)
    except TypeError as error:
        raise ShardingTypeError(
            f"`{name}` or one of its constants has no hash",
            why=str(error),
            hints=["pass arrays as arguments, and a plain function"],
        ) from None
    operands, constants = lift([x for x, a in zip(leaves, arrays, strict=True) if a])
    if not operands:
        raise ShardingTypeError(f"`{name}` needs an operand: without any, nothing says on which mesh it runs")

    def rule(types: tuple[ShType, ...]) -> Typing:
        target = _of_types(out, tree, arrays, leaves, types)
        return claimed(name, types, _claims(name, made(fn, _shards(types)), target, types[0].mesh), constants)

    types = tuple(jax.typeof(x) for x in operands)
    if not differentiable:
        constants = frozenset(range(len(operands)))
    try:
        typing = rule(types)
    except ShardingTypeError as error:  # without fixes: what other shards would mean to the function nobody knows
        raise located(error, name, types) from error.__cause__
    found = made(fn, _shards(typing.operands))
    values = [cast(x, t) for x, t in zip(operands, typing.operands, strict=True)]
    active = tuple(t.differentiable and i not in constants for i, t in enumerate(typing.operands))
    saves = residuals == "save" or (residuals == "auto" and found.has_own_backward)
    if saves and any(active) and any(t.differentiable for t in typing.results):
        outs = _with_residuals(fn, tuple(map(hi, typing.operands)), tuple(map(hi, typing.results)), active)(*values)
    else:
        outs = local_all(fn, *values, out=typing.results)
    return jax.tree.unflatten(found.tree, outs)


def _of_types(out: Any, tree: Any, arrays: Sequence[bool], leaves: Sequence[Any], types: Sequence[ShType]) -> Any:
    """The targets; a function of the operands' types is given them where the operands are."""
    if not callable(out) or _is_target(out):
        return out
    rest = iter(types)
    args, kwargs = jax.tree.unflatten(tree, [next(rest) if a else x for x, a in zip(leaves, arrays, strict=True)])
    return out(*args, **kwargs)


__all__ = ["local_map"]
