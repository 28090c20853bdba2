"""`einsum(..., overlap=)` against one device: values, gradients, types, both ways round, under every transformation."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, assignments, check, host, some, types_or_refuses
from tests.random_checks import denoted
from tests.tolerance import assert_close

MESH = {"dp": 2, "tp": 4}
WAYS = (True, "bidirectional")


def ring(m: Any, equation: str, x: Any, y: Any, **options: Any) -> Any:
    """An overlapped einsum; on one device, an einsum."""
    return m.einsum(equation, x, y, **(options if m is sh else {}))


#: (equation, types of the operands, out, bytes that a device sends forward, and backward for both gradients)
RINGS: list[tuple[str, tuple[str, str], str, int, int]] = [
    # A gathered operand: kept or contracted label, either place, and what the other operand is.
    ("sbh,hi->sbi", ("f32[8@tp,2@dp,8]", "f32[8,16@tp]"), "[_,_@dp,_@tp]", 192, 384),
    ("hi,sbh->sbi", ("f32[8,16@tp]", "f32[8@tp,2@dp,8]"), "[_,_@dp,_@tp]", 192, 384),
    ("sbh,hi->sbi", ("f32[8,2@dp,8@tp]", "f32[8,16@tp]"), "[_,_@dp,_@tp]", 192, 384),
    ("sbh,hi->sbi", ("f32[8@tp,2@dp,8]", "f32[8,16]{R:tp}"), "[_,_@dp,_]{R:tp}", 192, 384),
    ("sbh,hi->sbi", ("f32[8@tp,2@dp,8]", "f32[8,16]{U:tp}"), "[_,_@dp,_]{U:tp}", 192, 384),
    ("sbh,hi->bsi", ("f32[8,2@dp,8@tp]", "f32[8,16]{R:tp}"), "[_@dp,_,_]{R:tp}", 192, 384),
    # All invariant: the cotangent is whole already, and only the operand goes round again.
    ("sbh,hi->sbi", ("f32[8@tp,2@dp,8]", "f32[8,16]{I:tp}"), "[_,_@dp,_]{I:tp}", 192, 192),
    ("sbh,hi->sbi", ("f32[8,2@dp,8@tp]", "f32[8,16]{I:tp}"), "[_,_@dp,_]{I:tp}", 192, 192),
    # A scattered sum: from a contracted label or a pending operand, to a dim of either or of both operands.
    ("sbi,ih->sbh", ("f32[8,2@dp,8@tp]", "f32[8@tp,16]"), "[_@tp,_@dp,_]", 384, 384),
    ("sbi,ih->sbh", ("f32[8,2@dp,8@tp]", "f32[8@tp,16]"), "[_,_@dp,_@tp]", 384, 384),
    ("ih,sbi->hbs", ("f32[8@tp,16]", "f32[8,2@dp,8@tp]"), "[_@tp,_@dp,_]", 384, 384),
    ("sbi,ih->sbh", ("f32[8,2@dp,8]{U:tp}", "f32[8,16]{R:tp}"), "[_@tp,_@dp,_]", 384, 384),
    ("bsi,bih->bsh", ("f32[4,2,8@tp]", "f32[4,8@tp,16]"), "[_@tp,_,_]{R:dp}", 384, 384),
    ("bsi,bih->bsh", ("f32[2@dp,4,8@tp]", "f32[2@dp,8@tp,4]"), "[_@dp,_@tp,_]", 48, 48),
    # Several axes, in either order, and the minor one of two.
    ("ab,bc->ac", ("f32[16@(dp,tp),4]", "f32[4,4]{R:(dp,tp)}"), "[_,_]{R:(dp,tp)}", 224, 448),
    ("ab,bc->ac", ("f32[16@(tp,dp),4]", "f32[4,4]{R:(dp,tp)}"), "[_,_]{R:(dp,tp)}", 224, 448),
    ("ab,bc->ac", ("f32[16@(dp,tp),4]", "f32[4,8@tp]"), "[_@dp,_@tp]", 96, 192),
    ("ab,bc->ac", ("f32[16@dp,8@tp]", "f32[8@tp,4]"), "[_@(dp,tp),_]", 96, 96),
    ("ab,bc->ac", ("f32[16,8@(tp,dp)]", "f32[8@(tp,dp),4]"), "[_@(tp,dp),_]", 224, 224),
]  # fmt: skip


def operands(equation: str, types: tuple[str, str]) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(len(equation))
    shapes = [[int(d.split("@")[0]) for d in split(t)] for t in types]
    return [rng.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]


def split(text: str) -> list[str]:
    """The dims of a type text."""
    inside = text[text.index("[") + 1 : text.index("]")]
    return inside.replace("(dp,tp)", "").replace("(tp,dp)", "").split(",")


def cases(way: Any, chosen: Any = RINGS, **options: Any) -> list[Case]:
    return [
        Case(
            functools.partial(_apply, equation, out, way),
            tuple(operands(equation, types)),
            types,
            id=f"{equation} {out} {way}",
            **options,
        )
        for equation, types, out, *_ in chosen
    ]


def _apply(equation: str, out: str, way: Any, m: Any, x: Any, y: Any) -> Any:
    return ring(m, equation, x, y, out=out, overlap=way)


@pytest.mark.one_in(15)
@pytest.mark.parametrize(("policy", "way"), [("partial", True), ("jax", "bidirectional")])
def test_a_ring_has_the_value_the_gradients_and_the_types_of_the_einsum(policy: str, way: Any) -> None:
    with sh.policy(policy):
        check(sh.make_mesh({"dp": 2, "tp": 2}), cases(way, RINGS[policy == "jax" :: 2]))


@pytest.mark.one_in(9)
@pytest.mark.parametrize("way", WAYS)
def test_a_longer_ring_brings_each_piece_to_its_place(way: Any) -> None:
    check(sh.make_mesh(MESH), cases(way, (RINGS[2], RINGS[8 + (way is True)])))


@pytest.mark.nightly
@pytest.mark.parametrize(("policy", "way"), [*itertools.product(["partial", "jax"], WAYS)])
def test_all_rings_on_a_larger_mesh(policy: str, way: Any) -> None:
    with sh.policy(policy):
        check(sh.make_mesh(MESH), cases(way))


@pytest.mark.nightly
def test_a_ring_runs_eagerly() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 2})
    check(mesh, cases(True, RINGS[:2] + RINGS[8:10], grad=False), eager=True)
    check(mesh, cases("bidirectional", (RINGS[2], RINGS[8])), eager=True)


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize(("equation", "types", "out", "forward", "backward"), RINGS)
def test_the_ledger_shows_permutes_of_as_many_bytes_as_the_collective(
    equation: str, types: tuple[str, str], out: str, forward: int, backward: int, policy: str
) -> None:
    with sh.policy(policy), sh.use_mesh(sh.abstract_mesh(MESH)):
        x, y = (sh.abstract_array(t) for t in types)

        def loss(way: Any, x: Any, y: Any) -> Any:
            return sh.sum(sh.einsum(equation, x, y, out=out, overlap=way))

        name = "test_the_ledger_shows_permutes_of_as_many_bytes_as_the_collective"
        for way in WAYS:
            f = functools.partial(loss, way)
            moved = sh.ledger(sh.value_and_grad(f, argnums=(0, 1)), x, y).select(lambda e: e.kind == "permute")
            assert moved.forward().bytes == forward
            assert moved.backward().bytes == backward
            assert not any(e.inserted for e in moved)
            assert {e.place.function for e in moved} == {f"{name}.<locals>.loss"}
            # One launch for each stop; twice as many where halves go both ways, if there are halves.
            halved = [e.launches == 2 * (e.group - 1) for e in moved]
            assert [e.launches // (1 + h) for e, h in zip(moved, halved, strict=True)] == [e.group - 1 for e in moved]
            assert way == "bidirectional" or not any(halved)


TARGETS = ("[_,_]", "[_@x,_]", "[_,_@x]", "[_@y,_@x]", "[_@(x,y),_]", "[_,_@y]{U:x}", "[_@x,_]{I:y}")


@pytest.mark.one_in(9)
@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_whatever_types_is_right_and_what_does_not_says_why(policy: str) -> None:
    """Random types of both operands and random targets: a ring computes what the einsum does, or is refused."""
    mesh = sh.make_mesh({"x": 2, "y": 2})
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(-1, 1, (4, 4)).astype(np.float32) for _ in range(2))
    choices = list(assignments(mesh, (4, 4)))
    found: list[Case] = []
    with sh.policy(policy), sh.use_mesh(mesh):
        for i in range(160):
            types = choices[rng.integers(len(choices))], choices[rng.integers(len(choices))]
            out, way = TARGETS[rng.integers(len(TARGETS))], WAYS[i % 2]
            case = Case(functools.partial(_apply, "ab,bc->ac", out, way), (a, b), types, id=f"{out} {way}")
            if types_or_refuses(case, advised=i % some(5, 1) == 0):
                found.append(case)
        assert len(found) > 5
        check(mesh, found[:3])


def test_a_ring_over_one_device_keeps_the_types_and_sends_nothing() -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 1})):
        x, w = sh.ones("f32[4@tp,2@dp,3]"), sh.ones("f32[3,5@tp]")

        def f(x: Any, w: Any) -> Any:
            return sh.einsum("sbh,hi->sbi", x, w, out="[_,_@dp,_@tp]", overlap=True)

        assert str(f(x, w).type) == "f32[4,2@dp,5@tp]"
        np.testing.assert_array_equal(host(f(x, w)), np.full((4, 2, 5), 3.0))
        assert sh.ledger(sh.grad(lambda x, w: sh.sum(f(x, w))), x, w).total == (0, 0)


# under transformations


@pytest.fixture
def layer() -> Any:
    """A block with a gathered and a scattered einsum, its operands, and the same on one device."""
    sh.set_mesh(sh.make_mesh(MESH))
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(-1, 1, s).astype(np.float32) for s in ((8, 2, 4), (4, 8), (8, 4))]
    types = ("f32[8@tp,2@dp,4]", "f32[4,8@tp]", "f32[8@tp,4]")

    def block(x: Any, w1: Any, w2: Any, *, way: Any = True) -> Any:
        h = sh.einsum("sbh,hi->sbi", x, w1, out="[_,_@dp,_@tp]", overlap=way)
        return sh.einsum("sbi,ih->sbh", sh.tanh(h), w2, out="[_@tp,_@dp,_]", overlap=way)

    def reference(x: Any, w1: Any, w2: Any) -> Any:
        return jax.numpy.tanh(x @ w1) @ w2

    return block, [sh.array(a, t) for a, t in zip(arrays, types, strict=True)], reference, arrays


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["partial", pytest.param("jax", marks=pytest.mark.nightly)])
def test_a_block_in_scan_under_checkpoint_has_the_gradients_of_one_device(layer: Any, policy: str) -> None:
    block, _, reference, arrays = layer
    with sh.policy(policy):
        typed = [
            sh.array(a, t) for a, t in zip(arrays, ("f32[8@tp,2@dp,4]", "f32[4,8@tp]", "f32[8@tp,4]"), strict=True)
        ]
        saving = sh.checkpoint(block, policy=sh.checkpoint_policies.dots_saveable)

        def loss(run: Any, x: Any, w1: Any, w2: Any) -> Any:
            x = sh.scan(lambda x, _: (run(x, w1, w2), None), x, None, 3)[0]
            return sh.sum(sh.sin(x))

        def plain(x: Any, w1: Any, w2: Any) -> Any:
            for _ in range(3):
                x = reference(x, w1, w2)
            return jax.numpy.sin(x).sum()

        wanted = jax.jit(jax.grad(plain, argnums=(0, 1, 2)))(*arrays)
        again: list[int] = []
        for run in (block, sh.checkpoint(block), saving):
            f = sh.grad(functools.partial(loss, run), argnums=(0, 1, 2))
            for g, w in zip(jax.block_until_ready(sh.jit(f, region="require")(*typed)), wanted, strict=True):
                assert_close(host(g), w)
            again.append(sh.ledger(f, *typed).select(lambda e: e.direction == "recomputed").bytes)
        # The policy keeps contractions, and a ring is one.
        assert again[0] == again[2] == 0 < again[1]


@pytest.mark.nightly
def test_a_ring_is_mapped_and_differentiated_forward_and_twice(layer: Any) -> None:
    block, (x, w1, w2), reference, arrays = layer
    tangents = [np.cos(a) for a in arrays]
    typed_tangents = [sh.array(t, str(v.type)) for t, v in zip(tangents, (x, w1, w2), strict=True)]
    stacked = sh.stack([x, 2 * x], 1)

    def everything(*args: Any) -> Any:
        x, w1, w2, dx, d1, d2, stacked = args
        y, dy = jax.jvp(block, (x, w1, w2), (dx, d1, d2))
        mapped = sh.vmap(lambda x: block(x, w1, w2, way="bidirectional"), in_axes=1, out_axes=1)(stacked)
        weights = sh.vmap(lambda w: block(x, w, w2), in_axes=1, out_axes=1)(sh.stack([w1, -w1], 1))

        return y, dy, mapped, weights

    y, dy, mapped, weights = jax.block_until_ready(sh.jit(everything)(x, w1, w2, *typed_tangents, stacked))
    want_y, want_dy = jax.jvp(reference, tuple(arrays), tuple(tangents))
    for found, wanted in (
        (y, want_y),
        (dy, want_dy),
        (mapped, np.stack([want_y, reference(2 * arrays[0], *arrays[1:])], 1)),
        (weights, np.stack([want_y, reference(arrays[0], -arrays[1], arrays[2])], 1)),
    ):
        assert_close(host(found), wanted)

    def directional(m: Any, f: Any, grad: Any, dx: Any, x: Any, *rest: Any) -> Any:
        return grad(lambda x: m.sum(grad(lambda x: m.sum(m.sin(f(x, *rest))))(x) * dx))(x)

    second = sh.jit(functools.partial(directional, sh, block, sh.grad))(
        sh.reshard(typed_tangents[0], x.type), x, w1, w2
    )
    wanted = directional(jax.numpy, reference, jax.grad, tangents[0], *arrays)
    assert_close(host(second), wanted)


def test_scopes_judge_a_ring_forward_and_backward(layer: Any) -> None:
    block, args, *_ = layer
    with pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids a ring of permutes over `tp` in the forward"):
        sh.no_comm(block)(*args)
    with pytest.raises(sh.ShardingTypeError, match='`no_comm\\("backward"\\)` forbids a ring of permutes'):
        sh.no_comm("backward")(block)(*args)
    with sh.comm_budget(kinds="permute", axes="tp", bytes=10_000):
        block(*args)


@pytest.mark.parametrize("overlap", WAYS)
@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_devices_that_hold_the_same_sum_hold_it_to_the_last_bit(axis: str, overlap: Any) -> None:
    """Each begins with its own piece, and a sum of floats depends on its order."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 32), np.float32), rng.standard_normal((32, 8), np.float32)

    def product(x: Any, w: Any) -> Any:
        return sh.einsum("ab,bc->ac", x, w, out="[_,_]", overlap=overlap)

    with sh.use_mesh(sh.make_mesh(MESH)):
        denoted(sh.jit(product)(sh.array(x, f"[_,_@{axis}]"), sh.array(w, "[_,_]")))
