"""The options of the ops of a program along each mesh axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from shtypes._compat.jaxprs import is_literal
from shtypes._compat.program_keys import key_of_equation
from shtypes.caches import Bounded
from shtypes.errors import ShardingTypeError
from shtypes.solver import options as options_
from shtypes.solver.axis_states import INVARIANT, REDUCED, axis_states
from shtypes.solver.items import Op, Value
from shtypes.solver.nodes import Node
from shtypes.solver.option import CommPerByte, Operand, Option, operand
from shtypes.solver.program import Program
from shtypes.types import ShType
from shtypes.types.mesh import Mesh

#: The types of some values; None of plain ones.
Types = Sequence[ShType | None]
#: The most axes that a mesh has.
_MOST_AXES: Final = 64
#: Primitives that may name mesh axes.
_NAME_AXES: Final = frozenset({"typed_call", "sharding_annotation"})
#: The most axes of which the order on a dim is a decision.
_MOST_ORDERED: Final = 3


class OpOptions:
    """The options of the ops of a program on a mesh.

    Args:
        program: The program.
        mesh: The mesh.
        grad: Whether there is a backward pass.
        is_implicit: Whether ops may reshard, for `implicit_comm`.
        seen: The types of an op where each op chooses greedily; the fallback of ops without known options.
    """

    def __init__(
        self,
        program: Program,
        mesh: Mesh,
        *,
        grad: bool,
        is_implicit: bool,
        seen: Callable[[Op], tuple[Types, Types] | None],
    ) -> None:
        self.program, self.mesh, self.sizes, self.grad = program, mesh, mesh.axis_sizes, grad
        self.is_implicit, self._seen = is_implicit, seen
        self._options_by_op: Bounded[tuple[tuple[Option, ...], ...]] = Bounded()

    def has_cotangent(self, v: Value) -> bool:
        """Whether a value has a cotangent in the program that is priced."""
        return self.grad and v.differentiated

    def operand_has_cotangent(self, op: Op, i: int) -> bool:
        """Whether an op gives a cotangent to an operand."""
        x = op.operands[i]
        return isinstance(x, Value) and self.has_cotangent(x) and any(map(self.has_cotangent, op.moved_by[i]))

    def options_of(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """The options of an op along each axis; equal ops share them."""
        if self.is_implicit and _is_of_user(op.eqn):
            return self._seen_option(op)
        operands, live = self._operands(op), any(map(self.has_cotangent, op.results))
        try:
            key = key_of_equation(op.eqn), tuple(operands), live
            return self._options_by_op.get_or_create(key, lambda: self._options(op, operands, live))
        except ShardingTypeError as error:
            if self._seen(op) is not None:
                return self._seen_option(op)
            error.what = f"nothing is known of `{op.name}` at {str(op.place) or 'a line of JAX'}: {error.what}"
            raise error.with_traceback(None) from error.__cause__

    def _options(self, op: Op, operands: list[Operand | None], live: bool) -> tuple[tuple[Option, ...], ...]:
        """The options of an op along each axis, from a mesh axis of the smallest size that divides the axis's."""
        per_axis = []
        axes = self.mesh.axis_names
        for axis, n in zip(axes, self.sizes, strict=True):
            names = [axis, *(a for a in axes if a != axis)] if op.name in _NAME_AXES else ["axis"]
            small = next((p for p in range(2, n + 1) if n % p == 0), 1)
            scale = (n - 1) / n / ((small - 1) / small) if n > 1 else 0.0
            across = options_.way_options(op.eqn, n, operands, assuming=self.is_implicit)
            distinct: dict[Any, Option] = {}
            for o in options_.options(op.eqn, small, operands, names):
                scaled = o._replace(sent=o.sent * scale, sent_backward=o.sent_backward * scale)
                distinct.setdefault((o.operands, o.results), scaled)
            for o in across:
                distinct.setdefault((o.operands, o.results), o)
            per_axis.append(tuple(o for o in distinct.values() if live or INVARIANT not in o.operands))
        return tuple(per_axis) if op.name in _NAME_AXES else self.with_orders(per_axis)

    def comm_per_byte(self, node: Node, options: Sequence[Option], axes: Sequence[int] = ()) -> CommPerByte | None:
        """The communication of an op with one option for each axis; see `options.comm_per_byte`.

        If ``axes`` are given, the op is replicated along the others, and axes of one size have one price.
        """
        op, mesh = node.op, self.mesh
        assert op is not None
        if axes and op.name not in _NAME_AXES:
            options = [options[a] for a in axes]
            mesh = Mesh({f"axis{i}": self.sizes[a] for i, a in enumerate(axes)})
        return options_.comm_per_byte(op.eqn, mesh, self._operands(op), options, implicit=self.is_implicit)

    def _operands(self, op: Op) -> list[Operand | None]:
        """The operands of an op for `options`; None for literals."""
        operands: list[Operand | None] = []
        for i, (x, var) in enumerate(zip(op.operands, op.eqn.invars, strict=True)):
            if isinstance(x, Value):
                operands.append(Operand(x.shape, x.dtype, x.constant, self.operand_has_cotangent(op, i), x.place))
            else:  # an outer literal is a constant
                operands.append(None if is_literal(var) else operand(var.aval, constant=True))
        return operands

    def _seen_option(self, op: Op) -> tuple[tuple[Option, ...], ...]:
        """The single option of an op with its greedy types."""
        if (types := self._seen(op)) is None:
            raise ShardingTypeError(f"nothing is known of the types of `{op.name}`")
        of_values = iter(types[0])
        return self.single_option([next(of_values) if isinstance(x, Value) else None for x in op.operands], types[1])

    def single_option(self, operands: Types, results: Types) -> tuple[tuple[Option, ...], ...]:
        """The single option for each axis with these types."""
        sources, targets = ([_states_of(t) for t in types] for types in (operands, results))
        return tuple(
            (Option(tuple([x[a] for x in sources]), tuple([x[a] for x in targets])),) for a in range(len(self.sizes))
        )

    def with_orders(self, per_axis: Sequence[Sequence[Option]]) -> tuple[tuple[Option, ...], ...]:
        """Adds the options in which an axis is more major than those before it in the mesh."""
        large = [a for a, n in enumerate(self.sizes) if n > 1]
        large = large[1:] if len(large) <= _MOST_ORDERED else []
        majors = [[o.as_major() for o in each if o.divides] if a in large else [] for a, each in enumerate(per_axis)]
        return tuple((*each, *more) for each, more in zip(per_axis, majors, strict=True))


def _is_of_user(eqn: Any) -> bool:
    """Whether an equation calls a typed function of the user, whose types have no options along single axes."""
    call = eqn.params.get("call")
    while hasattr(call, "call"):
        call = call.call
    return getattr(call, "fn", None) is not None


def _states_of(t: ShType | None) -> list[int]:
    """The states of a type for each axis; reduced for a plain value."""
    if t is None:
        return [REDUCED] * _MOST_AXES
    if (states := axis_states(t)) is None:
        raise ShardingTypeError(
            f"a value is {t}: it varies, or its axes on one dim are in another order than plans have"
        )
    return states
