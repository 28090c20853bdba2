"""`explain_reshard`: the plan of a reshard in words and pictures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shtypes.analysis.resharding.report import Resharding
from shtypes.context.user_line import public
from shtypes.errors import ShardingTypeError
from shtypes.plans.costs import CostModel, Link, as_cost_model
from shtypes.plans.transport import Asked
from shtypes.types import ShType
from shtypes.types.mesh import Mesh, NamedAxes
from shtypes.types.target import Target, as_type


@public
def explain_reshard(
    src: Any,
    dst: Target,
    *,
    mesh: Mesh | NamedAxes | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    model: CostModel | Link | str | None = None,
    comm_dtype: Any = None,
    ct_comm_dtype: Any = None,
    narrow_sums: bool = False,
) -> Resharding:
    """How a value gets from one type to another: the steps in words, what they send and take, and who holds what.

    Args:
        src (...): The type of the value: a text, a type, or a typed value.
        dst: The type wanted, as for `reshard`: a text that may leave out what stays, a type or a ``jax.P``.
        mesh: The mesh of a text; by default the one in context.
        policy: What the texts mean by an axis that they do not mention; by default the policy in force.
        dims: Sizes of dim names.
        model: A cost model, a link or the name of one: predicts times.
        comm_dtype: As for `reshard`, a narrower float in which the value is sent.
        ct_comm_dtype: The same of its cotangent.
        narrow_sums: Whether sums may be added in the narrower dtype.

    Returns:
        The plan that `reshard` runs, and that of the backward pass. It prints, shows in a notebook, and has
        ``to_json``, ``to_html`` and ``to_svg``. A step may be over a part of an axis (``y:(2)2``, as Shardy writes it)
        or on a finer view of the array; then it says so.

    Raises:
        ShardingTypeError: there is no such type, or no reshard from the one to the other.

    Communicates: nothing, and needs no devices and no JAX.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> found = explain_reshard("f32[8@dp, 16]", "[_, _@dp]", mesh=Mesh({"dp": 2}))
        >>> found.forward.bytes, found.forward.launches
        (128, 1)
        >>> gather = explain_reshard("f32[8@dp]", "[_]", mesh=Mesh({"dp": 2}))
        >>> print(gather.sentences(gather.forward)[0])
        all-gather over `dp`: between the two devices, each sends its slice of dim 0 to the other; each device then
        holds the whole array (32 B)
    """
    if mesh is not None and not isinstance(mesh, NamedAxes):
        raise ShardingTypeError(f"`{mesh!r:.60}` is no mesh", hints=["sh.make_mesh({...})", "sh.abstract_mesh({...})"])
    cost = None if model is None else as_cost_model(model, "`model` is")
    before = _source(src, mesh, policy, dims)
    after = as_type(dst, mesh, like=before, dims=dims, policy=policy)
    transport = Asked(comm_dtype, ct_comm_dtype, narrow_sums).transport("reshard", before, after)
    return Resharding(before, after, cost, transport)


def _source(src: Any, mesh: Mesh | NamedAxes | None, policy: str | None, dims: Mapping[str, int] | None) -> ShType:
    if isinstance(src, str):
        return ShType.parse(src, mesh, dims=dims, policy=policy)
    found = src if isinstance(src, ShType) else getattr(src, "type", None)
    if not isinstance(found, ShType):
        raise ShardingTypeError(
            f"`explain_reshard` starts from a sharding type, not {src!r:.60}",
            hints=['sh.explain_reshard("f32[8@dp, 4]", "[8, 4@dp]")', "sh.explain_reshard(x, ...) of a typed value"],
        )
    return as_type(found, mesh)
