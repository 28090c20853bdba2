"""`explain_reshard`: a reshard step by step, in words, numbers and pictures; needs no devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shtypes.analysis.describe_plan import action, bound, contents, devices_of, draw, holders, sentences, views
from shtypes.context.user_line import public
from shtypes.errors import ShardingTypeError, how_many
from shtypes.resharding import Plan, Step, least_bytes, plan
from shtypes.resharding.costs import CostModel, Link, as_cost_model
from shtypes.resharding.steps import common_prefix
from shtypes.resharding.transport import AS_IT_IS, CommArguments, Transport
from shtypes.types import REPLICATED, ShType, State
from shtypes.types.mesh import Mesh, NamedAxes
from shtypes.types.tables import Report, Table
from shtypes.types.target import Target, as_type


class Resharding(Report):
    """The plan of a reshard, as a report with pictures, tables and sentences.

    Attributes:
        forward: The plan, in a narrower dtype if one is sent: ``steps``, ``bytes`` that each device sends,
            ``launches``, ``peak_bytes``.
        backward: The plan of its gradient, between the cotangent types; None without gradients.
        model: The cost model of the predicted times, or None.
    """

    def __init__(
        self, src: ShType, dst: ShType, model: CostModel | None = None, transport: Transport = AS_IT_IS
    ) -> None:
        self.forward, self.model = transport.plan(src, dst), model
        self.backward = transport.backward(src, dst) if src.differentiable else None
        self._least_peak = max(src.local_bytes, dst.local_bytes)  # in the dtype of the value

    @property
    def plans(self) -> list[tuple[str, Plan]]:
        """The plans by name: forward and, if there is one, backward."""
        named = [("forward", self.forward)]
        return named if self.backward is None else [*named, ("backward", self.backward)]

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"{self.forward.src} to {self.forward.dst}"

    def tables(self) -> list[Table]:
        """The steps of each plan, in numbers and words, and each device's contents during the forward plan."""
        holds = holders(self.forward, f"who holds what, forward, on {devices_of(self.forward)}")
        return [*(self._table(name, plan) for name, plan in self.plans), holds]

    def seconds(self, plan: Plan) -> float | None:
        """The time of a plan by the cost model, or None."""
        return sum((self.model.seconds(step) for step in plan.steps), 0.0) if self.model else None

    def _peak(self, plan: Plan) -> int:
        return max(plan.peak_bytes, self._least_peak)

    def sentences(self, plan: Plan) -> list[str]:
        """The steps of a plan in words: who sends what to whom, and what each device then holds."""
        return sentences(plan)

    def notes(self, plan: Plan) -> list[str]:
        """Notes on a plan: its reshaped views of the array, and a comparison with others."""
        compared = bound(plan, least_bytes(plan.src, plan.dst), gathered_bytes(plan))
        return [*views(plan), *([compared] if compared else [])]

    def _table(self, name: str, plan: Plan) -> Table:
        headings = ("step", "B/device", "time", "type after") if self.model else ("step", "B/device", "type after")
        rows = []
        for step in plan.steps:
            time = (f"{self.model.seconds(step):.2e} s",) if self.model else ()
            rows.append((str(step), str(step.bytes), *time, str(step.dst)))
        note = f"{plan.bytes} B/device in {how_many(plan.launches, 'collective')}"
        note += f"; at most {self._peak(plan)} B/device in memory"
        if self.model:
            note += f"; {self.seconds(plan):.2e} s"
        return Table(
            f"{name}: {plan.src} -> {plan.dst}",
            headings,
            tuple(rows),
            frozenset({"B/device", "time"}),
            note if rows else "nothing to do",
            tuple(self.sentences(plan)),
            tuple(self.notes(plan)),
        )

    def __repr__(self) -> str:
        return str(self)

    def to_svg(self) -> str:
        """One SVG element: the contents of devices before and after each step, with the steps in words.

        A colour is a part of the array by its device before the reshard, so that the picture shows where each piece
        goes. Terms of a sum are hatched and varying values dotted. Large meshes are cut.
        """
        return draw(f"{self.title} on {devices_of(self.forward)}", self.plans, self.model)

    def pictures(self) -> list[str]:
        """The drawing."""
        return [self.to_svg()]

    def to_dict(self) -> dict[str, Any]:
        """The plans for JSON, as described in the docs (command line)."""
        return {
            "schema": 1,
            "mesh": str(self.forward.src.mesh),
            "forward": self._plan_json(self.forward),
            "backward": None if self.backward is None else self._plan_json(self.backward),
        }

    def _plan_json(self, plan: Plan) -> dict[str, Any]:
        return {
            "before": plan.src.canonical(),
            "after": plan.dst.canonical(),
            "bytes": plan.bytes,
            "least_bytes": least_bytes(plan.src, plan.dst),
            "gathered_bytes": gathered_bytes(plan),
            "launches": plan.launches,
            "peak_bytes": self._peak(plan),
            "seconds": self.seconds(plan),
            "notes": self.notes(plan),
            "steps": [self._step_json(step, plan.src) for step in plan.steps],
        }

    def _step_json(self, step: Step, base: ShType) -> dict[str, Any]:
        return {
            "kind": step.kind.value,
            "axes": list(step.axes),
            "bytes": step.bytes,
            "launches": step.launches,
            "seconds": self.model.seconds(step) if self.model else None,
            "group": step.group,
            "action": action(step, base),
            "held": contents(step.dst, base),
            "held_bytes": step.dst.local_bytes,
            "after": step.dst.canonical(),
            "mesh": str(step.dst.mesh),
        }


