"""`compare`: one program under both policies, "jax" against "partial"; nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax

from shtypes.analysis.check import signature_of
from shtypes.analysis.compare.report import POLICIES, Comparison, Side
from shtypes.analysis.target import mesh_of, scopes, target_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.conversion import abstract_array
from shtypes.core.meshes import AnyMesh, to_mesh
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import CostModel, cost_model
from shtypes.traced.equations import equations
from shtypes.types import ShType
from shtypes.types.mesh import current_mesh
from shtypes.types.notation.printing import show
from shtypes.types.policy import current_policy
from shtypes.types.target import parse


@public
def compare(
    f: Callable[..., Any],
    *args: Any,
    grad: bool = True,
    model: CostModel | str | None = None,
    mesh: AnyMesh | None = None,
    dims: Mapping[str, int] | None = None,
    **kwargs: Any,
) -> Comparison:
    """A program under the policies "jax" and "partial": types that differ, collectives that differ, totals and times.

    Args:
        f: A function of trees of typed values.
        *args: Its arguments: texts of types, types, values, or trees of these. A text is read under each policy; what a
            type or a value has replicated under the policy in force is replicated under the other too. Without any,
            those that the annotations of ``f`` say.
        grad: Whether the backward pass, to all arguments with gradients, is compared too. A function that takes
            gradients itself is compared as it is.
        model: A cost model, or the name of a link: predicts times.
        mesh: The mesh of the texts; by default the one in context.
        dims: Sizes of dim names.
        **kwargs: More arguments of ``f``.

    Returns:
        The comparison. A program that types under one policy only is compared, too: the other side says why not.

    Raises:
        ShardingTypeError: the program types under neither policy.

    Communicates: nothing, and runs nothing.

    Examples:
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return sh.silu(x @ w)
        >>> mesh = sh.abstract_mesh({"dp": 2, "tp": 4})
        >>> found = compare(layer, "f32[8@dp, 16]", "f32[16, 32@tp]", mesh=mesh)
        >>> found.jax.ledger.bytes, found.partial.ledger.bytes
        (896, 0)
    """
    cost = cost_model(model) if isinstance(model, str) else model
    from_policy = current_policy()
    sides, takes = {}, False
    for policy in POLICIES:
        with scopes(mesh, policy, dims):
            try:
                given = _translated((args, kwargs), from_policy, policy)
                target = target_of(f, *given)
                with scopes(mesh_of((target.args, target.kwargs)), None, None):
                    found = signature_of(target, grad=False)
                    takes = any(e.direction != "forward" for e in equations(found.program))
                    sides[policy] = Side(policy, signature_of(target, grad=True) if grad and not takes else found)
            except ShardingTypeError as error:
                sides[policy] = Side(policy, error=error)
    signature = next((s.signature for s in sides.values() if s.signature is not None), None)
    if signature is None:
        raise next(s.error for s in sides.values() if s.error is not None)
    found_mesh = next((x.mesh for x in jax.tree.leaves(signature.arguments) if isinstance(x, ShType)), None)
    where = found_mesh or (current_mesh() if mesh is None else to_mesh(mesh))
    return Comparison(
        signature.name, str(where), sides["jax"], sides["partial"], cost, grad=grad and not takes, takes=takes
    )


def _translated(tree: Any, src: str, dst: str) -> Any:
    """Typed values as values that have only types, with what one policy calls replicated as the other calls it."""

    def one(x: Any) -> Any:
        t = x.type if isinstance(x, Array) else x if isinstance(x, ShType) else None
        if t is None:
            return x
        other = parse(show(t, src), t.mesh, dims={d.name: d.size for d in t.dims if d.name}, policy=dst)
        return abstract_array(other)

    return jax.tree.map(one, tree)
