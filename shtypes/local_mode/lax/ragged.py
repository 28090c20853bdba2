"""What devices send each other in slices of any sizes."""

from __future__ import annotations

from typing import Any

import jax

from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.combined_collectives import Ragged
from shtypes.core.operation import sent_by
from shtypes.dispatch.apply import lift, located
from shtypes.errors import ShardingTypeError
from shtypes.local_mode.lax.arguments import Axes, axes_of, no_groups
from shtypes.scopes.check_comm import check_sent
from shtypes.scopes.comm import rules_in_force
from shtypes.types import ShType, State

_OFFSETS = ("input_offsets", "send_sizes", "output_offsets", "recv_sizes")


@public
def ragged_all_to_all(
    operand: Any,
    output: Any,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Axes,
    axis_index_groups: Any = None,
    disjoint: bool = False,
) -> Array:
    """Slices of leading rows exchanged, of any sizes; `jax.lax.ragged_all_to_all`, which says what each argument is.

    Args:
        operand (n, ...): What is sent; varying over the axes.
        output (m, ...): What is written into; varying, of the same dtype and other dims.
        input_offsets (k,): Where each slice begins; ``k`` is a multiple of the number of devices. Varying integers.
        send_sizes (k,): How many rows each has.
        output_offsets (k,): Where each is written by its receiver.
        recv_sizes (k,): How many rows arrive.
        axis_name: A mesh axis or several.
        axis_index_groups: None.
        disjoint: Your word that no two slices of ``operand`` overlap. Else the backward pass keeps them apart until
            they are added, and needs room for all that the receivers can hold.

    Returns:
        (m, ...): ``output`` with what arrived. Varying.

    Raises:
        ShardingTypeError: an argument is not varying; shapes or dtypes do not fit.

    Communicates: an all-to-all, forward and backward; how much is known only when it runs, so the ledger counts all of
    the operand. XLA has none for the CPU: there each device is sent all operands. Transpose: what arrived is sent back.
    """
    no_groups(axis_index_groups)
    axes = axes_of(axis_name)
    values, _ = lift([operand, output, input_offsets, send_sizes, output_offsets, recv_sizes])
    types = [jax.typeof(x) for x in values]
    operation = Ragged(axes, bool(disjoint), tuple(types))
    try:
        _check(types, axes)
        if rules_in_force():
            sent = (
                sent_by(way, "a ragged all-to-all") for way in (operation.forward_comm(), operation.backward_comm())
            )
            check_sent("ragged_all_to_all", *operation.change, *sent)
    except ShardingTypeError as error:
        raise located(error, "ragged_all_to_all", types).with_traceback(None) from None
    exchanged: Array = operation.applied(*values)[0]
    return exchanged


def _check(types: list[ShType], axes: tuple[str, ...]) -> None:
    names = ("operand", "output", *_OFFSETS)
    for name, t in zip(names, types, strict=True):
        for axis in axes:
            if t.state(axis) is not State.VARYING:
                raise ShardingTypeError(
                    f"`ragged_all_to_all` over mesh axis `{axis}` needs a varying `{name}`, and {t} is "
                    f"{t.state(axis).name.lower()}",
                    hints=[f'sh.lax.pvary({name}, "{axis}")'],
                    axes=[axis],
                )
        if t.states != types[0].states or any(d.axes for d in t.dims):
            raise ShardingTypeError(f"`{name}`, {t}, is not on the devices as `operand`, {types[0]}, is")
    operand, output, *offsets = types
    if not operand.ndim or operand.shape[1:] != output.shape[1:] or operand.dtype_name != output.dtype_name:
        raise ShardingTypeError(
            f"`operand` and `output` differ in more than their rows: {operand} and {output}",
        )
    n = operand.mesh.product(axes)
    for name, t in zip(_OFFSETS, offsets, strict=True):
        if t.ndim != 1 or t.dtype_name[0] not in "iu" or t.shape != offsets[0].shape or t.shape[0] % n:
            raise ShardingTypeError(
                f"`{name}` cannot be {t}",
                why=f"it has an integer for each slice, and each of the {n} devices is sent as many slices",
            )


__all__ = ["ragged_all_to_all"]