def gathered_bytes(direct: Plan) -> int:
    """The bytes of the detour by way of replicated: gathering and summing all that changes, and then slicing."""
    src, dst = direct.src, direct.dst
    dims = [a._replace(axes=a.axes[: common_prefix(a.axes, b.axes)]) for a, b in zip(src.dims, dst.dims, strict=True)]
    unchanged = {axis for dim in dims for axis in dim.axes}
    states = {
        axis: a if a is not State.SHARDED and (a is b or a in REPLICATED) else State.REDUCED
        for axis, a, b in zip(src.mesh.axis_names, src.states, dst.states, strict=True)
        if axis not in unchanged
    }
    between = src.replace(dims=dims, states=states)
    return plan(src, between).bytes + plan(between, dst).bytes


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
    """Explains a reshard: the steps in words, their communication, memory, and each device's contents.

    Args:
        src (...): The type of the value: a string, a type, or a typed value.
        dst: The target, as for `reshard`: a string that may omit what is unchanged, a type or a ``jax.P``.
        mesh: The mesh of a string; by default the one in context.
        policy: The policy of strings; by default the current one.
        dims: Sizes of dim names.
        model: A cost model, a link or its name, to predict times.
        comm_dtype: As for `reshard`, a narrower float in which the value is sent.
        ct_comm_dtype: The same for its cotangent.
        narrow_sums: Whether sums may be added in the narrower dtype.

    Returns:
        The plans of `reshard` and of its backward pass, as a report with ``to_json``, ``to_html`` and ``to_svg``. It
        says where a step is over a part of an axis (``y:(2)2``, as Shardy writes it) or on a reshaped view of the
        array.

    Raises:
        ShardingTypeError: there is no such type, or no reshard between the two.

    Communicates: nothing, and needs no devices and no JAX.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> report = explain_reshard("f32[8@dp, 16]", "[_, _@dp]", mesh=Mesh({"dp": 2}))
        >>> report.forward.bytes, report.forward.launches
        (128, 1)
        >>> gather = explain_reshard("f32[8@dp]", "[_]", mesh=Mesh({"dp": 2}))
        >>> print(gather.sentences(gather.forward)[0])
        all-gather over `dp`: between the two devices, each sends its slice of dim 0 to the other; each device then
        holds the whole array (32 B)
    """
    cost = None if model is None else as_cost_model(model, "`model` is")
    before, after = _types("explain_reshard", src, dst, mesh, policy, dims)
    transport = CommArguments(comm_dtype, ct_comm_dtype, narrow_sums).transport("reshard", before, after)
    return Resharding(before, after, cost, transport)


