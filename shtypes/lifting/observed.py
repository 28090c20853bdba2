"""Values of a plain program that are looked at where it is evaluated, when they have types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import jax
from jax.interpreters import ad, batching, mlir

from shtypes._compat.plain_programs import PlainPrimitive
from shtypes.core.conversion import abstract_array
from shtypes.dispatch.apply import is_typed
from shtypes.evaluation.table import body_row
from shtypes.types import State

T = TypeVar("T")

observed_p: Final = PlainPrimitive("observed")
observed_p.multiple_results = True


def _same(*xs: Any, look: Any, mapped: Any) -> list[Any]:
    return list(xs)


observed_p.def_impl(_same)
observed_p.def_abstract_eval(_same)
mlir.register_lowering(observed_p, lambda _, *xs, look, mapped: list(xs))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    return observed_p.bind(*primals, **params), list(tangents)


def _batch(xs: Sequence[Any], dims: Sequence[Any], *, look: Any, mapped: Any) -> tuple[list[Any], Sequence[Any]]:
    """The dims that `jax.vmap` maps over are left out of what is looked at."""
    both = [m if d is None else (d, *(k + (k >= d) for k in m)) for m, d in zip(mapped, dims, strict=True)]
    return observed_p.bind(*xs, look=look, mapped=tuple(both)), dims


ad.primitive_jvps[observed_p] = _jvp
batching.primitive_batchers[observed_p] = _batch


def observed(look: Callable[[T], object], tree: T) -> T:
    """A pytree of a plain program, which ``look`` is given with typed values where the program is evaluated.

    Args:
        look: What is called with the pytree; what it raises is raised with the line of the program.
        tree: Any pytree; what is no array in it stays as it is.
    """
    leaves, form = jax.tree.flatten(tree)
    places = [i for i, x in enumerate(leaves) if isinstance(x, jax.Array)]

    def given(values: Sequence[Any]) -> object:
        full = list(leaves)
        for i, x in zip(places, values, strict=True):
            full[i] = x
        return look(jax.tree.unflatten(form, full))

    if places:
        outs = observed_p.bind(*[leaves[i] for i in places], look=given, mapped=((),) * len(places))
        for i, x in zip(places, outs, strict=True):
            leaves[i] = x
    same: T = jax.tree.unflatten(form, leaves)
    return same


@body_row("observed")
def _observed(eqn: Any, operands: list[Any]) -> list[Any]:
    eqn.params["look"]([_of_one_step(x, dims) for x, dims in zip(operands, eqn.params["mapped"], strict=True)])
    return operands


def _of_one_step(x: Any, mapped: Sequence[int]) -> Any:
    """A value without the dims that are mapped over: over the axes that shard them each device is at its own steps."""
    if not mapped or not is_typed(x):
        return x
    t = x.type
    for dim in sorted(mapped, reverse=True):
        t = t.with_axes(t.dims[dim].axes, State.VARYING).replace(dims=t.dims[:dim] + t.dims[dim + 1 :])
    return abstract_array(t)


__all__ = ["observed"]
