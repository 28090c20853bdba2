"""A user's function of shards: what it is applied to, what it makes, and what it must not do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from shtypes import dtypes
from shtypes._compat import captured, inner_jaxprs, jaxpr_of
from shtypes.errors import ShardingTypeError
from shtypes.localfn import LocalFn, tell_apart
from shtypes.ops.dispatch import is_typed
from shtypes.types import ShType

#: What determines the shapes of a call: the local shape and dtype of each operand.
Shards = tuple[tuple[tuple[int, ...], str], ...]


@dataclass(frozen=True)
class UserFn(LocalFn):
    """A user's function, with the arguments that are no arrays in their places."""

    f: Callable[..., Any]
    name: str
    tree: Any
    fixed: tuple[Any, ...] = field(compare=False)  # for each leaf of the arguments, a static value or `SHARD`
    same: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tell_apart(self, *[x for x in self.fixed if _is_number(x)])
        object.__setattr__(self, "same", (self.same, tuple(None if _is_number(x) else x for x in self.fixed)))

    def __str__(self) -> str:
        return self.name

    def call(self, shards: Sequence[Any]) -> Any:
        """The results in the user's structure."""
        rest = iter(shards)
        args, kwargs = jax.tree.unflatten(self.tree, [next(rest) if x is SHARD else x for x in self.fixed])
        return self.f(*args, **kwargs)

    def __call__(self, *shards: Any) -> Any:
        """The results as a tuple."""
        # Results may be numbers and NumPy arrays too.
        return tuple(x if isinstance(x, jax.Array) else jnp.asarray(x) for x in jax.tree.leaves(self.call(shards)))


class _Shard:
    """Marks the place of a shard among the arguments."""

    def __repr__(self) -> str:
        return "a shard"


SHARD = _Shard()


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


def shards_of(types: Sequence[ShType]) -> Shards:
    """What each device has of values of these types."""
    return tuple((t.local_shape, t.dtype_name) for t in types)


__all__ = ["SHARD", "Made", "Shards", "UserFn", "made", "shards_of"]
