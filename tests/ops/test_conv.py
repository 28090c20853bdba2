"""Convolutions against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import Case, check

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


NHWC = ("NHWC", "HWIO", "NHWC")


def test_features_that_are_summed_over_give_a_pending_sum() -> None:
    mesh = sh.make_mesh({"dp": 2, "tp": 4})
    x, w = arr(4, 6, 6, 8), arr(3, 3, 8, 4)
    conv = lambda m, x, w: m.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)  # noqa: E731
    types = ("f32[4@dp,6,6,8@tp]", "f32[3,3,8,4]")
    for policy in ("partial", "jax"):
        with sh.policy(policy):
            check(mesh, [Case(conv, (x, w), types, out="f32[4@dp,6,6,4]{U:tp}")])
    half = [sh.array(v.astype("bfloat16"), t[3:], mesh=mesh) for v, t in zip((x, w), types, strict=True)]
    out = "[4@dp,6,6,4@tp]"
    y = sh.conv_general_dilated(
        half[0], half[1], (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type="f32", out=out
    )
    assert str(y.type) == "f32[4@dp,6,6,4@tp]"


def test_a_sharded_spatial_dim_is_refused_with_prices() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        sh.conv(sh.array(arr(4, 4, 6, 6), "f32[4,4,6@x,6]"), arr(8, 4, 3, 3), (1, 1), "SAME")
    error = info.value
    assert error.what == "`conv_general_dilated` acts along dim 2, which is sharded on mesh axis `x`"
    assert error.why == "each device holds only its slice of that dim, and the result needs all of it"
    assert {str(f) for f in error.fixes} >= {
        'sh.reshard(x, "[4@x,4,6,6]")   [forward: all-to-all over `x`, 576 B/device; '
        "backward: all-to-all over `x`, 576 B/device]",
        'sh.reshard(x, "[4,4,6,6]{I:x}")   [forward: all-gather over `x`, 1152 B/device; backward: none]',
    }


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x, w: sh.conv(x, w, (1,), "SAME"), "`conv` does not take these arguments"),
        (lambda x, w: sh.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHW")),
         "`conv_general_dilated` does not take `dimension_numbers=('NHWC', 'HWIO', 'NHW')`"),
        (lambda x, w: sh.conv(x, w[..., :0], (1, 1), "SAME"),
         "`conv_general_dilated` of shapes (4, 4, 6, 6) and (8, 4, 3, 0) has windows without elements"),
    ],
)  # fmt: skip
def test_convolutions_that_do_not_fit_say_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4, 6, 6), "[...]"), arr(8, 4, 3, 3))
    assert info.value.what.startswith(what)
