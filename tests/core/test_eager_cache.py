"""Eager calls again: the second call of an op asks no rule, and gives what the first would give."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.caches import Bounded
from shtypes.core import eager_cache
from shtypes.core.eager_cache import CallRecorder, cached_eagerly
from shtypes.dispatch import apply
from shtypes.ops import table
from tests.peers.programs import VARIABLES
from tests.tolerance import assert_close

pytestmark = pytest.mark.mesh({"dp": 2, "tp": 2})


def value(seed: int, t: str = "f32[8@dp, 4]") -> Any:
    return sh.array(np.random.default_rng(seed).standard_normal((8, 4)).astype(np.float32), t)


def same(x: Any, y: Any) -> None:
    assert x.type is y.type  # the names too
    np.testing.assert_array_equal(np.asarray(x.data), np.asarray(y.data))


OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: x + y,
    "mul": sh.multiply,
    "number": lambda x, y: x * 2.5,
    "keyword": lambda x, y: sh.sum(x, axis=1, keepdims=True),
    "sum": lambda x, y: sh.sum(x),
    "silu": lambda x, y: sh.silu(x),
    "cast": lambda x, y: x.astype("bf16"),
    "reshape": lambda x, y: sh.reshape(x, (8, 2, 2)),
    "transpose": lambda x, y: x.T,
    "einsum": lambda x, y: sh.einsum("ij,kj->ik", sh.all_gather(x, "dp"), y),
    "einsum with a cast": lambda x, y: sh.einsum("ij,j->i", x, sh.sum(sh.reshard(y, dp="I"), 0)),
    "einsum with a target": lambda x, y: sh.einsum("ij,ij->j", x, y, out="[_]"),
    "reshard": lambda x, y: sh.reshard(x, "[_, 4@dp]"),
    "gather": lambda x, y: sh.all_gather(x, "dp"),
    "a list": lambda x, y: sh.concatenate([x, y], axis=1),
    "a dict in a list": lambda x, y: sh.stop_gradient([{"a": x}, y])[0]["a"],
    "the second result": lambda x, y: sh.top_k(y, 2)[1],
    "a lookup": lambda x, y: sh.take(x, sh.astype(sh.abs(sh.reshard(y, "[8,4]")[0]), "i32"), 1),
    "known positions": lambda x, y: sh.take(x, np.array([1, 0, 3]), 1),
    "a constant of its own": lambda x, y: sh.nanprod(x, 1, initial=2.0),
    "a softmax across shards": lambda x, y: sh.softmax(x, 0, out="[_@dp, _]"),
    "a variance across shards": lambda x, y: sh.var(x, 0, out="[_]"),
    "a sort across shards": lambda x, y: sh.sort(x, 0, out="[_@dp, _]"),
    "of nothing": lambda x, y: sh.arange(8, type="[_@dp]"),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("name", OPS)
def test_a_second_call_gives_for_other_data_what_the_general_path_gives(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OPS[name](value(0), value(1))
    found = OPS[name](value(2), value(3))
    monkeypatch.setattr(eager_cache, "no_trace_is_running", lambda: False)  # the general path, every time
    same(found, OPS[name](value(2), value(3)))


@pytest.mark.parametrize("name", OPS)
def test_a_second_call_asks_no_rule_and_makes_no_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    OPS[name](value(0), value(1))

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the general path was taken")

    monkeypatch.setattr(apply, "as_operands", refuse)
    for module in ("ops.pointwise", "ops.arithmetic", "ops.einsum", "ops.jax_functions", "ops.lookup"):
        monkeypatch.setattr(f"shtypes.{module}.as_operands", refuse)
    monkeypatch.setattr("shtypes.dispatch.reshard.as_operands", refuse)
    OPS[name](value(2), value(3))


def test_one_value_twice_is_not_two_values() -> None:
    x, y = value(0), value(1)
    same(x + x, x * 2.0)
    np.testing.assert_array_equal(np.asarray(x - y), np.asarray(x) - np.asarray(y))
    np.testing.assert_array_equal(np.asarray(x - x), 0)
    np.testing.assert_array_equal(np.asarray(y - x), np.asarray(y) - np.asarray(x))

    @cached_eagerly
    def product(x: Any, y: Any) -> Any:
        return x * y

    for other in (x, y):  # first of one value, so that nothing was noted of two
        np.testing.assert_array_equal(np.asarray(product(x, other)), np.asarray(x) * np.asarray(other))


def test_static_arguments_that_act_differently_are_told_apart() -> None:
    @cached_eagerly
    def by_kind(x: Any, n: Any) -> Any:
        return {int: x, float: -x, bool: x.astype("bf16")}[type(n)]

    x = value(0)
    for _ in range(2):
        same(by_kind(x, 1), x)
        same(by_kind(x, 1.0), -x)
        same(by_kind(x, True), x.astype("bf16"))
    keys = [eager_cache._static(v) for v in (1, 1.0, True, 0.0, -0.0, (1,), (1.0,), None, "1")]
    assert len(set(keys)) == len(keys)
    assert eager_cache._static([1]) is None
    assert eager_cache._static((1, [2])) is None


def test_another_policy_is_another_call() -> None:
    u = sh.reshard(value(0, "f32[8, 4]"), tp="U")
    states = []
    for policy in ("partial", "jax", "partial"):
        with sh.policy(policy):
            states.append(sh.all_reduce(u, "tp").type.state("tp"))
    assert states == [sh.State.REDUCED, sh.State.INVARIANT, sh.State.REDUCED]


def test_types_that_differ_in_names_alone_keep_their_own() -> None:
    named, plain = value(0, "f32[rows@dp, columns]"), value(0)
    assert [(-x).type.names for x in (named, plain, named)] == [("rows", "columns"), (None, None), ("rows", "columns")]


def test_a_plain_array_is_read_in_every_call() -> None:
    x = value(0)
    for fill in (1, 2):
        plain = np.full((8, 4), fill, np.float32)
        np.testing.assert_array_equal(np.asarray(x + plain), np.asarray(x) + plain)


def test_a_number_that_enters_as_an_array_is_right_in_every_call() -> None:
    u = sh.reshard(value(0, "f32[8, 4]"), tp="U")
    for number in (1.0, 2.0, 1.0):
        expected = np.asarray(sh.all_reduce(u)) + number
        assert_close(np.asarray(sh.all_reduce(u + number)), expected)


def test_an_op_that_has_nothing_to_do_returns_its_operand_again() -> None:
    for x in (value(0), value(1)):
        assert x.astype("f32") is x
        assert sh.reshape(x, (8, 4)) is x


def test_data_that_decides_is_read_in_every_call() -> None:
    x = value(0)
    for count in (1, 3):
        size: Any = sh.array(np.int32(count), "i32[]")
        assert sh.top_k(x, size)[0].type.shape == (8, count)


def test_a_known_array_is_told_apart_by_its_elements() -> None:
    x = value(0)
    for places in ([0, 1], [1, 0], [0, 1]):
        np.testing.assert_array_equal(np.asarray(sh.take(x, np.array(places), 1)), np.asarray(x)[:, places])


def test_a_constant_on_other_devices_is_made_again() -> None:
    found = []
    for devices in (jax.devices()[:4], jax.devices()[4:]):
        with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 2}, devices=devices)):
            x = value(0)
            y = jax.block_until_ready(sh.take(x, np.array([1, 0, 3]), 1))
            found.append(y.data.sharding.device_set)
            np.testing.assert_array_equal(np.asarray(y), np.asarray(x)[:, [1, 0, 3]])
            found.append(sh.arange(8, type="[_@dp]").data.sharding.device_set)
    assert found[0] == found[1] == set(jax.devices()[:4])
    assert found[2] == found[3] == set(jax.devices()[4:])


def test_results_in_a_tree_are_made_anew() -> None:
    x = value(0)
    first, second = sh.top_k(x, 2), sh.top_k(x, 2)
    assert len(first) == 2
    assert first is not second
    for one, other in zip(first, second, strict=True):
        same(one, other)


#: Functions that are called by programs alone, in local mode, that make functions, or that take trees of anything.
NOT_REPLAYED = ("lax.", "tree.", "init.")


def test_every_function_of_arrays_remembers_its_calls() -> None:
    def remembers(name: str) -> bool:
        f: Any = functools.reduce(getattr, name.split("."), sh)
        while f is not None:
            code = getattr(f, "__code__", None)  # a partial has none
            if code is not None and code.co_qualname == "cached_eagerly.<locals>.call":
                return True
            f = getattr(f, "__wrapped__", None)
        return False

    forgetting = {name for name in table.OPS if not remembers(name)}
    assert all(name.startswith(NOT_REPLAYED) for name in forgetting), forgetting
    assert len(forgetting) < 50


#: What functions of arrays are called with: these, and keys for samples.
GIVEN = (
    *(
        *("a", "a, b", "a, 2", "i, 4", "a, i", "a, j", "v, v", "q", "q, q", "q, w", "a, (8, 4)", "[a, b]", "n"),
        *("n, n", "h"),
    ),
    *("p, a, b", "a, 1", "z", "s", "a, b, c", "a, 0, 1", "t, t", "4", "(4, 8)", "'f32[4,8@x]'", "key", "key, 4"),
    *("key, a", "key, 0.5, (4, 8)", "key, q[0], q", "'ij,ij->i', a, b", "a, (0, 0), (2, 8)", "a, 0, 2"),
)


def operands(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, v in VARIABLES.items():
        sample = rng.integers(1, v.high or 4, v.shape) if v.dtype in ("i32", "bool") else rng.uniform(0.1, 0.9, v.shape)
        text = f"[{','.join(map(str, v.shape))}]"
        made[name] = sh.array(sample.astype(np.complex64 if v.dtype == "c64" else np.float32), text).astype(v.dtype)
    return {**made, "key": sh.random.key(seed)}


@pytest.mark.one_in(409)
@pytest.mark.parametrize("name", [name for name in table.OPS if not name.startswith(NOT_REPLAYED)])
def test_a_warm_call_of_every_function_asks_no_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f: Any = functools.reduce(getattr, name.split("."), sh)
    read: list[int] = []
    done = 0
    incomplete = CallRecorder.incomplete

    def noting(recorder: CallRecorder) -> None:
        read.append(1)
        incomplete(recorder)

    def general(*_: Any) -> Any:
        pytest.fail("the general path was taken again")

    monkeypatch.setattr(CallRecorder, "incomplete", noting)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        first, second = operands(1), operands(2)
        for call in GIVEN:
            read.clear()
            try:
                eval(f"function({call})", {**first, "function": f})
            except (sh.ShardingTypeError, TypeError, IndexError):
                continue
            with monkeypatch.context() as patched:
                if not read:  # what depends on data is asked again
                    patched.setattr(apply, "as_operands", general)
                    patched.setattr(CallRecorder, "__init__", general)
                eval(f"function({call})", {**second, "function": f})
            done += 1
            if done == 2:
                return
    if not done:
        pytest.skip("no call of the list fits")


def test_values_without_data_are_typed_in_every_call() -> None:
    x = value(0)
    t: Any = sh.abstract_array(x.type)
    assert (x + x).data is not None
    assert (t + t).data is None
    assert (x + x).data is not None


def test_traced_values_are_traced_in_every_call() -> None:
    x = value(0)
    _ = x * x
    assert "mul" in str(jax.make_jaxpr(lambda x: x * x)(x))
    same(jax.jit(lambda x: x * x)(x), x * x)


def test_an_error_is_raised_in_every_call() -> None:
    x, y = value(0), value(1, "f32[8, 4@tp]")
    for _ in range(2):
        with pytest.raises(sh.ShardingTypeError, match="test_eager_cache"):
            sh.silu(sh.reshard(x, tp="U"))
    same(x + sh.reshard(y, tp="R", dp=0), sh.reshard(y, tp="R", dp=0) + x)


def test_between_replicated_states_a_reshard_keeps_the_buffers() -> None:
    x = value(0, "f32[8, 4]{I:dp, R:tp}")
    y = sh.reshard(x, dp="R", tp="I")
    assert y.data is x.data
    assert y.type.states == (sh.State.REDUCED, sh.State.INVARIANT)


def test_what_was_not_noted_makes_no_cached_call() -> None:
    x, y = value(0), value(1)
    noted = CallRecorder([x])
    noted.ran(lambda *physical_arrays: physical_arrays, [y], [x + x])
    assert noted.cached_call(x) is None
    assert CallRecorder([x]).cached_call(y) is None
    assert CallRecorder([x]).cached_call((x, y)) is None
    assert CallRecorder([x]).cached_call((x, np.ones(100))) is None
    read = CallRecorder([x])
    read.incomplete()
    assert read.cached_call(x) is None


def test_an_op_with_ever_new_numbers_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_cache, "_calls", Bounded(3))
    calls = []

    @cached_eagerly
    def scaled(x: Any, n: int) -> Any:
        calls.append(n)
        return x * n

    x = value(0)
    for n in (0, 1, 2, 0, 3, 0, 0):
        np.testing.assert_array_equal(np.asarray(scaled(x, n)), np.asarray(x) * n)
    assert calls == [0, 1, 2, 3, 0]  # the fourth number takes the place of the first


def test_threads_do_not_note_each_others_ops() -> None:
    x, y = value(0), value(1)
    inside, done = threading.Event(), threading.Event()

    @cached_eagerly
    def slow(x: Any) -> Any:
        inside.set()
        assert done.wait(60)
        return -x

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(slow(x)))
    thread.start()
    assert inside.wait(60)
    try:
        total = x + y
        assert eager_cache.current_recorder() is None
    finally:  # or the thread would wait, and hide what failed here
        done.set()
        thread.join()
    same(found[0], -x)
    same(slow(y), -y)
    np.testing.assert_array_equal(np.asarray(total), np.asarray(x) + np.asarray(y))
