"""The program that a listing is of: a function, and with ``grad`` its backward pass from given cotangents on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from shtypes.analysis.assertions import has_gradient, zero_cotangent
from shtypes.analysis.subject import Subject, is_array


class Trace(NamedTuple):
    """A traced program.

    Attributes:
        jaxpr: It.
        arguments: The names of its arguments.
        results: The names of its results.
        seeds: How many of the last results but the gradients are the cotangents that the backward pass starts from.
        sources: For each of them, which result it is the cotangent of.
        differentiated: For each gradient, which argument it is of; these are the last results.
    """

    jaxpr: Any
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sources: tuple[int, ...] = ()
    differentiated: tuple[int, ...] = ()


def trace(about: Subject, *, grad: bool) -> Trace:
    """Traces a function, without its backward pass or with it.

    Args:
        about: The function and its arguments; what is no array is a constant.
        grad: Whether to trace the backward pass too, to every argument that has a gradient.
    """
    f = about.function
    names = argument_names(f, about.args, about.kwargs)
    leaves, tree = jax.tree.flatten((about.args, about.kwargs))
    dynamic = [i for i, x in enumerate(leaves) if is_array(x)]
    chosen = [k for k, i in enumerate(dynamic) if has_gradient(leaves[i])] if grad else []
    found: dict[str, Any] = {}

    def call(values: list[Any]) -> Any:
        merged = list(leaves)
        for i, value in zip(dynamic, values, strict=True):
            merged[i] = value
        inner_args, inner_kwargs = jax.tree.unflatten(tree, merged)
        return f(*inner_args, **inner_kwargs)

    def forward(*values: Any) -> Any:
        outs = call(list(values))
        found["results"] = _paths(outs)
        return jax.tree.leaves(outs)

    def both(*values: Any) -> Any:
        def of_chosen(*own: Any) -> Any:
            merged = list(values)
            for k, value in zip(chosen, own, strict=True):
                merged[k] = value
            outs = call(merged)
            found["results"] = _paths(outs)
            flat = jax.tree.leaves(outs)
            smooth = [has_gradient(x) for x in flat]
            found["smooth"] = smooth
            ours = [x for x, s in zip(flat, smooth, strict=True) if s]
            return ours, [x for x, s in zip(flat, smooth, strict=True) if not s]

        ours, pull, others = jax.vjp(of_chosen, *[values[k] for k in chosen], has_aux=True)
        rest, own = iter(others), iter(ours)
        outs = [next(own) if s else next(rest) for s in found["smooth"]]
        seeds = [zero_cotangent(x) for x in ours]
        return outs, seeds, list(pull(seeds))

    jaxpr = jax.make_jaxpr(both if grad else forward)(*[leaves[i] for i in dynamic])
    arguments = tuple(names[i] for i in dynamic)
    smooth = [i for i, s in enumerate(found.get("smooth", ())) if s]
    return Trace(jaxpr, arguments, tuple(found["results"]), tuple(smooth), tuple(chosen))


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
    return [f"{root}{path}" for root, tree in named for path in _paths(tree)]


def _paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