class ReshardPrice(NamedTuple):
    """The cost of a reshard on each device.

    Attributes:
        forward_bytes: Bytes sent forward.
        backward_bytes: Bytes sent for the gradient.
        forward_seconds: The time of the forward pass by the cost model, or None.
        backward_seconds: The same for the gradient.
        held_bytes: Bytes of the result minus those of the value.
    """

    forward_bytes: int
    backward_bytes: int
    forward_seconds: float | None
    backward_seconds: float | None
    held_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes sent in both directions."""
        return self.forward_bytes + self.backward_bytes

    @property
    def seconds(self) -> float | None:
        """The time of both directions, or None without a cost model."""
        if self.forward_seconds is None or self.backward_seconds is None:
            return None
        return self.forward_seconds + self.backward_seconds


@public
def price(
    src: Any,
    dst: Target,
    *,
    mesh: Mesh | NamedAxes | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    model: CostModel | Link | str | None = None,
) -> ReshardPrice:
    """The cost of a reshard on each device, forward and backward: the numbers of `explain_reshard`.

    Args:
        src (...): The type of the value: a string, a type, or a typed value.
        dst: The target, as for `reshard`.
        mesh: The mesh of a string; by default the one in context.
        policy: The policy of strings; by default the current one.
        dims: Sizes of dim names.
        model: A cost model, a link or its name, for times.

    Raises:
        ShardingTypeError: there is no such type, or no reshard between the two.

    Communicates: nothing, and needs no devices and no JAX.

    Examples:
        >>> from shtypes.types.mesh import Mesh
        >>> cost = price("f32[8@dp, 16]", "[_, _]", mesh=Mesh({"dp": 4}), model="h100-nvlink")
        >>> cost.forward_bytes, cost.backward_bytes, cost.held_bytes
        (384, 384, 384)
        >>> cost.seconds == cost.bytes / 450e9
        True
    """
    cost = None if model is None else as_cost_model(model, "`model` is")
    resharding = Resharding(*_types("price", src, dst, mesh, policy, dims), cost)
    plans = dict(resharding.plans)
    forward, backward = plans["forward"], plans.get("backward")
    return ReshardPrice(
        forward.bytes,
        0 if backward is None else backward.bytes,
        resharding.seconds(forward),
        resharding.seconds(backward) if backward is not None else None if cost is None else 0.0,
        forward.dst.local_bytes - forward.src.local_bytes,
    )


def _types(
    name: str,
    src: Any,
    dst: Target,
    mesh: Mesh | NamedAxes | None,
    policy: str | None,
    dims: Mapping[str, int] | None,
) -> tuple[ShType, ShType]:
    """The types before and after a reshard, from the arguments of the function ``name``."""
    if mesh is not None and not isinstance(mesh, NamedAxes):
        raise ShardingTypeError(f"`{mesh!r:.60}` is no mesh", hints=["sh.make_mesh({...})", "sh.abstract_mesh({...})"])
    before = _source(name, src, mesh, policy, dims)
    return before, as_type(dst, mesh, like=before, dims=dims, policy=policy)


def _source(
    name: str, src: Any, mesh: Mesh | NamedAxes | None, policy: str | None, dims: Mapping[str, int] | None
) -> ShType:
    if isinstance(src, str):
        return ShType.parse(src, mesh, dims=dims, policy=policy)
    t = src if isinstance(src, ShType) else getattr(src, "type", None)
    if not isinstance(t, ShType):
        raise ShardingTypeError(
            f"`{name}` starts from a sharding type, not {src!r:.60}",
            hints=[f'sh.{name}("f32[8@dp, 4]", "[8, 4@dp]")', f"sh.{name}(x, ...) of a typed value"],
        )
    return as_type(t, mesh)
