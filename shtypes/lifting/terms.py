"""Linear functions of pending sums whose programs are not linear: solvers that iterate.

That such a function is linear is its author's word, as for JAX, which transposes it by that word. So it takes each term
of a pending sum alone: a solution of a sum is the sum of the solutions. Each device has its own term as a slice of a
new leading dim; the function is mapped over this dim as JAX maps it, and its results are summed over it: pending again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import jax

from shtypes._compat import is_transposing
from shtypes.dispatch.apply import apply, finished_type, is_typed
from shtypes.errors import ShardingTypeError, quoted
from shtypes.evaluation.branch_types import placed
from shtypes.evaluation.value_info import typed_constant
from shtypes.lifting.jax_rules import Run, Site
from shtypes.lifting.public_ops import op
from shtypes.ops.whole import function
from shtypes.rules.typing import Typing
from shtypes.scopes.comm import Implicit, allows_implicit, in_force, rules_in_force
from shtypes.types import Dim, ShType, State

_STACK: Final = function("terms", lambda x: x[None])
_OWN: Final = function("own_term", lambda x: x[0])


def linearly(
    site: Site,
    run: Run,
    plain: Run,
    operands: Sequence[Any],
    linear: Sequence[int],
    outs: int,
    guesses: Sequence[int] = (),
) -> list[Any]:
    """The results of a function that is linear in some operands together, by its author's word.

    Args:
        site: The equation.
        run: The function, of typed values.
        plain: The same, of plain arrays.
        operands: Its operands.
        linear: The places of those that it is linear in.
        outs: How many results, the first, are linear in these; others differ from term to term.
        guesses: The places of operands that change nothing in those results, where a solver starts for example.
    """
    pending = [operands[i] for i in linear if is_typed(operands[i]) and operands[i].type.axes(State.UNREDUCED)]
    if not pending:
        return run(operands)
    axes = tuple(dict.fromkeys(a for x in pending for a in x.type.axes(State.UNREDUCED)))
    strictly = [rule for rule in rules_in_force() if not isinstance(rule, Implicit)]
    try:  # first as it is written: a direct solver is linear op by op
        with in_force(tuple(strictly)):
            return run(operands)
    except ShardingTypeError as error:
        reason = str(error).split("\n")[0]
    try:
        with in_force(tuple(strictly)):
            stacked = [i for i in guesses if is_typed(operands[i]) and operands[i].type.axes(State.UNREDUCED)]
            return _of_terms(site, plain, operands, [*linear, *stacked], outs, axes)
    except ShardingTypeError:
        pass
    if allows_implicit():
        return run([_finished(x) if i in linear else x for i, x in enumerate(operands)])
    t = pending[0].type
    raise ShardingTypeError(
        f"`{site.name}` cannot be applied to a pending sum, here {t}",
        why=f"{reason}; nor does it take each term alone: that must not communicate over {quoted(axes)}",
        hints=[whole_cotangent(t) if is_transposing() else f'sh.reshard(b, "{finished_type(t)}") before it'],
    )


def _finished(x: Any) -> Any:
    return placed(x, finished_type(x.type)) if is_typed(x) else x


def whole_cotangent(t: ShType) -> str:
    """What gives a function a cotangent that is no pending sum, where one of this type is."""
    axes = ", ".join(f'{axis}="I"' for axis in t.axes(State.UNREDUCED))
    return f"sh.reshard(x, {axes}) of its operands x: then its result is invariant, and the cotangent of that whole"


def _of_terms(
    site: Site, plain: Run, operands: Sequence[Any], linear: Sequence[int], outs: int, axes: tuple[str, ...]
) -> list[Any]:
    mesh = next(x.type.mesh for x in operands if is_typed(x))
    size = mesh.product(axes)
    stacked = list(operands)
    for i in linear:
        x = operands[i] if is_typed(operands[i]) else typed_constant(operands[i], mesh)
        t = x.type.with_axes(axes, State.UNREDUCED)
        stacked[i] = apply("terms", _STACK, lambda types: _stacked(types, size, axes), placed(x, t, "terms"))
    dims = [0 if i in linear else None for i in range(len(operands))]
    found = site.mapped(plain, size, stacked, dims)
    return [*map(_summed, found[:outs]), *map(_own, found[outs:])]


def _stacked(types: tuple[ShType, ...], size: int, axes: tuple[str, ...]) -> Typing:
    (t,) = types
    states = {a: s for a, s in t.beside_dims.items() if a not in axes}
    return Typing(types, (t.replace(dims=(Dim(size, axes), *t.dims), states=states),))


def _summed(y: Any) -> Any:
    return op("sum")(y, 0) if is_typed(y) else jax.numpy.sum(y, 0)


def _own(y: Any) -> Any:
    if not is_typed(y):
        return y[0]

    def rule(types: tuple[ShType, ...]) -> Typing:
        (t,) = types
        states = {**t.beside_dims, **dict.fromkeys(t.dims[0].axes, State.VARYING)}
        return Typing(types, (t.replace(dims=t.dims[1:], states=states),))

    return apply("own_term", _OWN, rule, y)
