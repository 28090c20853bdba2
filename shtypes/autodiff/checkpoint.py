"""Recomputation: `checkpoint`, names and policies, as in JAX, where the saved values may be typed."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar, cast

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name as name_plain
from jax.extend.core import Primitive

from shtypes.context.calls import check_function
from shtypes.context.function import Function
from shtypes.core.functions.basics import IDENTITY, Identity
from shtypes.core.functions.derivatives import Vmap
from shtypes.core.functions.products import Einsum
from shtypes.core.localfn import LocalFn
from shtypes.errors import ShardingTypeError
from shtypes.ops.collective_matmul.primitives import Overlapped
from shtypes.ops.dispatch import is_number, is_typed
from shtypes.primitives.local import Local, local
from shtypes.scopes.comm import Recomputed, under

P = ParamSpec("P")
T = TypeVar("T")

Policy = Callable[..., Any]


@dataclass(frozen=True)
class Named(Identity):
    """The operand, under a name that policies know."""

    name: str = ""

    def __str__(self) -> str:
        return f"name[{self.name}]"

    @property
    def linear_part(self) -> LocalFn | None:
        """The operand without the name: tangents and cotangents have none."""
        return IDENTITY


def checkpoint(
    fun: Callable[P, T],
    *,
    policy: Policy | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
) -> Function[P, T]:
    """The same function, recomputed in the backward pass instead of kept, as `jax.checkpoint`.

    Args:
        fun: A function of any trees of typed values and plain arrays.
        policy: What to keep: one of `checkpoint_policies`, or any function of the kind that JAX takes.
        prevent_cse: Whether the compiler is kept from undoing it; False is right inside `scan`.
        static_argnums: Arguments that are not arrays.

    Communicates: what ``fun`` does, and in the backward pass again what of it is recomputed.
    """
    check_function("checkpoint", fun)
    check_function("checkpoint", policy or fun, "the policy")
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    again = functools.wraps(fun)(under(None, fun, Recomputed()))
    recomputed = jax.checkpoint(again, policy=_typed_policy(policy), prevent_cse=prevent_cse, static_argnums=numbers)
    return cast("Function[P, T]", recomputed)


def checkpoint_name(x: Any, name: str) -> Any:
    """The value under a name that the policies ``save_only_these_names`` and its kind know.

    Args:
        x: A tree of typed values and plain arrays.
        name: The name.
    """
    given: Any = name
    if not isinstance(given, str):
        raise ShardingTypeError(f"`checkpoint_name` takes a name, not {given!r:.60}")

    def named(leaf: Any) -> Any:
        if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and not is_typed(leaf) and not is_number(leaf):
            raise ShardingTypeError(f"`checkpoint_name` names arrays, not {leaf!r:.60}")
        return local(Named(name=name), leaf, out=jax.typeof(leaf)) if is_typed(leaf) else name_plain(leaf, name)

    return jax.tree.map(named, x)


# policies


def _function_of(params: dict[str, Any]) -> LocalFn | None:
    """The local function of a typed equation, mapped or not."""
    applied = params.get("operation")
    fn = applied.fn if isinstance(applied, Local) else None
    while isinstance(fn, Vmap):
        fn = fn.fn
    return fn


def _name_of(prim: Any, params: dict[str, Any]) -> str | None:
    """The name that an equation gives, typed or plain."""
    fn = _function_of(params)
    if fn is not None:
        return fn.name if isinstance(fn, Named) else None
    return params.get("name") if str(prim) == "name" else None


def _contraction(params: dict[str, Any]) -> str | None:
    """The equation of a typed contraction."""
    applied = params.get("operation")
    if isinstance(applied, Overlapped):
        return applied.equations[0]
    fn = _function_of(params)
    return fn.equation if isinstance(fn, Einsum) and "," in fn.equation else None


def everything_saveable(prim: Any, *_: Any, **__: Any) -> bool:
    """Keeps every value: nothing is recomputed."""
    return True


def nothing_saveable(prim: Any, *_: Any, **__: Any) -> bool:
    """Keeps the arguments only."""
    return False


def dots_saveable(prim: Any, *args: Any, **params: Any) -> Any:
    """Keeps the results of contractions: einsum, matmul and their kind, and JAX's dots."""
    return _contraction(params) is not None or jax.checkpoint_policies.dots_saveable(prim, *args, **params)


def dots_with_no_batch_dims_saveable(prim: Any, *args: Any, **params: Any) -> Any:
    """Keeps the results of contractions without batch dims: products with weights, but not attention scores."""
    equation = _contraction(params)
    if equation is None:
        return jax.checkpoint_policies.dots_with_no_batch_dims_saveable(prim, *args, **params)
    inputs, output = equation.split("->")
    lhs, rhs = inputs.split(",")
    return not set(lhs) & set(rhs) & set(output)


def save_only_these_names(*names: str) -> Policy:
    """Keeps what `checkpoint_name` gave one of the names."""
    return lambda prim, *_, **params: _name_of(prim, params) in names


def save_any_names_but_these(*names: str) -> Policy:
    """Keeps what `checkpoint_name` gave any other name."""
    return lambda prim, *_, **params: _name_of(prim, params) not in (None, *names)


def save_anything_except_these_names(*names: str) -> Policy:
    """Keeps every value but what `checkpoint_name` gave one of the names."""
    return lambda prim, *_, **params: _name_of(prim, params) not in names


def save_from_both_policies(first: Policy, second: Policy) -> Policy:
    """Keeps what either policy keeps."""
    one, other = _TYPED.get(first, first), _TYPED.get(second, second)
    return lambda prim, *args, **params: one(prim, *args, **params) or other(prim, *args, **params)


#: What values `checkpoint` keeps for the backward pass; under JAX's names, for typed and plain values alike.
checkpoint_policies: Final = types.SimpleNamespace(
    everything_saveable=everything_saveable,
    nothing_saveable=nothing_saveable,
    dots_saveable=dots_saveable,
    checkpoint_dots=dots_saveable,
    dots_with_no_batch_dims_saveable=dots_with_no_batch_dims_saveable,
    checkpoint_dots_with_no_batch_dims=dots_with_no_batch_dims_saveable,
    save_only_these_names=save_only_these_names,
    save_any_names_but_these=save_any_names_but_these,
    save_anything_except_these_names=save_anything_except_these_names,
    save_from_both_policies=save_from_both_policies,
)

#: JAX's own policies that would not see a typed contraction, and what stands for them.
_TYPED: Final[dict[Any, Policy]] = {
    jax.checkpoint_policies.dots_saveable: dots_saveable,
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable: dots_with_no_batch_dims_saveable,
}


def _typed_policy(policy: Policy | None) -> Policy | None:
    """The policy as JAX is to ask it; it is told what an operation of ours is called, as of JAX's primitives."""
    if policy is None:
        return None
    asked = _TYPED.get(policy, policy)

    def by_name(prim: Any, *args: Any, **params: Any) -> Any:
        applied = params.get("operation")
        return asked(prim if applied is None else Primitive(str(applied)), *args, **params)

    return by_name
