"""Rewrites programs to compute on arrays before they are raveled: an array sharded on an inner dim does not ravel.

``b = reshape[new_sizes=(32,)] a; c = mul b b; d = reduce_sum[axes=(0,)] c``, in which ``a`` is a matrix, becomes
``c = mul a a; d = reduce_sum[axes=(0, 1)] c``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final

from shtypes._compat.jaxprs import is_literal, jaxpr_of, variable, with_equations
from shtypes.evaluation.rows.elementwise import acts_per_element

_REDUCTIONS: Final = frozenset(f"reduce_{name}" for name in ("sum", "max", "min", "prod", "and", "or", "xor"))
#: Dimension numbers of `dot_general`.
_DOT_OF_VECTORS: Final = (((0,), (0,)), ((), ()))
_TIMES_SCALAR: Final = (((), ()), ((), ()))


@functools.lru_cache(maxsize=256)
def undo_ravel(jaxpr: Any) -> Any:
    """Replaces elementwise ops, products and reductions of raveled arrays by those of the original arrays.

    `jnp.vdot` and its gradient ravel, and so do `jax.scipy.sparse.linalg.cg`, optax's line searches and L-BFGS.
    Equations that are then unused are removed.
    """
    if not any(map(_is_ravel, jaxpr.eqns)):
        return jaxpr
    rewriter = _Rewriter()
    eqns: list[Any] = []
    for eqn in jaxpr.eqns:
        eqns += rewriter.rewrite(eqn)
    eqns = used(eqns, jaxpr.outvars, rewriter.removable)
    return (
        jaxpr if len(eqns) == len(jaxpr.eqns) and not rewriter.changed else with_equations(jaxpr, eqns, jaxpr.outvars)
    )


class _Rewriter:
    """Rewrites the equations of a program, one after another."""

    def __init__(self) -> None:
        self.unraveled: dict[Any, Any] = {}  # for raveled variables, the variable before the ravel
        self.fills: dict[Any, Any] = {}  # for variables filled with one scalar, the `broadcast_in_dim`
        self.removable: set[Any] = set()  # variables that may be removed if unused
        self.ravel: Any = None  # a `reshape` that ravels, as a template
        self.changed = False

    def rewrite(self, eqn: Any) -> list[Any]:
        """The equations that replace one."""
        name = eqn.primitive.name
        if _is_ravel(eqn):
            self.ravel = eqn
            self.unraveled[eqn.outvars[0]] = eqn.invars[0]
            self.removable.add(eqn.outvars[0])
        elif name == "jit" and any(self._before_ravel(x) is not None for x in eqn.invars):
            return self._call(eqn)
        elif name == "broadcast_in_dim" and not eqn.invars[0].aval.shape and len(eqn.outvars[0].aval.shape) == 1:
            self.fills[eqn.outvars[0]] = eqn
        elif acts_per_element(name) or _scales_by_scalar(eqn):
            return [eqn, *self._elementwise(eqn)]
        else:
            return [self._consume(eqn)]
        return [eqn]

    def _call(self, eqn: Any) -> list[Any]:
        """Moves the ravel of a call's operands into its body, and that of the body's results behind the call.

        The call stays as it is where its body still reads a raveled operand.
        """
        closed, body_rewriter = eqn.params["jaxpr"], _Rewriter()
        body = jaxpr_of(closed)
        invars, outvars, args, eqns = list(body.invars), list(eqn.outvars), list(eqn.invars), []
        for i, unraveled in enumerate(map(self._before_ravel, eqn.invars)):
            if unraveled is not None:
                eqns += body_rewriter.rewrite(self._raveled(variable(unraveled.aval), invars[i]))
                invars[i], args[i] = eqns[-1].invars[0], unraveled
        ravels = {id(ravel) for ravel in eqns}
        for inner in body.eqns:
            eqns += body_rewriter.rewrite(inner)
        unraveled_results = list(map(body_rewriter._before_ravel, body.outvars))
        results = [v if u is None else u for v, u in zip(body.outvars, unraveled_results, strict=True)]
        eqns = used(eqns, results, body_rewriter.removable)
        if any(id(e) in ravels for e in eqns):
            return [eqn]
        after: list[Any] = []
        for j, unraveled in enumerate(unraveled_results):
            if unraveled is not None:
                after += self.rewrite(self._raveled(variable(unraveled.aval), outvars[j]))
                outvars[j] = after[-1].invars[0]
        changed = body.replace(invars=invars, eqns=eqns, outvars=results)
        params = {**eqn.params, "jaxpr": changed if closed is body else closed.replace(jaxpr=changed)}
        self.changed = True
        return [eqn.replace(invars=args, outvars=outvars, params=params), *after]

    def _raveled(self, src: Any, dst: Any) -> Any:
        return self.ravel.replace(
            invars=[src], outvars=[dst], params={**self.ravel.params, "new_sizes": dst.aval.shape}
        )

    def _elementwise(self, eqn: Any) -> list[Any]:
        """The equations of an elementwise equation on the arrays before their ravels."""
        unraveled_args = [self._before_ravel(x) for x in eqn.invars]
        shape = next((x.aval.shape for x in unraveled_args if x is not None), None)
        if shape is None or len(eqn.outvars) != 1:
            return []
        eqns, args = [], []
        for x, unraveled in zip(eqn.invars, unraveled_args, strict=True):
            if unraveled is not None and unraveled.aval.shape == shape:
                args.append(unraveled)
            elif not x.aval.shape:
                args.append(x)
            elif not is_literal(x) and x in self.fills:
                fill = self.fills[x]
                args.append(variable(x.aval.update(shape=shape)))
                params = {**fill.params, "shape": shape, "broadcast_dimensions": ()}
                eqns.append(fill.replace(outvars=args[-1:], params=params))
            else:
                return []
        (out,) = eqn.outvars
        self.unraveled[out] = variable(out.aval.update(shape=shape))
        eqns.append(eqn.replace(invars=args, outvars=[self.unraveled[out]]))
        self.removable.update((out, *(v for e in eqns for v in e.outvars)))
        return eqns

    def _before_ravel(self, x: Any) -> Any:
        return None if is_literal(x) else self.unraveled.get(x)

    def _consume(self, eqn: Any) -> Any:
        """The product, reduction or reshape on the arrays before their ravels; else the equation itself."""
        name, unraveled = eqn.primitive.name, [self._before_ravel(x) for x in eqn.invars]
        if not unraveled or None in unraveled:
            return eqn
        shape = unraveled[0].aval.shape
        dims = tuple(range(len(shape)))
        params = None
        if name == "dot_general":
            if _as_tuples(eqn.params["dimension_numbers"]) == _DOT_OF_VECTORS and unraveled[1].aval.shape == shape:
                params = {**eqn.params, "dimension_numbers": ((dims, dims), ((), ()))}
        elif name in _REDUCTIONS and tuple(eqn.params["axes"]) == (0,):
            params = {**eqn.params, "axes": dims}
        elif name == "reshape" and keeps_order(eqn) and tuple(eqn.params["new_sizes"]) == shape:
            params = eqn.params
        if params is None:
            return eqn
        self.changed = True
        return eqn.replace(invars=unraveled, params=params)


def with_used(jaxpr: Any, eqns: Sequence[Any]) -> Any:
    """The program with other equations, as far as its results need them; the program itself if they are the same."""
    if len(eqns) == len(jaxpr.eqns) and all(a is b for a, b in zip(eqns, jaxpr.eqns, strict=True)):
        return jaxpr
    return with_equations(jaxpr, used(eqns, jaxpr.outvars), jaxpr.outvars)


def used(eqns: Sequence[Any], results: Sequence[Any], removable: set[Any] | None = None) -> list[Any]:
    """The equations that results need, those with effects, and those of variables that are not ``removable``."""
    needed = {x for x in results if not is_literal(x)}
    live = []
    for eqn in reversed(eqns):
        stays = eqn.effects or (removable is not None and not removable.issuperset(eqn.outvars))
        if stays or not needed.isdisjoint(eqn.outvars):
            live.append(eqn)
            needed.update(x for x in eqn.invars if not is_literal(x))
    return live[::-1]


def _is_ravel(eqn: Any) -> bool:
    if eqn.primitive.name != "reshape" or not keeps_order(eqn):
        return False
    x = eqn.invars[0]
    return not is_literal(x) and x.aval.ndim > 1 and tuple(eqn.params["new_sizes"]) == (math.prod(x.aval.shape),)


def _scales_by_scalar(eqn: Any) -> bool:
    """Whether an equation is a `dot_general` of an array and a scalar."""
    numbers = eqn.params.get("dimension_numbers") if eqn.primitive.name == "dot_general" else None
    return numbers is not None and _as_tuples(numbers) == _TIMES_SCALAR and any(not x.aval.shape for x in eqn.invars)


def keeps_order(eqn: Any) -> bool:
    """Whether a reshape keeps the order of the elements, and does not transpose them first."""
    return eqn.params.get("dimensions") is None


def _as_tuples(numbers: Any) -> Any:
    return tuple(tuple(tuple(map(int, dims)) for dims in pair) for pair in numbers)
