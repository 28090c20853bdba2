"""Windows of pads, and crops of windows, as windows with other padding: programs, values, gradients, what is sent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import shtypes as sh
from shtypes._compat.jaxprs import equations
from shtypes.lifting.ways.moving import MARKED
from shtypes.lifting.ways.paddings import with_paddings
from tests.end_to_end import host
from tests.lifting.windows import Case, assert_as_one_device, conv, gradients
from tests.tolerance import SERIES, assert_close

IMAGES = ("NHWC", "HWIO", "NHWC")
rng = np.random.default_rng(0)


def f32(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def padded(x: Any, k: Any) -> Any:
    return conv(jnp.pad(x, ((0, 0), (1, 1), (2, 0), (0, 0))), k)


def strided(x: Any, k: Any) -> Any:
    return conv(jnp.pad(x, ((0, 0), (0, 1), (1, 1), (0, 0))), k, stride=2)


def causal(x: Any, k: Any) -> Any:
    return conv(jnp.pad(x, ((0, 0), (6, 0), (0, 0))), k, rhs_dilation=(2,))


def cropped(x: Any, k: Any) -> Any:
    """As a causal convolution is written where padding is alike at both ends."""
    return conv(x, k, [(3, 3)])[:, :-3]


def padded_kernel(x: Any, k: Any) -> Any:
    return conv(x, lax.pad(k, jnp.float32(0), ((2, 1, 1), (0, 0, 0), (0, 0, 0))), [(4, 5)])


def max_pool(x: Any) -> Any:
    y = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
    return lax.reduce_window(y, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")


def min_pool(x: Any) -> Any:
    y = jnp.pad(x, ((0, 0), (2, 0), (0, 0), (0, 0)), constant_values=np.inf)
    return lax.reduce_window(y, np.inf, lax.min, (1, 3, 1, 1), (1, 1, 1, 1), "VALID")


def sums(x: Any) -> Any:
    y = jnp.pad(x, ((0, 0), (2, 2), (0, 0), (0, 0)))
    return lax.reduce_window(y, 0.0, lax.add, (1, 3, 1, 1), (1, 1, 1, 1), "VALID")[:, 1:-1]


def convolved(x: Any, k: Any) -> Any:
    return jnp.convolve(x, k)[: x.shape[0]]


def rows_convolved(x: Any, k: Any) -> Any:
    return jax.vmap(convolved)(x, k)


def in_call(x: Any, k: Any) -> Any:
    return jax.jit(conv)(jnp.pad(x, ((0, 0), (3, 0), (0, 0))), k)


IMAGE, LINE = f32(2, 16, 8, 3), f32(2, 16, 3)
ROWS, BOTH, SEQUENCE = "[2,16@x,8,3]", "[2,16@x,8@y,3]", "[2,16@x,3]"
CASES = [
    Case("padded", padded, (IMAGE, f32(3, 3, 3, 4)), (ROWS, "[3,3,3,4]"), (192, 448)),
    Case("padded", padded, (IMAGE, f32(3, 3, 3, 4)), (BOTH, "[3,3,3,4]"), (384, 640)),
    Case("strided", strided, (IMAGE, f32(3, 3, 3, 4)), (ROWS, "[3,3,3,4]"), (96, 256)),
    Case("causal", causal, (LINE, f32(4, 3, 3)), (SEQUENCE, "[4,3,3]"), (72, 144)),
    Case("cropped", cropped, (LINE, f32(4, 3, 3)), (SEQUENCE, "[4,3,3]"), (36, 144)),
    Case("padded_kernel", padded_kernel, (LINE, f32(4, 3, 3)), (SEQUENCE, "[4,3,3]"), (72, 144)),
    Case("convolved", convolved, (f32(16), f32(4)), ("[16@x]", "[4]"), (12, 24)),
    Case("rows_convolved", rows_convolved, (f32(3, 16), f32(3, 4)), ("[3,16@x]", "[3,4]"), (36, 72)),
    Case("in_call", in_call, (LINE, f32(4, 3, 3)), (SEQUENCE, "[4,3,3]"), (36, 144)),
    Case("min_pool", min_pool, (IMAGE,), (ROWS,), (192, 288)),
    Case("sums", sums, (IMAGE,), (ROWS,), (192, 288)),
    Case("max_pool", max_pool, (IMAGE,), (BOTH,), (216, 384)),
]
NAMES = [f"{case.name}-{case.types[0]}" for case in CASES]


def merged(f: Callable[..., Any], args: Sequence[Any]) -> Any:
    """The program of a function with its pads merged, and its results."""
    closed = jax.make_jaxpr(f)(*args)
    program = with_paddings(closed.jaxpr)
    return program, jax.core.eval_jaxpr(program, closed.consts, *args)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_no_pad_or_crop_is_left_beside_windows_and_values_and_gradients_are_the_same(case: Case) -> None:
    for f in (case.f, gradients(case.f, len(case.args))):
        program, results = merged(f, case.args)
        kinds = {e.primitive.name for e in equations(program)}
        assert kinds.isdisjoint({"pad", "slice"}) or case.f in (padded_kernel, sums)  # in gradients
        for value, wanted in zip(results, jax.tree.leaves(f(*case.args)), strict=True):
            assert_close(value, wanted, SERIES)


@pytest.mark.parametrize(
    "f",
    [
        lambda x, k: conv(jnp.pad(x, ((0, 0), (1, 1), (0, 0)), constant_values=1), k),
        lambda x, k: conv(jnp.pad(x, ((0, 0), (1, 1), (0, 0)), mode="edge"), k),
        lambda x, k: conv(jnp.pad(x, ((0, 0), (1, 1), (0, 0)), constant_values=k[0, 0, 0]), k),
        lambda x, k: conv(jnp.pad(x, ((1, 0), (0, 0), (0, 0))), k),
        lambda x, k: conv(lax.pad(x, jnp.float32(0), ((0, 0, 0), (-1, 2, 0), (0, 0, 0))), k),
        lambda x, k: conv(x, k)[:1],
        lambda x, k: conv(x, k)[:, ::2],
        lambda x, k: (y := conv(x, k, [(3, 3)]), y[:, 3:]),
        lambda x, k: lax.pad(conv(x, k, [(3, 3)]), jnp.float32(0), ((0, 0, 0), (-1, 2, 0), (0, 0, 0))),
        lambda x, k: lax.reduce_window(
            jnp.pad(x, ((0, 0), (1, 1), (0, 0))), -np.inf, lax.max, (1, 3, 1), (1,) * 3, "VALID"
        ),
        lambda x, k: lax.reduce_window(x, 0.0, lax.add, (1, 3, 1), (1, 1, 1), "VALID")[:, 1:],
    ],
)
def test_what_is_no_padding_of_windows_stays(f: Any) -> None:
    args = (LINE, f32(4, 3, 3))
    program, results = merged(f, args)
    kinds = {e.primitive.name for e in equations(program)}
    assert kinds & {"pad", "slice", "concatenate"}
    for value, wanted in zip(results, jax.tree.leaves(f(*args)), strict=True):
        assert_close(value, wanted, SERIES)


def test_marks_of_expressions_change_nothing() -> None:
    def f(x: Any, k: Any) -> Any:
        y = checkpoint_name(jnp.pad(checkpoint_name(x, f"{MARKED}0"), ((0, 0), (3, 0), (0, 0))), f"{MARKED}1")
        y = checkpoint_name(conv(y, k, [(0, 4)]), f"{MARKED}2")[:, :-4]
        return jnp.pad(checkpoint_name(y, f"{MARKED}3"), ((0, 0), (4, 4), (0, 0))).reshape(2, 6, 4, 3)[:, 1:]

    args = LINE, f32(4, 3, 3)
    program, _ = merged(f, args)
    assert {(2, n, 3) for n in (19, 20, 24)}.isdisjoint(v.aval.shape for e in equations(program) for v in e.outvars)
    assert_close(jax.core.eval_jaxpr(program, [], *args)[0], f(*args), SERIES)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("seed", range(60))
def test_a_random_chain_of_pads_windows_and_crops_is_the_same(seed: int) -> None:
    r = random.Random(seed)
    pads = [(r.randrange(-1, 3), r.randrange(-1, 4), r.randrange(3)) for _ in range(2)]
    # jaxlib 0.10 reads beyond the operands of some convolutions with negative padding
    cut, padding = (r.randrange(2), r.randrange(2)), [(max(0, r.randrange(-1, 3)), max(0, r.randrange(-1, 3)))]
    options: dict[str, Any] = {
        "lhs_dilation": (r.randrange(1, 3),),
        "rhs_dilation": (r.randrange(1, 3),),
        "stride": r.randrange(1, 3),
    }

    pads_kernel = r.random() < 0.5

    def f(x: Any, k: Any) -> Any:
        zero = jnp.float32(0)
        kernel = lax.pad(k, zero, (pads[1], (0, 0, 0), (0, 0, 0))) if pads_kernel else k
        y = conv(lax.pad(x, zero, ((0, 0, 0), pads[0], (0, 0, 0))), kernel, padding, **options)
        crop = (0, 0, 0), (-cut[0], -cut[1], 0), (0, 0, 0)
        return lax.pad(y, zero, crop) if pads_kernel else y[:, cut[0] : y.shape[1] - cut[1]]

    args = f32(2, 16, 3), f32(2, 3, 2)
    for g in (f, gradients(f, 2)):
        _, results = merged(g, args)
        for value, wanted in zip(results, jax.tree.leaves(g(*args)), strict=True):
            assert_close(value, wanted, SERIES)


@pytest.mark.nightly
@pytest.mark.mesh({"x": 4, "y": 2})
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_it_sends_borders_and_is_what_one_device_computes(case: Case) -> None:
    assert_as_one_device(case)


@pytest.mark.mesh({"x": 4, "y": 2})
def test_pads_and_windows_of_one_scope_are_merged_and_those_of_two_are_not() -> None:
    def in_one(x: Any, k: Any) -> Any:
        with sh.implicit_comm():
            return causal(x, k)

    def in_two(x: Any, k: Any) -> Any:
        y = jnp.pad(x, ((0, 0), (6, 0), (0, 0)))
        with sh.no_comm():
            return jnp.sin(conv(y, k, rhs_dilation=(2,)))

    args = sh.array(LINE, SEQUENCE), sh.array(f32(4, 3, 3), "[4,3,3]")
    assert sh.ledger(sh.lift(in_one), *args).total.bytes == 144
    with pytest.raises(sh.ShardingTypeError, match="`pad` acts along dim 1"):
        sh.lift(in_two)(*args)
    assert host(sh.implicit_comm(sh.lift(in_two))(*args)).shape == (2, 16, 3)


def test_no_convolution_gets_negative_padding() -> None:
    """XLA's on CPUs read beyond their operands for some (jaxlib 0.10), and gave whatever lies there."""

    def f(x: Any, k: Any) -> Any:
        return conv(x, k)[:, 2:-1]

    for g in (f, gradients(f, 2)):
        program, results = merged(g, args := (f32(2, 17, 3), f32(7, 3, 2)))
        windows = [e for e in equations(program) if e.primitive.name == "conv_general_dilated"]
        assert windows
        assert all(n >= 0 for e in windows for pads in e.params["padding"] for n in pads)
        for value, wanted in zip(results, jax.tree.leaves(g(*args)), strict=True):
            assert_close(value, wanted, SERIES)
