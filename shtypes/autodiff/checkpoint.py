"""`checkpoint`, `checkpoint_name` and policies, as in JAX, for typed and plain values."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar, cast

import jax
from jax.ad_checkpoint import checkpoint_name as name_plain
from jax.extend.core import Primitive

from shtypes._compat.derivative_rules import name_p, offloads
from shtypes.context.function import Function
from shtypes.context.signature_errors import as_numbers, check_function
from shtypes.core.derived_fns import Vmap
from shtypes.core.dim_fns import Einsum
from shtypes.core.elementwise_fns import Identity
from shtypes.core.local import Local, local
from shtypes.core.shard_fn import ShardFn
from shtypes.dispatch.apply import is_array, is_number, is_typed
from shtypes.errors import ShardingTypeError
from shtypes.ops.collective_matmul.primitives import Overlapped
from shtypes.scopes.comm import under_rules
from shtypes.scopes.scope_rules import Recomputed

P = ParamSpec("P")
T = TypeVar("T")

Policy = Callable[..., Any]


@dataclass(frozen=True)
class Named(Identity):
    """The identity, which names its operand for policies."""

    name: str = ""

    def __str__(self) -> str:
        return f"name[{self.name}]"


def checkpoint(
    fun: Callable[P, T],
    *,
    policy: Policy | None = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
) -> Function[P, T]:
    """Recomputes the intermediate values of a function in the backward pass, as `jax.checkpoint`.

    Args:
        fun: A function of pytrees of typed values and plain arrays.
        policy: Which values to save: one of `checkpoint_policies`, or a function like JAX's.
        prevent_cse: Whether to prevent the compiler from undoing it; False is right inside `scan`.
        static_argnums: The positions of arguments that are not arrays.

    Communicates: as ``fun`` does, and in the backward pass again for what is recomputed.
    """
    check_function("checkpoint", fun)
    check_function("checkpoint", policy or fun, "the policy")
    static = as_numbers("checkpoint", "static_argnums", static_argnums)
    run = functools.wraps(fun)(under_rules(None, fun, Recomputed()))
    recomputed = jax.checkpoint(run, policy=for_typed(policy), prevent_cse=prevent_cse, static_argnums=static)
    return cast("Function[P, T]", recomputed)


def checkpoint_name(x: Any, name: str) -> Any:
    """Names a value for policies such as ``save_only_these_names``.

    Args:
        x: A pytree of typed values and plain arrays.
        name: The name.
    """
    passed: Any = name
    if not isinstance(passed, str):
        raise ShardingTypeError(f"`checkpoint_name` takes a name, not {passed!r:.60}")

    def named(leaf: Any) -> Any:
        if not is_array(leaf) and not is_number(leaf):
            raise ShardingTypeError(f"`checkpoint_name` names arrays, not {leaf!r:.60}")
        return local(Named(name=name), leaf, out=jax.typeof(leaf)) if is_typed(leaf) else name_plain(leaf, name)

    return jax.tree.map(named, x)


# policies


def function_of(params: dict[str, Any]) -> ShardFn | None:
    """The function of shards of a typed equation, without `Vmap`."""
    applied = params.get("operation")
    fn = applied.fn if isinstance(applied, Local) else None
    while isinstance(fn, Vmap):
        fn = fn.fn
    return fn


def contraction(params: dict[str, Any]) -> str | None:
    """The einsum equation of a typed contraction of two operands; None for other equations."""
    applied = params.get("operation")
    if isinstance(applied, Overlapped):
        return applied.equations[0]
    fn = function_of(params)
    return fn.equation if isinstance(fn, Einsum) and "," in fn.equation else None


def _dimension_numbers(equation: str) -> Any:
    """`jax.lax.dot_general`'s dimension numbers of a contraction: contracted dims and batch dims."""
    inputs, output = equation.split("->")
    lhs, rhs = inputs.split(",")
    shared = [label for label in lhs if label in rhs]
    dims = [
        tuple(
            tuple(operand.index(label) for label in shared if (label in output) is in_result) for operand in (lhs, rhs)
        )
        for in_result in (False, True)
    ]
    return tuple(dims)


class ForTyped:
    """Applies a policy to typed equations.

    The policy gets named values and contractions as JAX's `name` and `dot_general`, and any other operation as a
    primitive of its name.
    """

    knows_types = True

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.policy == other.policy

    def __hash__(self) -> int:
        return hash(self.policy)

    def __call__(self, prim: Any, *args: Any, **params: Any) -> Any:
        """The policy's decision on the results of an equation."""
        applied = params.get("operation")
        if applied is None:
            return self.policy(prim, *args, **params)
        fn, equation = function_of(params), contraction(params)
        if isinstance(fn, Named):
            decision = self.policy(name_p, *args, name=fn.name)
        elif equation is not None:
            numbers = _dimension_numbers(equation)
            dot = {"precision": None, "preferred_element_type": None, "out_sharding": None}
            decision = self.policy(jax.lax.dot_general_p, *args, dimension_numbers=numbers, **dot)
        else:
            decision = self.policy(Primitive(str(applied)), *args, **params)
        return refuse_offload(decision)


def refuse_offload(decision: Any) -> Any:
    """Refuses a policy's decision to offload; returns others."""
    if offloads(decision):
        raise ShardingTypeError(
            "a policy of `checkpoint` offloads a typed value",
            why="a type says how a value lies on the devices, and they have one memory in it",
            hints=["sh.checkpoint_policies.save_only_these_names(...) keeps it where it is"],
        )
    return decision


def for_typed(policy: Policy | None) -> Policy | None:
    """Wraps a policy for programs with typed values."""
    return ForTyped(policy) if policy and not getattr(policy, "knows_types", False) else policy


def save_anything_except_these_names(*names: str) -> Policy:
    """Saves all values but those with one of the names."""
    return lambda prim, *_, **params: prim is not name_p or params["name"] not in names


#: JAX's policies of `checkpoint`, for typed and plain values.
checkpoint_policies: Final = types.SimpleNamespace(
    **{
        **vars(jax.checkpoint_policies),
        "save_anything_except_these_names": save_anything_except_these_names,
    }
)
