"""The program that a listing is of: a function, and with ``grad`` its backward pass from given cotangents on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from shtypes.analysis.target import Target
from shtypes.traced.gradient import has_gradient, is_array, leaf_paths, split, zero_seed


class TracedProgram(NamedTuple):
    """A traced program."""

    jaxpr: Any
    arguments: tuple[str, ...]  # the names of its arguments
    results: tuple[str, ...]  # the names of its results
    sources: tuple[int, ...] = ()  # for each cotangent that the backward pass starts from, which result it is of
    differentiated: tuple[int, ...] = ()  # for each gradient, which argument it is of; these are the last results


def trace(about: Target, *, grad: bool) -> TracedProgram:
    """Traces a function, without its backward pass or with that to every argument that has a gradient."""
    f = about.function
    given = (about.args, about.kwargs)
    arrays, again = split(given, is_array)
    chosen = tuple(k for k, x in enumerate(arrays) if has_gradient(x)) if grad else ()
    results: list[str] = []
    smooth: list[bool] = []

    def forward(*values: Any) -> list[Any]:
        args, kwargs = again(values)
        outs = f(*args, **kwargs)
        results[:] = leaf_paths(outs)
        return jax.tree.leaves(outs)

    def both(*values: Any) -> Any:
        own, merged = split(values, has_gradient)

        def of_own(*own: Any) -> Any:
            flat = forward(*merged(own))
            smooth[:] = map(has_gradient, flat)
            pairs = list(zip(flat, smooth, strict=True))
            return [x for x, s in pairs if s], [x for x, s in pairs if not s]

        ours, pull, others = jax.vjp(of_own, *own, has_aux=True)
        left, rest = iter(ours), iter(others)
        seeds = list(map(zero_seed, ours))
        return [next(left) if s else next(rest) for s in smooth], seeds, list(pull(seeds))

    jaxpr = jax.make_jaxpr(both if grad else forward)(*arrays)
    named = zip(argument_names(f, *given), jax.tree.leaves(given), strict=True)
    arguments = tuple(name for name, x in named if is_array(x))
    return TracedProgram(jaxpr, arguments, tuple(results), tuple(i for i, s in enumerate(smooth) if s), chosen)


def argument_names(f: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The names of the leaves of a function's arguments: the parameters', with the paths inside them."""
    try:
        bound = inspect.signature(f).bind_partial(*args)
    except (TypeError, ValueError):
        roots = [f"argument_{i}" for i in range(len(args))]
    else:
        roots = []
        for parameter, value in bound.arguments.items():
            variadic = bound.signature.parameters[parameter].kind is inspect.Parameter.VAR_POSITIONAL
            roots += [f"{parameter}[{i}]" for i in range(len(value))] if variadic else [parameter]
    named = [*zip(roots, args, strict=True), *sorted(kwargs.items())]
    return [f"{root}{path}" for root, tree in named for path in leaf_paths(tree)]
