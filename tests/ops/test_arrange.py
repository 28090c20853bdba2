"""Ops that put elements elsewhere against JAX on one device, over random types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import shtypes as sh
from tests.end_to_end import Case, check, host, some
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


def test_a_constant_around_an_unreduced_value_counts_once() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 4})):
        a = arr(4, 4)
        padded = sh.pad(sh.array(a, "[4,4]{U:x}"), 1, constant_values=3.0)
        assert_close(host(padded), np.pad(a, 1, constant_values=3.0))


def _lax_pad(m: Any, a: Any, value: Any, config: Any) -> Any:
    """`jax.lax.pad`, whose form `sh.pad` takes too."""
    return m.pad(a, value, config) if m is sh else lax.pad(a, jnp.asarray(value, a.dtype), config)


@pytest.mark.nightly
def test_padding_may_be_negative_or_between_elements_or_of_a_value() -> None:
    """A scalar value is a term of the result: it counts once, and has a gradient."""
    number = np.float32(1.5)
    out, within = ((0, 0, 0), (-1, 2, 0)), ((0, 0, 0), (1, -2, 2))
    cases = [
        Case(lambda m, a: _lax_pad(m, a, 0.0, out), (arr(4, 4),), ("[4@x,4]{U:y}",), out="[4@x,5]{U:y}"),
        Case(lambda m, a: _lax_pad(m, a, 2.0, within), (arr(4, 4),), ("[4,4]{U:(x,y)}",)),
        Case(lambda m, a: _lax_pad(m, a, 2.0, within), (arr(4, 4),), ("[4@(y,x),4]",)),
        Case(lambda m, a, b: _lax_pad(m, a, b, within), (arr(4, 4), number), ("[4@x,4]{U:y}", "[]")),
        Case(
            lambda m, a, b: _lax_pad(m, a, b, out),
            (arr(4, 4), number),
            ("[4,4]{I:(x,y)}", "[]{U:x}"),
            out="[4,5]{U:x}",
        ),
        Case(lambda m, a, b: m.pad(a, 1, constant_values=b), (arr(4, 4), number), ("[4,4]{U:y}", "[]{U:y}")),
    ]
    check(sh.make_mesh({"x": 2, "y": 2}), cases)


@pytest.mark.nightly
def test_shifts_and_counts_may_be_known_at_run_time() -> None:
    """As integers that are typed: eager calls and traced ones answer alike."""
    shift, shifts, counts = np.asarray(-5, np.int32), np.asarray([3, 1], np.int32), np.asarray([1, 0, 2, 3], np.int32)
    programs: dict[str, tuple[Callable[..., Any], Any]] = {
        "roll": (lambda m, a, n: m.roll(a, n, 1), shift),
        "roll as one dim": (lambda m, a, n: m.roll(a, n), shift),
        "roll two dims": (lambda m, a, n: m.roll(a, n, (0, 1)), shifts),
        "repeat": (lambda m, a, n: m.repeat(a, n, axis=1, total_repeat_length=5), counts),
        "repeat all as often": (lambda m, a, n: m.repeat(a, n[2], axis=1, total_repeat_length=9), counts),
    }
    mesh = sh.make_mesh({"x": 2, "y": 2})
    cases = [
        Case(fn, (arr(4, 4), by), (given, f"[{','.join(map(str, by.shape))}]"), id=name)
        for name, (fn, by) in programs.items()
        for given in (
            "[4,4]{U:x,I:y}",
            "[4@x,4]{U:y}" if name in ("roll", "repeat", "repeat all as often") else "[4,4]",
        )
    ]
    check(mesh, some([case for i, case in enumerate(cases) if i % 4 in (0, 3)], cases))
    check(mesh, cases[1::4], eager=True)


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        (lambda x: sh.pad(x, ((0, 0), (1, 2))), "transpose(pad["),
        (lambda x: sh.flip(x, 1), "rev"),
        (lambda x: sh.roll(x, 1, 1), "transpose(roll[1, 1])"),
        (sh.tril, "transpose(tril)"),
    ],
    ids=["pad", "flip", "roll", "tril"],
)
def test_gradients_of_arrangements_print_as_what_they_are(fn: Callable[..., Any], wanted: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a = sh.array(arr(4, 4), "[4@x,4]")

        def loss(x: Any) -> Any:
            y = fn(x)
            return sh.all_reduce(sh.sum(y * y), to="I").to_jax()

        text = str(jax.make_jaxpr(jax.grad(loss))(a))
    assert wanted in text.split("mul")[-1]
    assert "jvp(" not in text


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda a: sh.pad(a, 1), "`pad` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.pad(a, -1), "`pad` does not take these arguments"),
        (lambda a: sh.pad(a, 1, stat_length=2), "`pad` does not take these arguments"),
        (sh.flip, "`flip` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.roll(a, (1, 2, 3), (0, 1)), "`roll` does not take `axis=(0, 1)`"),
        (lambda a: sh.tile(a, (2, 1)), "`tile` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.tril(sh.sum(a, 1)), "`tril` does not take these arguments"),
        (lambda a: sh.diag(sh.sum(a, 1), 1), "`diag` acts along dim 0, which is sharded on mesh axis `x`"),
        (
            lambda a: sh.pad(a, 0.0, ((0, 0, 0), (-5, 0, 0))),
            "`pad` does not take `mode=((0, 0, 0), (-5, 0, 0))`",
        ),
        (lambda a: sh.pad(a, 0, ((0, -1, 0), (0, 0, 0))), "`pad` acts along dim 0, which is sharded on mesh axis `x`"),
        (
            lambda a: sh.roll(a, sh.zeros("i32[3]"), (0, 1)),
            "`roll` does not take `axis=(0, 1)`",
        ),
        (
            lambda a: sh.roll(a, sh.ones("i32[]"), 0),
            "`roll` acts along dim 0, which is sharded on mesh axis `x`",
        ),
        (lambda a: sh.diagonal(a, 0, 1, 1), "`diagonal` does not take these arguments"),
        (lambda a: sh.rot90(a, 2), "`rot90` acts along dim 0, which is sharded on mesh axis `x`"),
    ],
)  # fmt: skip
def test_an_arrangement_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4), "[4@x,4]"))
    assert info.value.what == what
    assert "test_arrange.py" in info.value.where


# joins and splits against JAX on one device, over random types


def test_gradients_of_joins_and_splits_print_as_what_they_are() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a, b = sh.array(arr(4, 4), "[4@x,4]"), sh.array(arr(4, 2), "[4@x,2]")

        def loss(a: Any, b: Any) -> Any:
            joined = sh.concatenate([a, b], 1)
            return sh.all_reduce(sh.sum(joined * joined), to="I").to_jax()

        text = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(a, b))
    assert "transpose(concatenate)" in text
    assert "jvp(" not in text


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda a: sh.concatenate([a, a]), "`concatenate` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.concatenate([]), "`concatenate` does not take these arguments"),
        (lambda a: sh.concatenate([sh.sum(a)]), "`concatenate` does not take these arguments"),
        (lambda a: sh.split(a, 2), "`split` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.split(a, 3, 1), "`split` does not take these arguments"),
        (sh.unstack, "`unstack` acts along dim 0, which is sharded on mesh axis `x`"),
        (lambda a: sh.unstack(sh.sum(a)), "`unstack` does not take these arguments"),
    ],
)
def test_a_join_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4), "[4@x,4]"))
    assert info.value.what == what
    assert "test_arrange.py" in info.value.where


def test_a_join_along_a_sharded_dim_offers_priced_fixes() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        a = sh.array(arr(4, 4), "[4@x,4]")
        with pytest.raises(sh.ShardingTypeError) as info:
            sh.concatenate([a, a])
    assert 'sh.reshard(lhs, "[4,4@x]"); sh.reshard(rhs, "[4,4@x]")' in [f.code for f in info.value.fixes]
