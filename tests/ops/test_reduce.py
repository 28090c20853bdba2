"""`sum` and `mean` against JAX on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.compiling import needs
from tests.end_to_end import Case, check, sampled, some

rng = np.random.default_rng(2)
X = rng.normal(size=(4, 8, 2)).astype(np.float32)
INTS = rng.integers(-100, 100, (4, 8), dtype=np.int8)
AXES = {"x": 2, "y": 2}


pytestmark = pytest.mark.mesh(AXES)


FORMS: dict[str, Callable[..., Any]] = {
    "all": lambda m, x: m.sum(x),
    "first": lambda m, x: m.sum(x, 0),
    "last": lambda m, x: m.sum(x, axis=-1),
    "two": lambda m, x: x.sum((0, -1)),
    "none": lambda m, x: m.sum(x, ()),
    "kept": lambda m, x: m.sum(x, 1, keepdims=True),
    "all kept": lambda m, x: x.sum(keepdims=True),
    "numpy's integer": lambda m, x: m.sum(x, np.int64(1)),
    "mean of all": lambda m, x: m.mean(x),
    "mean of one": lambda m, x: x.mean(1),
    "mean of two, kept": lambda m, x: m.mean(x, (-3, 1), keepdims=True),
    "mean of none": lambda m, x: m.mean(x, ()),
}


@pytest.mark.one_in(9)
@pytest.mark.core
@pytest.mark.parametrize("axes", [{"x": 2}, AXES], ids=lambda axes: "x".join(map(str, axes.values())))
def test_every_sum_and_mean_is_right_forward_and_backward(axes: dict[str, int]) -> None:
    mesh = sh.make_mesh(axes)
    cases = [
        c for i, (name, fn) in enumerate(FORMS.items()) for c in sampled(mesh, fn, X, id=name, count=some(2, 6), seed=i)
    ]
    assert len(cases) == some(2, 6) * len(FORMS)  # a sum types whatever the operand's type
    check(mesh, cases)


DTYPES: dict[str, Case] = {
    name: Case(fn, (x,), (t,), id=name)
    for name, fn, x, t in [
        ("integers", lambda m, x: m.sum(x.astype("int32"), 0), INTS, "[4@x,8]"),
        ("pending integers", lambda m, x: m.sum(x, 0), INTS.astype(np.int32), "[4@x,8]{U:y}"),
        ("mean of integers", lambda m, x: m.mean(x, 0), INTS, "[4@x,8@y]"),
        ("mean of pending integers", lambda m, x: m.mean(x), INTS.astype(np.int32), "[4@x,8]{U:y}"),
        ("mean of one integer", lambda m, x: m.mean(x), INTS[0, 0], "[]"),
        ("bools", lambda m, x: m.sum(x), INTS > 0, "[4@x,8@y]"),
        ("mean of bools", lambda m, x: m.mean(x, 1), INTS > 0, "[4@x,8@y]"),
        ("bf16", lambda m, x: m.sum(x), X.astype(jnp.bfloat16), "[4@x,8,2]{U:y}"),
        ("bf16 mean", lambda m, x: m.mean(x, 1), X.astype(jnp.bfloat16), "[4,8@x,2]"),
        ("widened", lambda m, x: m.sum(x, dtype=jnp.float32), X.astype(jnp.bfloat16), "[4@x,8,2]{U:y}"),
        ("narrowed", lambda m, x: m.sum(x, dtype=jnp.bfloat16), X[:, :2], "[4@x,2,2]"),
        ("rounded first", lambda m, x: m.sum(3 * x, dtype=jnp.int32), X, "[4@x,8,2]"),
        ("complex", lambda m, x: m.mean(x, 0), (X + 1j).astype(np.complex64), "[4@x,8,2]{U:y}"),
        ("of nothing", lambda m, x: m.sum(x, 1), X[:, :0], "[4@x,0,2]"),
    ]
}


def test_dtypes_are_jax_s() -> None:
    check(sh.make_mesh(AXES), DTYPES.values())


def test_out_adds_the_reshard() -> None:
    x = sh.array(X, "[4@x,8,2]")
    assert sh.sum(x, 0).type == sh.ShType.parse("f32[8,2]{U:x}")
    assert sh.sum(x, 0, out="[8@x,_]").type == sh.ShType.parse("f32[8@x,2]")
    assert sh.mean(x, out="[]{I:x}").type == sh.ShType.parse("f32[]{I:x}")


def test_a_mean_over_more_elements_than_its_dtype_counts_is_right() -> None:
    needs("f16")
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(np.full(1 << 17, 3, np.float16), "f16[_@x]")
        assert np.asarray(sh.all_reduce(sh.mean(x))) == 3
        np.testing.assert_array_equal(sh.grad(lambda x: sh.all_reduce(sh.mean(x)))(x), np.float16(2**-17))


def test_a_mean_over_more_elements_than_an_int32_counts_has_a_type() -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 1000})):
        x = sh.abstract_array("f32[100000@x, 100000]")
        assert str(sh.typeof(sh.mean(x))) == "f32[]{U:x}"


def test_a_mean_of_whole_numbers_is_cut_only_when_it_is_whole() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(np.arange(8, dtype=np.int32), "i32[_@x]")
        assert np.asarray(sh.mean(x, dtype="int32", out="[]")) == 3
        with pytest.raises(sh.ShardingTypeError, match="`mean` acts along dim 0"):
            sh.mean(x, dtype="int32")
