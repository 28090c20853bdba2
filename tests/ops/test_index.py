"""Indexing and indexed updates against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.lax import GatherDimensionNumbers as Gathered
from jax.lax import ScatterDimensionNumbers as Scattered

import shtypes as sh
from tests.end_to_end import Case, check, host, some
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def ids(*shape: int, low: int = -8, high: int = 8) -> Any:
    """Positions of dims of size 8."""
    return rng.integers(low, high, shape).astype(np.int32)


def wild(*shape: int) -> Any:
    """Positions of dims of size 8, many of them out of range."""
    return ids(*shape, low=-14, high=15)


def test_indexing_runs_eagerly() -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    check(mesh, [
        Case(lambda m, x, i: x[i], (arr(8, 4), ids(4)), ("f32[8@x,4]", "i32[4@y]"), "f32[4@y,4]{U:x}"),
        Case(lambda m, x, i: x[:, i], (arr(8, 8), ids(4)), ("f32[8@x,8]{U:y}", "i32[4]"), "f32[8@x,4]{U:y}"),
        Case(lambda m, x: x.at[3].set(1.0), (arr(8, 4),), ("f32[8@x,4]{U:y}",), "f32[8@x,4]{U:y}"),
    ], eager=True)  # fmt: skip


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_a_table_that_sharded_positions_look_up_has_its_gradient_pending_without_communication(policy: str) -> None:
    with sh.policy(policy):
        sh.set_mesh(sh.make_mesh({"x": 4}))
        table = sh.array(arr(8, 4), "f32[8,4]{R:x}")
        positions = sh.array(ids(8), "i32[8@x]")
        assert table[positions].type == sh.ShType.parse("f32[8@x,4]", sh.typeof(table).mesh)
        _, pull = jax.vjp(lambda w: w[positions], table)
        text = str(jax.make_jaxpr(pull)(table[positions]))
        assert "reshard" not in text
        assert "cast" not in text
        assert pull(table[positions])[0].type == table.type.cotangent()


@pytest.mark.parametrize("text", ["f32[8@x,4]", "f32[8,4@x]", "f32[8,4]{U:x}"])
def test_positions_out_of_range_are_read_as_jax_reads_them(text: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    plain, where = arr(8, 4), wild(16)
    np.testing.assert_array_equal(host(sh.array(plain, text)[where]), jnp.asarray(plain)[where])
    np.testing.assert_array_equal(host(sh.array(plain, text)[19]), jnp.asarray(plain)[19])
    for dtype in (np.int8, np.uint8, np.uint32):
        few = np.array([0, 3, 7, 8, 100]).astype(dtype)
        np.testing.assert_array_equal(host(sh.array(plain, text)[few]), jnp.asarray(plain)[few])


def test_few_positions_that_vary_are_not_read_on_the_host() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 4})), sh.implicit_comm():
        own = sh.reinterpret(sh.array(np.arange(2, dtype=np.int32), "[2]"), x="V")
        assert sh.take(sh.array(arr(8, 4), "[8,4]{I:x}"), own, axis=0).type == sh.ShType.parse("f32[2,4]{V:x}")


def test_positions_map_and_loop() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    plain, where = arr(8, 4), ids(6)
    x = sh.array(plain, "f32[8@x,4]")
    rows = jax.vmap(lambda i: x[i])(sh.array(where, "i32[6]"))
    np.testing.assert_array_equal(host(rows), jnp.asarray(plain)[where])
    total, _ = sh.scan(lambda c, i: (c + x[i], None), sh.zeros("f32[4]{U:x}"), sh.array(where, "i32[6]"))
    assert_close(host(total), jnp.asarray(plain)[where].sum(0))
    np.testing.assert_array_equal(host(jax.jit(lambda x, i: x[i])(x, 3)), plain[3])


def test_a_value_gives_its_rows_one_by_one() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    x = sh.array(arr(2, 8), "f32[2,8@x]")
    first, second = x
    np.testing.assert_array_equal(host(second), host(x)[1])
    assert first.type == sh.ShType.parse("f32[8@x]", x.type.mesh)
    with pytest.raises(TypeError, match="without dims"):
        iter(sh.array(1.0))


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (np.s_[2:4], "`index` acts along dim 0, which is sharded on mesh axis `x`"),
        (np.s_[1, 2, 3], "`getitem` does not take these arguments"),
        (1.5, "`getitem` does not take these arguments"),
        (np.s_[..., 1, ...], "`getitem` does not take these arguments"),
    ],
)
def test_an_index_that_does_not_type_says_why(key: Any, what: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    x = sh.array(arr(8, 4), "f32[8@x,4]")
    with pytest.raises(sh.ShardingTypeError) as info:
        x[key]
    assert info.value.what == what
    assert "test_index.py" in info.value.where


def test_traced_masks_and_bounds_are_refused() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    x = sh.array(arr(8, 4), "f32[8,4]")
    mask = sh.reshard(x, "[8@x,4]") > 0
    calls: list[Callable[[], Any]] = [lambda: x[mask], lambda: x.at[mask].set(0.0)]
    for call in calls:
        with pytest.raises(sh.ShardingTypeError, match=r"must know the values(.|\n)*sh\.where\(mask, new, x\)"):
            call()
    with pytest.raises(sh.ShardingTypeError, match=r"does not take|must know"):
        jax.jit(lambda x, i: x[i:])(x, 2)


def test_numbers_that_would_lose_their_value_are_no_updates() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    with pytest.raises(sh.ShardingTypeError, match="cannot safely cast"):
        sh.array(ids(8), "i32[8]").at[1].set(1.5)


def test_each_device_changes_its_own_part_of_a_slice() -> None:
    """Static slices, and those that start where it is known at run time only; the updates are whole."""
    x, start = arr(8, 4), np.asarray(-3, np.int32)
    sharded = "f32[8@(y,x),4]", "f32[8@x,4]{U:y}", "f32[8@y,4@x]"
    programs: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = [
        (lambda m, x, u: x.at[1:6].set(u), (x, arr(5, 1)), ("f32[5,1]",)),
        (lambda m, x, u: x.at[6:0:-2].add(u), (x, arr(3, 4)), ("f32[3,4]",)),
        (lambda m, x, u: x.at[::3, 1:3].set(u), (x, arr(2)), ("f32[2]",)),
        (lambda m, x: x.at[3:3].set(2.0), (x,), ()),
        (
            lambda m, x, u, i: (m if m is sh else lax).dynamic_update_slice(x, u, (i, 1)),
            (x, arr(3, 2), start),
            ("f32[3,2]", "i32[]"),
        ),
    ]
    cases = [
        Case(fn, operands, (given, *types), given)
        for i, (fn, operands, types) in enumerate(programs)
        for given in some([sharded[i % 3], sharded[(i + 1) % 3]], [*sharded])
    ]
    cases += [
        Case(lambda m, x, u: x.at[5:2].max(1.0) + x.at[2:].min(0.0), (x, arr(4)), ("f32[8@x,4]", "f32[4]"), grad=False),
        # One of every two elements is in place where each device has a multiple of two.
        Case(lambda m, x: x[::2] * x[1::2], (x,), ("f32[8@x,4@y]",), "f32[4@x,4@y]"),
        # Of a dim that no axis shards all elements are in place, however the others lie.
        Case(lambda m, x, u: x.at[1::2].set(u), (x, arr(4, 4)), ("f32[8,4@x]", "f32[4,4@x]"), "f32[8,4@x]"),
        Case(lambda m, x, u: x.at[:, 1::2].add(u), (x, arr(8, 2)), ("f32[8@x,4]", "f32[8@x,2]"), "f32[8@x,4]"),
    ]
    check(sh.make_mesh({"x": 2, "y": 2}), cases)
    with (
        sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 2})),
        pytest.raises(sh.ShardingTypeError, match=r"two different dims|acts along dim 0"),
    ):
        sh.check(lambda x, u: x.at[1:3].set(u), "f32[8@x,4]", "f32[2@x,4]")


@pytest.mark.parametrize("key", [0, slice(1, 3), slice(None, None, 3)], ids=str)
def test_gradients_of_what_does_not_change_are_not_touched_by_what_would(key: Any) -> None:
    """A root of negative elements that are not to be changed: its NaN must not come back."""
    x = np.concatenate([np.full((2, 4), -3.0, np.float32), np.full((6, 4), -2.0, np.float32)])
    x[key] = 4.0
    types = ("f32[8@(x,y),4]", "f32[8@y,4@x]")
    cases = [Case(lambda m, x: x.at[key].power(0.5), (x,), (t,), t) for t in types]
    cases += [Case(lambda m, x: x.at[key].divide(0.25), (x,), (t,), t) for t in types]
    check(sh.make_mesh({"x": 2, "y": 2}), cases)


@pytest.mark.parametrize(
    ("f", "operands", "types"),
    [
        (lambda m, x, i, u: x.at[i].add(u), (arr(4, 8), ids(4), arr(4, 8)), ("f32[4@x,8]", "i32[4@x]", "f32[4@x,8]")),
        (lambda m, x: m.pad(x, 1, constant_values=2.0), (arr(4, 8),), ("f32[4@x,8]",)),
        (lambda m, x: m.diagonal(x, 1), (arr(4, 8),), ("f32[4,8@x]",)),
        (lambda m, x: m.delete(x, 1, 0), (arr(4, 8),), ("f32[4@x,8]",)),
        (lambda m, x: m.resize(x, (3, 5)), (arr(4, 8),), ("f32[4@x,8]",)),
    ],
    ids=["add", "pad", "diagonal", "delete", "resize"],
)
def test_what_may_communicate_is_right_for_the_types_that_it_takes(
    f: Callable[..., Any], operands: tuple[Any, ...], types: tuple[str, ...]
) -> None:
    """What a device does depends on how the operands lie: as the inserted reshards make them, not as they were."""

    def asked(m: Any, *xs: Any) -> Any:
        with sh.implicit_comm():
            return f(m, *xs)

    check(sh.make_mesh({"x": 2}), [Case(asked, operands, types)])


# gather and scatter by dimension numbers against JAX on one device, over random types


def positions(n: int, *shape: int) -> Any:
    """Positions of a dim of size ``n``, some of them out of range."""
    return rng.integers(-2, n + 2, shape).astype(np.int32)


ROWS = Gathered((1,), (0,), (0,))
INTO_ROWS = Scattered((1,), (0,), (0,))
DIFFERENT = np.array([[3], [1], [7], [-1]], np.int32)


def test_updates_that_a_device_drops_differ_if_all_do() -> None:
    mesh = sh.make_mesh({"x": 4})
    x, u = arr(8, 4), arr(4, 4)
    check(mesh, [
        Case(lambda m, x, i, u: m.scatter_mul(x, i, u, INTO_ROWS, unique_indices=True), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]"),
        Case(lambda m, x, i, u: x.at[i[:, 0]].multiply(u, unique_indices=True), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]"),
        Case(lambda m, x, i, u: m.scatter_max(x, i, u, INTO_ROWS), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]", grad=False),
        Case(lambda m, x, i, u: m.scatter_min(x, i, u, INTO_ROWS), (x, DIFFERENT, u),
             ("f32[8@x,4]", "i32[4,1]", "f32[4,4]"), out="f32[8@x,4]", grad=False),
    ])  # fmt: skip


def test_a_window_of_a_sharded_dim_is_refused_with_prices() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.gather(sh.array(arr(8, 4), "f32[8@x,4]"), positions(8, 4, 1), Gathered((0, 1, 2), (), (0,)), (2, 4))
    assert info.value.what.startswith("`gather` does not take these arguments")
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.gather(sh.array(arr(8, 4), "f32[8@x,4]"), positions(8, 4, 1), Gathered((1, 2), (), (0,)), (2, 4))
    assert info.value.what == "`gather` acts along dim 0, which is sharded on mesh axis `x`"
    assert 'sh.reshard(x, "[8,4@x]")' in [fix.code for fix in info.value.fixes]


ALONG = positions(8, 8, 4)
#: Ops that find the rows of a device, on operands of which a scope moves the rows first.
MOVED: list[tuple[Callable[..., Any], tuple[Any, ...], tuple[str, ...]]] = [
    (lambda m, x, i: x[i], (arr(8, 4), positions(8, 4) % 8), ("[8@x,4]", "[4@x]")),
    (lambda m, x, i: m.take_along_axis(x, i, 0, mode="clip"), (arr(8, 4), ALONG), ("[8@x,4]", "[8@x,4]")),
    (lambda m, x, i: m.gather(x, i, ROWS, (1, 4), mode="clip"), (arr(8, 4), positions(8, 4, 1)),
     ("[8@x,4]", "[4@x,1]")),
    (lambda m, x, i, u: x.at[i].set(u), (arr(8, 4), DIFFERENT[:, 0], arr(4, 4)), ("[8@x,4]", "[4@x]", "[4@x,4]")),
    (lambda m, x, i, u: m.scatter_add(x, i, u, INTO_ROWS), (arr(8, 4), positions(8, 4, 1), arr(4, 4)),
     ("[8@x,4]", "[4@x,1]", "[4@x,4]")),
    (lambda m, x: m.dynamic_slice(x, (0, 3), (8, 2)), (arr(8, 8),), ("[8@x,8@y]",)),
]  # fmt: skip


def test_rows_that_a_scope_moves_are_found_where_they_are_then() -> None:
    def moving(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with sh.implicit_comm():
                return f(*args)

        return run

    mesh = sh.make_mesh({"x": 2, "y": 2})
    check(mesh, [Case(moving(f), operands, types) for f, operands, types in MOVED])


# lookups by integers against JAX on one device, over random types


def inside(*shape: int) -> Any:
    return rng.integers(0, 8, shape).astype(np.int32)


def _embedding(m: Any, table: Any, i: Any) -> Any:
    return m.embedding(table, i) if m is sh else table[i]


def test_a_sharded_vocabulary_is_looked_up_without_communication() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    tokens, table = rng.integers(0, 16, (4, 8)).astype(np.int32), arr(16, 4)
    types = ("f32[vocab=16@tp, 4]", "i32[batch=4@dp, 8]")
    case = Case(_embedding, (table, tokens), types, out="f32[4@dp,8,4]{U:tp}")
    check(mesh, [case])
    check(mesh, [case], eager=True)
    sh.set_mesh(mesh)
    jaxpr = jax.make_jaxpr(sh.embedding)(sh.array(table, types[0]), sh.array(tokens, types[1]))
    assert "reshard" not in str(jaxpr)
    assert "cast" not in str(jaxpr)


def test_labels_are_found_in_a_sharded_vocabulary() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    check(mesh, [
        Case(
            lambda m, x, i: m.take_along_axis(x, i[:, None], 1),
            (arr(4, 16), rng.integers(0, 16, 4).astype(np.int32)),
            ("f32[4@dp,16@tp]", "i32[4@dp]"),
            out="f32[4@dp,1]{U:tp}",
        )
    ])  # fmt: skip


def test_classes_are_sharded_by_their_global_number() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    plain = rng.integers(-2, 10, 4).astype(np.int32)
    hot = jax.jit(lambda i: sh.one_hot(i, 8, over="y"))(sh.array(plain, "i32[4@x]"))
    assert hot.type == sh.ShType.parse("f32[4@x,8@y]", hot.type.mesh)
    np.testing.assert_array_equal(host(hot), jax.nn.one_hot(plain, 8))
    small = sh.one_hot(np.array([1, 200], np.uint8), 8, over=("x", "y"))
    np.testing.assert_array_equal(host(small), jax.nn.one_hot(np.array([1, 200]), 8))
    with pytest.raises(sh.ShardingTypeError, match="cannot shard the classes on mesh axis `x`"):
        sh.one_hot(sh.array(plain, "i32[4@x]"), 8, over="x")


def test_segments_are_sharded_where_every_device_has_all_rows() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    rows, numbers = arr(6, 4), rng.integers(-2, 10, 6).astype(np.int32)
    f = lambda x, i: sh.segment_sum(x, i, 8, over="y")  # noqa: E731
    x, i = sh.array(rows, "f32[6,4@x]"), sh.array(numbers, "i32[6]")
    out, pull = jax.vjp(lambda x: f(x, i), x)  # type: ignore[no-untyped-call]
    assert out.type == sh.ShType.parse("f32[8@y,4@x]", out.type.mesh)
    assert_close(host(out), jax.ops.segment_sum(rows, numbers, 8))
    (gradient,) = pull(out)
    assert gradient.type == x.type.cotangent()
    _, wanted_pull = jax.vjp(lambda x: jax.ops.segment_sum(x, numbers, 8), rows)
    (wanted,) = wanted_pull(jnp.asarray(host(out)))
    assert_close(host(gradient), wanted)
    with pytest.raises(sh.ShardingTypeError, match="cannot shard the segments"):
        sh.segment_sum(sh.array(rows, "f32[6@x,4]"), i, 8, over="x")


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: sh.take(x, 1.5, 0), "`take` does not take `axis=0`"),
        (lambda x: sh.take(x, np.array([1]), 0, mode="nearest"), "`take` does not take these arguments"),
        (lambda x: sh.take_along_axis(x, np.array([1]), 0), "`take_along_axis` does not take these arguments"),
        (lambda x: sh.segment_sum(x, [1, 2], 4), "`segment_sum` needs a number for each row"),
    ],
)  # fmt: skip
def test_lookups_that_do_not_fit_say_why(call: Callable[[Any], Any], what: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    with pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(8, 4), "f32[8@x,4]"))
    assert info.value.what.startswith(what)
