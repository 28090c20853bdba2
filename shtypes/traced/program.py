"""The traced program of a call, as `jax.jit` or `sh.jit` compiles it, for all reports."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shtypes.context.signature_errors import name_of
from shtypes.context.user_line import wrap_jax_errors
from shtypes.core.array import Array
from shtypes.core.local import zeros_of
from shtypes.core.reshard import resharded
from shtypes.core.shard_fn import is_inexact
from shtypes.traced.merging import merged
from shtypes.types import ShType, State


class Jitted:
    """The base class of `sh.jit`'s functions."""

    @property
    def merges(self) -> bool:
        """Whether its reshards are merged when it is compiled."""
        raise NotImplementedError


def is_merged(f: Any) -> bool:
    """Whether a function, also as a method or partial, is compiled by `sh.jit`, which merges reshards."""
    while isinstance(f, (types.MethodType, functools.partial)):
        f = f.__func__ if isinstance(f, types.MethodType) else f.func
    return isinstance(f, Jitted) and f.merges


def program_of(f: Callable[..., Any], args: Any, kwargs: Any, *, merges: bool = False) -> tuple[Any, Any]:
    """The typed program of a call as compiled, by `sh.jit` if ``merges``, else by `jax.jit`, and its results' types.

    Its inputs are in the order of the arguments; non-arrays (numbers, strings, None) are passed as they are.
    """
    arrays, rebuild = split((args, kwargs), is_array)
    results: list[Any] = []

    def run(*values: Any) -> Any:
        args, kwargs = rebuild(values)
        leaves, *results[:] = split(f(*args, **kwargs), is_array)
        return leaves

    run.__name__ = run.__qualname__ = name_of(f) or "f"
    program = jax.make_jaxpr(run)(*arrays)
    return merged(program) if merges else program, results[0](program.out_avals)


def split(tree: Any, keep: Callable[[Any], bool]) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves for which ``keep`` is true, and a function that rebuilds the pytree with replacements for them."""
    leaves, structure = jax.tree.flatten(tree)
    chosen = list(map(keep, leaves))
    fixed = [None if k else x for x, k in zip(leaves, chosen, strict=True)]  # must not keep traced leaves alive

    def rebuild(values: Iterable[Any]) -> Any:
        rest = iter(values)
        return jax.tree.unflatten(structure, [next(rest) if k else x for x, k in zip(fixed, chosen, strict=True)])

    return [x for x, k in zip(leaves, chosen, strict=True) if k], rebuild


def leaves_by_path(tree: Any) -> list[tuple[str, Any]]:
    """The leaves with their paths, as in messages."""
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]]


def leaf_paths(tree: Any) -> list[str]:
    """The paths of the leaves, as in messages."""
    return [path for path, _ in leaves_by_path(tree)]


def zero_cotangent(x: Any) -> Any:
    """A zero of the cotangent type of a value."""
    return zeros_of(jax.typeof(x).cotangent()) if isinstance(x, Array) else jnp.zeros_like(x)


def zero_seed(x: Any) -> Any:
    """Like `zero_cotangent`; for a scalar, a replicated zero cast to that type, as for the seed of a loss."""
    if not isinstance(x, Array) or jax.typeof(x).dims:
        return zero_cotangent(x)
    t: ShType = jax.typeof(x).cotangent()
    return resharded(zeros_of(t.with_axes(t.axes(State.UNREDUCED), State.REDUCED)), t)


def with_gradient(f: Callable[..., Any], cotangent: Callable[[Any], Any] = zero_seed) -> Callable[..., Any]:
    """A function that returns the results of ``f`` and the cotangents of its differentiated arguments."""

    def both(*args: Any, **kwargs: Any) -> Any:
        results, _, cotangents = backward_pass(f, args, kwargs, cotangent)
        return results, cotangents

    return both


def backward_pass(
    f: Callable[..., Any], args: Any, kwargs: Any, cotangent: Callable[[Any], Any]
) -> tuple[list[Any], list[Any], list[Any]]:
    """Leaves: the results, ``cotangent`` of each differentiable one, and the cotangents of differentiable arguments."""
    with wrap_jax_errors(name_of(f) or "f", "has no gradient"):
        results, pull = linearized(f, args, kwargs)
        with jax.named_scope("transpose()"):  # JAX adds the seeds of a value that is returned twice outside of it
            seeds = [cotangent(x) for x in results if is_inexact(x)]
            return results, seeds, pull(seeds)


def linearized(f: Callable[..., Any], args: Any, kwargs: Any) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
    """The leaves of the results, and the function from cotangents of the differentiable ones to those of arguments."""
    primals, rebuild = split((args, kwargs), is_differentiated)
    differentiable: list[bool] = []

    def of_primals(*values: Any) -> Any:
        inner_args, inner_kwargs = rebuild(values)
        results = jax.tree.leaves(f(*inner_args, **inner_kwargs))
        differentiable[:] = map(is_inexact, results)
        parts = list(zip(results, differentiable, strict=True))
        return [r for r, d in parts if d], [r for r, d in parts if not d]

    results, pull, aux = jax.vjp(of_primals, *primals, has_aux=True)
    left, others = iter(results), iter(aux)
    return [next(left) if d else next(others) for d in differentiable], lambda cotangents: list(pull(cotangents))


def is_differentiated(x: Any) -> bool:
    """Whether an argument gets a gradient; Python's numbers are constants."""
    return is_array(x) and is_inexact(x)


def is_array(x: Any) -> bool:
    """Whether a leaf is traced: a typed value or any other array, but not a number."""
    return isinstance(x, (Array, jax.Array, np.ndarray, jax.ShapeDtypeStruct, jax.core.Tracer))
