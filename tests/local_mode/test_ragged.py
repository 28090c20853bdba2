"""The ragged all-to-all against a list of devices: value, type, transpose, what it sends, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests import collectives_spec as spec
from tests.local_mode.test_collectives import on_devices, typed

N, ROWS, ROOM = 2, 5, 7


def layout(slices: int, disjoint: bool) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Random slices: where they begin, their sizes, where their receivers put them, and what arrives."""
    rng = np.random.default_rng(slices)
    k = N * slices
    sizes = [rng.integers(0, 3, k).astype(np.int32) for _ in range(N)]
    starts = [np.asarray([rng.integers(0, ROWS - n + 1) for n in s], np.int32) for s in sizes]
    if disjoint:
        sizes = [np.minimum(s, 1) for s in sizes]
        starts = [np.arange(k, dtype=np.int32) for _ in sizes]
    received = [np.concatenate([sizes[d][r * slices : (r + 1) * slices] for d in range(N)]) for r in range(N)]
    # Each receiver puts what arrives side by side, in the order of the senders, and each sender is told where.
    own = [np.concatenate([[0], np.cumsum(r)[:-1]]).astype(np.int32) for r in received]
    places = [np.concatenate([own[r][d * slices : (d + 1) * slices] for r in range(N)]) for d in range(N)]
    assert all(r.sum() <= ROOM * slices for r in received)
    return starts, sizes, places, received


def sent(operands: spec.Devices, outputs: spec.Devices, starts: Any, sizes: Any, places: Any) -> spec.Devices:
    """What the documentation of JAX says, on a list of devices."""
    results = [x.copy() for x in outputs]
    for sender in range(N):
        k = len(starts[sender])
        for i in range(k):
            a, n, b = starts[sender][i], sizes[sender][i], places[sender][i]
            results[i // (k // N)][b : b + n] = operands[sender][a : a + n]
    return results


def on_ints(devices: list[Any]) -> Any:
    flat = sh.array(np.concatenate(devices), f"i32[{sum(map(len, devices))}@x]")
    return sh.reinterpret(flat, x="V")


@pytest.mark.one_in(13)
@pytest.mark.parametrize(("slices", "disjoint"), [(1, False), (2, False), (2, True)])
def test_slices_arrive_where_their_sender_says_and_gradients_go_back(slices: int, disjoint: bool) -> None:
    sh.set_mesh(sh.make_mesh({"x": N}))
    rng = np.random.default_rng(0)
    operands = list(rng.integers(1, 9, (N, ROWS, 2)).astype(np.float32))
    outputs = list(rng.integers(1, 9, (N, ROOM * slices, 2)).astype(np.float32))
    cts = list(rng.integers(1, 9, (N, ROOM * slices, 2)).astype(np.float32))
    starts, sizes, places, received = layout(slices, disjoint)
    offsets = [on_ints(v) for v in (starts, sizes, places, received)]

    def f(operand: Any, output: Any) -> Any:
        return sh.lax.ragged_all_to_all(operand, output, *offsets, axis_name="x", disjoint=disjoint)

    x, out, ct = typed(operands, "V"), typed(outputs, "V"), typed(cts, "V")
    wanted = sent(operands, outputs, starts, sizes, places)

    def both(x: Any, out: Any, ct: Any) -> Any:
        y, pull = jax.vjp(f, x, out)
        return y, *pull(ct)

    for y, *grads in (both(x, out, ct), jax.block_until_ready(sh.jit(both, region="require")(x, out, ct))):
        assert (y.type, *(g.type for g in grads)) == (out.type, x.type, out.type)
        for found, want in zip(on_devices(y, N), wanted, strict=True):
            np.testing.assert_array_equal(found, want)
        # By the pairing: linear in both operands, so <f(x, out), ct> = <x, dx> + <out, dout>.
        dx, dout = (on_devices(g, N) for g in grads)
        total = sum((y * c).sum() for y, c in zip(wanted, cts, strict=True))
        assert total == sum((a * b).sum() for a, b in zip((*operands, *outputs), (*dx, *dout), strict=True))
        empty = [np.zeros_like(o) for o in outputs]
        for i in range(N):  # each row of the gradient by itself
            for row in range(ROWS):
                unit = [np.zeros_like(o) for o in operands]
                unit[i][row, 0] = 1
                moved = sent(unit, empty, starts, sizes, places)
                assert dx[i][row, 0] == sum((a * b).sum() for a, b in zip(moved, cts, strict=True))


def test_the_ledger_counts_all_of_the_operand_in_both_directions() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": N})):
        x, out = sh.abstract_array("f32[5,2]{V:x}"), sh.abstract_array("f32[7,2]{V:x}")
        k = sh.abstract_array("i32[4]{V:x}")

        def f(x: Any, out: Any) -> Any:
            return sh.lax.ragged_all_to_all(x, out, k, k, k, k, axis_name="x")

        def loss(x: Any, out: Any) -> Any:
            return sh.sum(sh.reinterpret(f(x, out), x="U"))

        found = sh.ledger(sh.value_and_grad(loss), x, out)
        assert [(e.direction, e.kind, e.bytes) for e in found if e.dtype == "f32"] == [
            ("forward", "all-to-all", 40),
            ("backward", "all-to-all", 56),
        ]
        with pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids a ragged all-to-all over `x`"):
            sh.no_comm(f)(x, out)


@pytest.mark.parametrize(
    ("types", "match"),
    [
        (("f32[5,2]", "f32[7,2]{V:x}", "i32[4]{V:x}", "i32[4]{V:x}"), "needs a varying `operand`, and .* reduced"),
        (("f32[5,2]{V:x}", "f32[7,3]{V:x}", "i32[4]{V:x}", "i32[4]{V:x}"), "differ in more than their rows"),
        (("f32[5,2]{V:x}", "f32[7,2]{V:x}", "i32[3]{V:x}", "i32[3]{V:x}"), "`input_offsets` cannot be i32"),
        (("f32[5,2]{V:x}", "f32[7,2]{V:x}", "i32[4]{V:x}", "f32[4]{V:x}"), "`send_sizes` cannot be f32"),
    ],
)
def test_what_does_not_fit_is_refused(types: tuple[str, ...], match: str) -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": N})):
        x, out, first, second = map(sh.abstract_array, types)
        with pytest.raises(sh.ShardingTypeError, match=match):
            sh.lax.ragged_all_to_all(x, out, first, second, first, first, axis_name="x")
