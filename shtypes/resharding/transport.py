"""How a reshard communicates between its types: the dtypes sent, and the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from shtypes.errors import Fix, ShardingTypeError, how_many
from shtypes.resharding.costs import CostModel, model_in_force
from shtypes.resharding.moves import Kind
from shtypes.resharding.planner import Price, plan
from shtypes.resharding.steps import Plan
from shtypes.types import ShType, State, dtypes
from shtypes.types.target import target_text


@dataclass(frozen=True)
class Transport:
    """How a reshard communicates; None for the value's dtype."""

    dtype: str | None = None  # the dtype sent
    ct_dtype: str | None = None  # the dtype sent by the reshard of the cotangent
    model: CostModel | None = None  # to minimize time; None to minimize bytes
    #: Whether axes over which the value stays replicated may share the work; not in named collectives.
    shared: bool = True

    def transposed(self) -> Transport:
        """The transport of the transpose."""
        return replace(self, dtype=self.ct_dtype, ct_dtype=self.dtype)

    def plan(self, src: ShType, dst: ShType) -> Plan:
        """The cheapest plan, in the dtype sent."""
        wide = plan(src, dst, self.model, shared=self.shared)
        if self.dtype is None:
            return wide
        src, dst = (t.replace(dtype=self.dtype) for t in (src, dst))
        return plan(src, dst, self.model, shared=self.shared)

    def backward(self, src: ShType, dst: ShType) -> Plan:
        """The plan of the transpose: from the cotangent type of the destination to that of the source."""
        return self.transposed().plan(dst.cotangent(), src.cotangent())

    def price(self, src: ShType, dst: ShType) -> Price:
        """The price of a reshard; a value without a gradient costs nothing backward."""
        forward, words = self.plan(src, dst), self.words
        if not src.differentiable:
            return Price(forward.bytes, 0, words(forward), "")
        backward = self.backward(src, dst)
        return Price(forward.bytes, backward.bytes, words(forward), self.transposed().words(backward))

    def words(self, of: Plan) -> str:
        """The communication of a plan in words, or empty."""
        return f"{of.words} in {self.dtype}" if of.words and self.dtype is not None else of.words

    def __str__(self) -> str:
        parts = (("comm", self.dtype), ("ct comm", self.ct_dtype))
        parts_in_words = [f"{word} {dtype}" for word, dtype in parts if dtype is not None]
        return ", ".join(parts_in_words if self.model is None else [*parts_in_words, "least time"])


#: In the dtype of the value, both ways, minimizing bytes.
AS_IT_IS: Final = Transport()


def one_transport(transports: Sequence[Transport]) -> Transport | None:
    """The transport of one reshard in place of several; None if theirs differ.

    It is restricted to the changing axes if one of them is. Casts to a narrower dtype round each, so those are not
    merged.
    """
    if any(each.dtype is not None or each.ct_dtype is not None for each in transports):
        return None
    shared = all(each.shared for each in transports)
    distinct = {replace(each, shared=shared) for each in transports}
    return distinct.pop() if len(distinct) == 1 else None


def transport_in_force() -> Transport:
    """The default transport of reshards, by the current cost model."""
    model = model_in_force()
    return AS_IT_IS if model is None else Transport(model=model)


#: Floats that can be sent. ``f8_e8m0fnu`` has neither sign nor zero, and ``f4_e2m1fn`` packs two in a byte.
_SENT: Final = frozenset(
    ("f32", "bf16", "f16", "f8_e4m3fn", "f8_e4m3", "f8_e5m2", "f8_e4m3b11fnuz", "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e3m4")
)
_ADDING: Final = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})


def price(src: ShType, dst: ShType) -> Price:
    """The price of a reshard by the default transport, forward and backward."""
    return transport_in_force().price(src, dst)


def reshard_fix(src: ShType, dst: ShType, name: str = "x") -> Fix:
    """A reshard as a priced fix."""
    return price(src, dst).of(f'sh.reshard({name}, "{target_text(dst)}")')


class CommArguments(NamedTuple):
    """The arguments of a call about its communication, as the user wrote them."""

    comm_dtype: Any = None
    ct_comm_dtype: Any = None
    narrow_sums: bool = False  # whether terms may be added in a narrower dtype
    shared: bool = True  # whether axes over which the value stays replicated may share the work

    def transport(self, op: str, src: ShType, dst: ShType) -> Transport:
        """The transport for a reshard that the user called as ``op``."""
        dtype, ct_dtype = (_narrowed(argument, src, name) for name, argument in self._dtypes())
        sent_as = Transport(dtype, ct_dtype, model_in_force(), self.shared)
        if not self.narrow_sums:
            _check_sums(op, sent_as, src, dst)
        return sent_as

    @property
    def written(self) -> str:
        """The arguments as code, to follow others in a call."""
        parts_in_words = [
            f', {name}="{dtypes.from_any(argument)}"' for name, argument in self._dtypes() if argument is not None
        ]
        return "".join(parts_in_words) + (", narrow_sums=True" if self.narrow_sums else "")

    def _dtypes(self) -> tuple[tuple[str, Any], ...]:
        return ("comm_dtype", self.comm_dtype), ("ct_comm_dtype", self.ct_comm_dtype)


def _narrowed(argument: Any, t: ShType, name: str) -> str | None:
    """The dtype to send values of a type in; None for the dtype that they have, as all but floats are sent."""
    if argument is None:
        return None
    src_dtype, dtype = t.dtype_name, dtypes.from_any(argument)
    if dtype == src_dtype:
        return None
    is_float = dtypes.differentiable(src_dtype) and src_dtype[0] != "c"
    if dtype in _SENT and not is_float:
        return None
    if dtype not in _SENT or dtypes.itemsize(dtype) >= dtypes.itemsize(src_dtype):
        narrower = ("bf16", "f8_e4m3fn") if is_float else ()
        hints = [f'{name}="{d}"' for d in narrower if dtypes.itemsize(d) < dtypes.itemsize(src_dtype)]
        if dtypes.differentiable(dtype) and is_float:
            hints.append(f'x.astype("{dtype}") before it is sent, where the value itself may be of {dtype}')
        raise ShardingTypeError(
            f"`{name}` cannot send {src_dtype} as {dtype}, which is no narrower float",
            why="the value is cast to it before it is sent and back after that, to send less",
            hints=hints,
        )
    return dtype


def _check_sums(op: str, transport: Transport, src: ShType, dst: ShType) -> None:
    """Refuses sums across devices in a narrower dtype, which lose more than one rounding."""
    ways = [("comm_dtype", "forward", transport, src, dst)]
    if src.differentiable:
        ways.append(("ct_comm_dtype", "backward", transport.transposed(), dst.cotangent(), src.cotangent()))
    for name, direction, way, before, after in ways:
        if way.dtype is None:
            continue
        sums = [s for s in way.plan(before, after).steps if s.kind in _ADDING]
        if sums:
            lost = [a for a in before.axes(State.UNREDUCED) if after.state(a) is not State.UNREDUCED]
            terms = before.mesh.product(lost)
            raise ShardingTypeError(
                f"`{op}` would add {how_many(terms, 'term')} in {way.dtype} {direction}: {', '.join(map(str, sums))}, "
                f"from {before} to {after}",
                why="a value that is moved is rounded once; of a sum each term is, and each partial sum again",
                hints=[
                    f'narrow_sums=True with {name}="{way.dtype}", where the sum may lose that',
                    f"no {name}, to add in {before.dtype_name}",
                ],
                axes=lost,
            )
