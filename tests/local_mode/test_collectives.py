"""Every row of the table of collectives: value, type, transpose and communication, against lists of devices."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.local_mode import lax
from shtypes.resharding import Kind
from shtypes.rules import local as rules
from tests import collectives_spec as spec
from tests.core.hlo import collectives
from tests.small_models import equations
from tests.tolerance import assert_close

REDUCE, GATHER, SCATTER, EXCHANGE, PERMUTE = (
    Kind.ALL_REDUCE,
    Kind.ALL_GATHER,
    Kind.REDUCE_SCATTER,
    Kind.ALL_TO_ALL,
    Kind.PERMUTE,
)
SIZES = (2, 3, 4)
COTANGENT = {"V": "V", "I": "I", "R": "U", "U": "R"}


@dataclass(frozen=True)
class Row:
    """One collective between two states.

    Attributes:
        id: Its name in test ids.
        fn: ``(x, n) -> y`` with `sh.lax`.
        spec: The same on a list of devices.
        shape: The local shape of the operand on n devices.
        states: Letters of the state before and after.
        text: How its equation prints, ``n`` for the size.
        back: How the equations of its transpose print.
        sends: The kinds of the collectives of the compiled program.
        back_sends: Those of the compiled transpose.
    """

    id: str
    fn: Callable[[Any, int], Any]
    spec: Callable[[Any, int], Any]
    shape: Callable[[int], tuple[int, ...]]
    states: str
    text: tuple[str, ...]
    back: tuple[str, ...]
    sends: tuple[Kind, ...] = ()
    back_sends: tuple[Kind, ...] = field(default=())


def ring(n: int, by: int = 1) -> list[tuple[int, int]]:
    return [(i, (i + by) % n) for i in range(n)]


def small(n: int) -> tuple[int, ...]:
    return (2, 3)


ROWS = [
    Row("psum to I", lambda x, n: lax.psum(x, "x", to="I"), lambda xs, n: spec.psum(xs), small, "VI",
        ("psum[x]",), ("pbroadcast[x]",), (REDUCE,)),
    Row("psum to R", lambda x, n: lax.psum(x, "x", to="R"), lambda xs, n: spec.psum(xs), small, "VR",
        ("psum[x: V->R]",), ("psum[x: U->V]",), (REDUCE,), (REDUCE,)),
    Row("pmean to I", lambda x, n: lax.pmean(x, "x", to="I"), lambda xs, n: spec.pmean(xs), small, "VI",
        ("psum[x]", "div[n]"), ("div[n]", "pbroadcast[x]"), (REDUCE,)),
    Row("pvary of I", lambda x, n: lax.pvary(x, "x"), lambda xs, n: xs, small, "IV",
        ("pbroadcast[x]",), ("psum[x]",), (), (REDUCE,)),
    Row("pvary of R", lambda x, n: lax.pcast(x, "x", to="varying"), lambda xs, n: xs, small, "RV",
        ("reinterpret[x: R->V]",), ("reinterpret[x: V->U]",)),
    Row("pcast to U", lambda x, n: lax.pcast(x, "x", to="unreduced"), lambda xs, n: xs, small, "VU",
        ("reinterpret[x: V->U]",), ("reinterpret[x: R->V]",)),
    Row("pcast to R", lambda x, n: lax.pcast(x, "x", to="reduced"), lambda xs, n: xs, small, "IR",
        ("reshard[x: I->R]",), ("reshard[x: U->I]",), (), (REDUCE,)),
    Row("pbroadcast", lambda x, n: lax.pbroadcast(x, "x"), lambda xs, n: xs, small, "IV",
        ("pbroadcast[x]",), ("psum[x]",), (), (REDUCE,)),
    Row("all_gather", lambda x, n: lax.all_gather(x, "x", axis=1), lambda xs, n: spec.all_gather(xs, 1), small, "VV",
        ("all_gather[x, dim=1]",), ("psum_scatter[x, dim=1]",), (GATHER,), (SCATTER,)),
    Row("all_gather tiled", lambda x, n: lax.all_gather(x, "x", axis=-1, tiled=True),
        lambda xs, n: spec.all_gather(xs, 1, True), small, "VV",
        ("all_gather[x, dim=1, tiled]",), ("psum_scatter[x, dim=1, tiled]",), (GATHER,), (SCATTER,)),
    Row("all_gather to R", lambda x, n: lax.all_gather(x, "x", to="reduced"), lambda xs, n: spec.all_gather(xs), small,
        "VR", ("all_gather[x: V->R, dim=0]",), ("psum_scatter[x: U->V, dim=0]",), (GATHER,), (SCATTER,)),
    Row("all_gather_invariant", lambda x, n: lax.all_gather_invariant(x, "x", tiled=True),
        lambda xs, n: spec.all_gather(xs, 0, True), small, "VI",
        ("all_gather_invariant[x, dim=0, tiled]",), ("pscatter[x, dim=0, tiled]",), (GATHER,)),
    Row("pscatter of I", lambda x, n: lax.pscatter(x, "x"), lambda xs, n: spec.pscatter(xs), lambda n: (n, 3), "IV",
        ("pscatter[x, dim=0]",), ("all_gather_invariant[x, dim=0]",), (), (GATHER,)),
    Row("pscatter of R", lambda x, n: lax.pscatter(x, "x", scatter_dimension=1, tiled=True),
        lambda xs, n: spec.pscatter(xs, 1, True), lambda n: (2, 2 * n), "RV",
        ("pscatter[x: R->V, dim=1, tiled]",), ("pplace[x, dim=1, tiled]",)),
    Row("psum_scatter", lambda x, n: lax.psum_scatter(x, "x"), lambda xs, n: spec.psum_scatter(xs), lambda n: (n, 3),
        "VV", ("psum_scatter[x, dim=0]",), ("all_gather[x, dim=0]",), (SCATTER,), (GATHER,)),
    Row("psum_scatter tiled", lambda x, n: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
        lambda xs, n: spec.psum_scatter(xs, 1, True), lambda n: (2, 2 * n), "VV",
        ("psum_scatter[x, dim=1, tiled]",), ("all_gather[x, dim=1, tiled]",), (SCATTER,), (GATHER,)),
    Row("all_to_all", lambda x, n: lax.all_to_all(x, "x", 0, 1), lambda xs, n: spec.all_to_all(xs, 0, 1),
        lambda n: (n, 3), "VV", ("all_to_all[x, dim=0->1]",), ("all_to_all[x, dim=1->0]",), (EXCHANGE,), (EXCHANGE,)),
    Row("all_to_all tiled", lambda x, n: lax.all_to_all(x, "x", 1, 0, tiled=True),
        lambda xs, n: spec.all_to_all(xs, 1, 0, True), lambda n: (2, 2 * n), "VV",
        ("all_to_all[x, dim=1->0, tiled]",), ("all_to_all[x, dim=0->1, tiled]",), (EXCHANGE,), (EXCHANGE,)),
    Row("pswapaxes", lambda x, n: lax.pswapaxes(x, "x", 1), lambda xs, n: spec.all_to_all(xs, 1, 1), lambda n: (2, n),
        "VV", ("all_to_all[x, dim=1->1]",), ("all_to_all[x, dim=1->1]",), (EXCHANGE,), (EXCHANGE,)),
    Row("ppermute", lambda x, n: lax.ppermute(x, "x", ring(n)), lambda xs, n: spec.ppermute(xs, ring(n)), small, "VV",
        ("ppermute[x, ring+1]",), ("ppermute[x, ring-1]",), (PERMUTE,), (PERMUTE,)),
    Row("ppermute without some", lambda x, n: lax.ppermute(x, "x", [(0, n - 1)]),
        lambda xs, n: spec.ppermute(xs, [(0, n - 1)]), small, "VV",
        ("ppermute[x, 0->last]",), ("ppermute[x, last->0]",), (PERMUTE,), (PERMUTE,)),
    Row("pshuffle", lambda x, n: lax.pshuffle(x, "x", [*range(1, n), 0]),
        lambda xs, n: spec.pshuffle(xs, [*range(1, n), 0]), small, "VV",
        ("ppermute[x, shuffle]",), ("ppermute[x, ring+1]",), (PERMUTE,), (PERMUTE,)),
]  # fmt: skip

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
each_size = pytest.mark.parametrize("n", SIZES)


def typed(devices: spec.Devices, state: str) -> Any:
    """A value in a state along ``x`` from what each device has."""
    x = devices[0]
    dims = ",".join(map(str, x.shape))
    if state in "RI":
        return sh.array(x, f"f32[{dims}]{{{state}:x}}")
    joined = np.concatenate(devices)
    rest = "".join(f",{k}" for k in x.shape[1:])
    varying = sh.reinterpret(sh.array(joined, f"f32[{len(joined)}@x{rest}]"), f"f32[{dims}]{{V:x}}")
    return varying if state == "V" else sh.reinterpret(varying, x="U")


def on_devices(value: Any, n: int) -> spec.Devices:
    """What each device along ``x`` has."""
    t = value.type
    shards = sorted(value.data.addressable_shards, key=lambda s: s.device.id)
    assert len(shards) == n
    return [np.asarray(s.data).reshape(t.local_shape) for s in shards]


def random(n: int, shape: tuple[int, ...], state: str, seed: int) -> spec.Devices:
    made = np.random.default_rng(seed).integers(-8, 9, (n, *shape)).astype(np.float32)
    return [made[0]] * n if state in "RI" else list(made)


def named(texts: tuple[str, ...], n: int) -> list[str]:
    def pairs(perm: list[tuple[int, int]]) -> str:
        return " ".join(f"{a}->{b}" for a, b in perm)

    shown = {
        "n]": f"{n}]",
        "ring+1": pairs(ring(n)),
        "ring-1": pairs([(b, a) for a, b in ring(n)]),
        "shuffle": pairs([(source, i) for i, source in enumerate([*range(1, n), 0])]),
        "0->last": f"0->{n - 1}",
        "last->0": f"{n - 1}->0",
    }
    return [functools.reduce(lambda text, pair: text.replace(*pair), shown.items(), text) for text in texts]


def sent(kinds: tuple[Kind, ...], local_bytes: int, n: int) -> Counter[tuple[Kind, int]]:
    """What a compiled program with these collectives sends, where the largest local array has so many bytes."""
    rounds = {REDUCE: 2 * (n - 1) / n, PERMUTE: 1}
    return Counter((kind, round(rounds.get(kind, (n - 1) / n) * local_bytes)) for kind in kinds)


@pytest.fixture(params=SIZES)
def n(request: pytest.FixtureRequest) -> int:
    size: int = request.param
    sh.set_mesh(sh.make_mesh({"x": size}))
    return size


@pytest.mark.one_in(23)
@each_row
def test_a_collective_does_what_the_devices_do_forward_and_backward(row: Row, n: int) -> None:
    before, after = row.states[0], row.states[1]
    xs = random(n, row.shape(n), before, 0)
    x = typed(xs, before)
    wanted = row.spec(xs, n)

    def f(x: Any) -> Any:
        return row.fn(x, n)

    def transposed(c: Any) -> Any:
        return jax.vjp(f, x)[1](c)[0]

    program = sh.jit(f).lower(x).compile()
    y, in_region = f(x), program(x)
    assert y.type == in_region.type
    assert y.type.state("x").value == after
    for found in (y, in_region):
        for a, b in zip(on_devices(found, n), wanted, strict=True):
            assert_close(a, b)

    cts = random(n, wanted[0].shape, COTANGENT[after], 1)
    ct = typed_as(cts, COTANGENT[after], y.type.cotangent())
    back_program = sh.jit(transposed).lower(ct).compile()
    back, back_in_region = transposed(ct), back_program(ct)
    assert back.type == back_in_region.type == x.type.cotangent()
    pairs = spec.pairing(after, wanted, cts)
    for found in (back, back_in_region):
        assert_close(np.float32(spec.pairing(before, xs, on_devices(found, n))), pairs)

    # The typed programs, and the compiled ones.
    assert equations(f, x) == named(row.text, n)
    assert equations(jax.vjp(f, x)[1], ct) == named(row.back, n)
    largest = max(x.type.local_bytes, y.type.local_bytes)
    assert collectives(program.as_text()) == sent(row.sends, largest, n)
    assert collectives(back_program.as_text()) == sent(row.back_sends, largest, n)


def typed_as(devices: spec.Devices, state: str, t: Any) -> Any:
    found = typed(devices, state) if devices[0].ndim else typed([d[None] for d in devices], state)
    assert found.type == t
    return found


def test_every_row_of_the_table_is_tested() -> None:
    """The rows that only transposition makes are reached from the transposes."""
    tested: set[str] = set()
    for row in ROWS:
        tested.update(text.split("[")[0] for text in (*row.text, *row.back))
    linear = {name for name, _, _ in rules.ROWS if name not in ("pmax", "pmin")}
    assert linear <= tested


@pytest.mark.parametrize("key", [k for k, row in rules.ROWS.items() if row.transpose], ids=str)
def test_the_transpose_of_the_transpose_is_the_collective(key: tuple[str, Any, Any]) -> None:
    op = rules.Op(key[0], ("x",), *key[1:], dim=1, concat=2, tiled=True, perm=((0, 1), (1, 2)))
    back = op.transposed()
    assert back is not None
    assert back.transposed() == op


# maxima


@pytest.mark.one_in(13)
@pytest.mark.parametrize("to", ["R", "I"])
@pytest.mark.parametrize(("name", "reference"), [("pmax", spec.pmax), ("pmin", spec.pmin)])
def test_a_maximum_and_its_derivative_share_among_the_winners(name: str, reference: Any, to: str, n: int) -> None:
    xs = [np.asarray([[i % 2, -i], [7, (i + 1) % n]], np.float32) for i in range(n)]  # ties among some, and among all
    x, extreme = typed(xs, "V"), getattr(lax, name)
    best = reference(xs)
    cts = random(n, (2, 2), COTANGENT[to], 2)
    ct = typed(cts, COTANGENT[to])
    won = [(x == best[0]).astype(np.float32) for x in xs]
    wanted = [sum(cts if to == "R" else cts[:1]) * w / sum(won) for w in won]

    def f(x: Any) -> Any:
        return extreme(x, "x", to=to)

    def gradient(x: Any, ct: Any) -> Any:
        return jax.vjp(f, x)[1](ct)[0]

    program, back_program = sh.jit(f).lower(x).compile(), sh.jit(gradient).lower(x, ct).compile()
    for y, back in ((f(x), gradient(x, ct)), (program(x), back_program(x, ct))):
        assert y.type.state("x").value == to
        assert back.type == x.type
        for found, expected in ((y, best), (back, wanted)):
            for a, b in zip(on_devices(found, n), expected, strict=True):
                assert_close(a, b)
    assert collectives(program.as_text()).total() == 1
    kinds = Counter(k for k, _ in collectives(back_program.as_text()).elements())
    # The maximum and the count of winners; to R also the sum of the gradient, which XLA may join with the count.
    assert kinds in ({REDUCE: 2}, {REDUCE: 2 if to == "I" else 3})


def test_the_second_derivative_of_a_maximum_is_zero() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    x = typed([np.asarray([1.0, 5.0], np.float32), np.asarray([3.0, 2.0], np.float32)], "V")

    def f(x: Any) -> Any:
        return lax.pmax(x * x, "x", to="I")

    _, second = jax.jvp(lambda x: jax.jvp(f, (x,), (x,))[1], (x,), (x,))  # d/dx of 2 x^2 along x
    assert_close(on_devices(second, 2)[0], [4 * 9.0, 4 * 25.0])


# several axes, and axes beside them


MESH_2D = {"x": 2, "y": 2}


def member(x: Any) -> np.ndarray[Any, Any]:
    """Per-device values of a value that varies over x and y, with leading dims x and y."""
    t = x.type
    return np.moveaxis(np.asarray(x.data), [t.ndim, t.ndim + 1], [0, 1])


@pytest.mark.parametrize("order", [("x", "y"), ("y", "x")], ids=str)
def test_several_axes_count_as_one_major_to_minor(order: tuple[str, str]) -> None:
    sh.set_mesh(sh.make_mesh(MESH_2D))
    a = np.arange(16, dtype=np.float32).reshape(8, 2)
    v = sh.reinterpret(sh.array(a, "f32[8@(x,y), 2]"), "f32[2, 2]{V:(x,y)}")
    per = member(v)  # (2, 2, 2, 2)
    devices = [per[i, j] for i in range(2) for j in range(2)] if order == ("x", "y") else [
        per[i, j] for j in range(2) for i in range(2)
    ]  # fmt: skip

    def ordered(x: Any) -> spec.Devices:
        m = member(x) if x.type.axes(sh.State.VARYING) else np.broadcast_to(np.asarray(x), (2, 2, *x.shape))
        return [m[i, j] for i in range(2) for j in range(2)] if order == ("x", "y") else [
            m[i, j] for j in range(2) for i in range(2)
        ]  # fmt: skip

    wide = sh.lax.all_gather(v, order)
    cases = [
        (lax.psum(v, order), spec.psum(devices)),
        (wide, spec.all_gather(devices)),
        (lax.psum_scatter(wide, order), spec.psum_scatter(spec.all_gather(devices))),
        (lax.all_to_all(wide, order, 0, 1), spec.all_to_all(spec.all_gather(devices), 0, 1)),
        (lax.ppermute(v, order, ring(4)), spec.ppermute(devices, ring(4))),
        (lax.axis_index(order), [np.asarray(i, np.int32) for i in range(4)]),
    ]
    for found, wanted in cases:
        for p, q in zip(ordered(found), wanted, strict=True):
            np.testing.assert_array_equal(p, q)


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("f", "out", "shape"),
    [
        (lambda v: lax.psum_scatter(v, "x", scatter_dimension=1, tiled=True), "[3,0@x]", (3, 0)),
        (lambda v: lax.all_gather(v, "x", axis=1, tiled=True), "[3,0]{U:x}", (3, 0)),
        (lambda v: lax.all_gather(v, "x"), "[2,3,0]{U:x}", (2, 3, 0)),
        (lambda v: lax.all_to_all(v, "x", 1, 0, tiled=True), "[_@x,0]", (12, 0)),
    ],
    ids=["psum_scatter", "all_gather tiled", "all_gather", "all_to_all"],
)
def test_what_has_no_elements_is_exchanged_as_any_value(f: Callable[[Any], Any], out: str, shape: Any) -> None:
    """XLA refuses collectives along a dim of size 0."""
    sh.set_mesh(sh.make_mesh({"x": 2}))
    x = sh.array(np.zeros((3, 2, 0), np.float32), "f32[3,2@x,0]")
    mapped = sh.shard_map(lambda a: f(sh.sum(a, axis=1)), out_specs=out)
    assert sh.jit(mapped)(x).shape == mapped(x).shape == shape
    assert sh.ledger(mapped, x).launches == 0
    assert not re.search("all-gather|reduce-scatter|all-to-all", sh.jit(mapped).lower(x).compile().as_text())
    assert sh.jit(sh.grad(lambda x: sh.sum(mapped(x))))(x).shape == x.shape


def test_an_axis_that_is_not_named_stays_as_it_is() -> None:
    sh.set_mesh(sh.make_mesh(MESH_2D))
    v = sh.reinterpret(sh.array(np.ones((4, 4), np.float32), "f32[4@x, 4@y]"), x="V")
    assert str(lax.psum(v, "x").type.canonical()) == "f32[2,4@y]{R:x}"
    assert str(lax.all_gather(v, "x", axis=0, tiled=True).type) == "f32[4,4@y]{V:x}"
    with pytest.raises(sh.ShardingTypeError, match=r"acts along dim 1 of .*, which is sharded on mesh axis `y`"):
        lax.all_gather(v, "x", axis=1, tiled=True)
    assert str(lax.all_gather(v, "x", axis=1).type) == "f32[2,2,4@y]{V:x}"


def test_an_axis_of_one_device_sends_nothing_and_keeps_the_types() -> None:
    sh.set_mesh(sh.make_mesh({"x": 1, "y": 2}))
    v = sh.reinterpret(sh.array(np.arange(6, dtype=np.float32).reshape(3, 2), "f32[3@x, 2]"), x="V")

    def f(v: Any) -> Any:
        w = lax.all_gather(v, "x")
        w = lax.all_to_all(w, "x", 0, 1)
        w = lax.ppermute(lax.psum_scatter(w, "x", scatter_dimension=1), "x", [(0, 0)])
        return lax.psum(w, "x"), lax.ppermute(w, "x", []), lax.pmax(w, "x")

    for run in (f, sh.jit(f)):
        y, zero, best = run(v)
        np.testing.assert_array_equal(np.asarray(y), np.asarray(best))
        np.testing.assert_array_equal(np.asarray(y), np.arange(6).reshape(3, 2))
        assert not np.asarray(lax.psum(zero, "x")).any()
    assert not collectives(sh.jit(f).lower(v).compile().as_text())


# both policies, numbers, bools, trees, vmap


@pytest.mark.one_in(7)
@pytest.mark.parametrize(("policy", "state"), [("partial", "R"), ("jax", "I")])
def test_the_policy_says_where_sums_and_maxima_end(policy: str, state: str, n: int) -> None:
    with sh.policy(policy):
        v = typed(random(n, (2,), "V", 3), "V")
        for collective in (lax.psum, lax.pmean, lax.pmax, lax.pmin):
            assert collective(v, "x").type.state("x").value == state
        assert lax.all_gather(v, "x").type.state("x").value == "V"


@pytest.mark.one_in(5)
def test_numbers_bools_and_trees_are_summed_as_jax_sums_them(n: int) -> None:
    assert lax.psum(1, "x") == lax.axis_size("x") == n
    assert lax.pmean(2.5, "x") == 2.5
    for dtype in ("i32", "u8", "bool"):
        v = typed([np.array([i % 2]) for i in range(n)], "V").astype(dtype)
        for policy, state in (("partial", "R"), ("jax", "I")):
            with sh.policy(policy):
                mean = lax.pmean(v, "x")
                assert str(mean.type) == str(typed(random(n, (1,), "V", 3), "V").type.with_axis("x", sh.State(state)))
                assert_close(np.asarray(mean), np.asarray([sum(i % 2 for i in range(n)) / n], np.float32))
        assert lax.pmean(v, "x", to="I").type.state("x") is sh.State.INVARIANT
    index = lax.axis_index("x")
    assert str(index.type) == "i32[]{V:x}"
    total = lax.psum({"odd": index % 2 == 1, "index": index}, "x")
    assert {k: int(v) for k, v in total.items()} == {"odd": n // 2, "index": n * (n - 1) // 2}
    assert lax.psum({"count": 1, "index": index}, "x")["count"] == n
    assert lax.pmean([2.5, index], "x")[0] == 2.5
    assert int(lax.pbroadcast(index, "x", n - 1)) == n - 1
    is_last = lax.pbroadcast(index == n - 1, "x", n - 1)
    assert (is_last.type.dtype_name, bool(is_last)) == ("bool", True)


@pytest.mark.parametrize("axes", [None, 3, (), ["x", "x"], ("x", None)], ids=str)
def test_axes_that_are_no_names_are_refused_in_words(axes: Any) -> None:
    with (
        sh.use_mesh(sh.make_mesh({"x": 2})),
        pytest.raises(sh.ShardingTypeError, match="along one mesh axis or several"),
    ):
        lax.psum(1, axes)


def test_keys_are_sent_as_they_are() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    keys = jax.random.split(jax.random.key(0), 4)
    words = np.asarray(jax.random.key_data(keys))
    v = sh.reinterpret(sh.array(keys, "key<fry>[4@x]"), x="V")

    def f(v: Any) -> Any:
        return lax.ppermute(v, "x", ring(2)), lax.all_gather(v, "x", axis=1)

    for run in (f, sh.jit(f)):
        moved, gathered = run(v)
        home = np.asarray(jax.random.key_data(sh.reinterpret(moved, x=0).to_jax()))
        np.testing.assert_array_equal(home, np.roll(words, 2, 0))
        assert str(gathered.type) == "key<fry>[2,2]{V:x}"


def test_what_cannot_be_summed_or_ordered_is_refused() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    with pytest.raises(sh.ShardingTypeError, match="`psum` cannot combine `key<fry>` values"):
        lax.psum(sh.abstract_array("key<fry>[4]{V:x}"), "x")
    with pytest.raises(sh.ShardingTypeError, match="`pmax` cannot order `c64` values"):
        lax.pmax(sh.abstract_array("c64[4]{V:x}"), "x")
    sh.set_mesh(sh.make_mesh(MESH_2D))
    with pytest.raises(sh.ShardingTypeError, match="`pmax` is nonlinear in the operand, which is unreduced"):
        lax.pmax(sh.abstract_array("f32[4]{V:x, U:y}"), "x")


@pytest.mark.one_in(13)
@each_row
def test_a_mapped_collective_is_the_collective_of_each(row: Row) -> None:
    n = 2
    sh.set_mesh(sh.make_mesh({"x": n}))
    before = row.states[0]
    rows = [random(n, row.shape(n), before, seed) for seed in range(3)]
    batch = sh.stack([typed(xs, before) for xs in rows], 1)
    found = sh.vmap(lambda x: row.fn(x, n), in_axes=1)(batch)
    for i, xs in enumerate(rows):
        for a, b in zip(on_devices(found, n), row.spec(xs, n), strict=True):
            np.testing.assert_array_equal(a[i], b)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", ["int32", "int8", "uint8", "bool"])
def test_values_without_gradients_are_combined_as_jax_does(dtype: str) -> None:
    value = (np.arange(8) % 3).astype(dtype)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def combined(ours: Any, x: Any) -> Any:
        return ours.psum(x, "x"), ours.pmean(x, "x"), ours.pmax(x, "x"), ours.pmin(x, "x")

    with sh.use_mesh(mesh):
        run = jax.shard_map(lambda x: combined(jax.lax, x), mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P())
        wanted = jax.device_get(jax.jit(run)(value))
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        mapped = sh.shard_map(lambda x: combined(sh.lax, x), out_specs="[_]")
        found = jax.tree.map(np.asarray, sh.jit(mapped)(sh.array(value, "[8@x]")))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
