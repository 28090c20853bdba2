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
from tests.end_to_end import Case, check, host, sampled, some
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(4)

rng = np.random.default_rng(0)


def arr(*shape: int) -> Any:
    return rng.normal(size=shape).astype(np.float32)


EXPRESSIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pad": (lambda m, a: m.pad(a, ((1, 2), (0, 0))), (arr(4, 4),)),
    "pad with a number": (lambda m, a: m.pad(a, ((0, 0), (1, 2)), constant_values=2.5), (arr(4, 4),)),
    "pad with numbers": (lambda m, a: m.pad(a, ((0, 0), (1, 2)), constant_values=(1.0, 3.0)), (arr(4, 4),)),
    "pad by the edge": (lambda m, a: m.pad(a, ((0, 0), (1, 2)), mode="edge"), (arr(4, 4),)),
    "pad by the mean": (lambda m, a: m.pad(a, ((0, 0), (1, 2)), mode="mean"), (arr(4, 4),)),
    "pad by the largest": (lambda m, a: m.pad(a, ((0, 0), (1, 2)), mode="maximum"), (arr(4, 4),)),
    "flip": (lambda m, a: m.flip(a, 1), (arr(4, 4),)),
    "fliplr": (lambda m, a: m.fliplr(a), (arr(4, 4),)),
    "rot90": (lambda m, a: m.rot90(a), (arr(4, 2),)),
    "roll": (lambda m, a: m.roll(a, 3, 1), (arr(4, 4),)),
    "roll as one dim": (lambda m, a: m.roll(a, 3), (arr(4, 4),)),
    "repeat": (lambda m, a: m.repeat(a, 3, axis=0), (arr(4, 4),)),
    "repeat as one dim": (lambda m, a: a.repeat(2), (arr(4, 2),)),
    "repeat unequally": (lambda m, a: m.repeat(a, np.array([1, 0, 2, 3]), axis=1), (arr(4, 4),)),
    "tile": (lambda m, a: m.tile(a, (2, 1, 3)), (arr(4, 4),)),
    "tril": (lambda m, a: m.tril(a, 1), (arr(4, 8),)),
    "triu of a batch": (lambda m, a: m.triu(a), (arr(2, 4, 4),)),
    "diag of a vector": (lambda m, a: m.diag(a), (arr(8),)),
    "diag above": (lambda m, a: m.diag(a, 2), (arr(4),)),
    "diag of a matrix": (lambda m, a: m.diag(a), (arr(4, 4),)),
    "diagonal": (lambda m, a: m.diagonal(a, axis1=2, axis2=0), (arr(4, 2, 4),)),
    "diagonal above": (lambda m, a: a.diagonal(1), (arr(4, 8, 2),)),
    "diagonal far above": (lambda m, a: m.diagonal(a, 3), (arr(4, 8),)),
    "diagonal below": (lambda m, a: m.diagonal(a, -2, 2, 0), (arr(4, 2, 8),)),
    "trace": (lambda m, a: m.trace(a), (arr(4, 4),)),
    "trace of a batch": (lambda m, a: a.trace(-1, 0, 2), (arr(4, 2, 8),)),
}
INTEGERS = rng.integers(0, 9, (4, 4)).astype(np.int32)


def test_every_arrangement_that_types_is_right_forward_and_backward() -> None:
    mesh = sh.make_mesh({"x": 2, "y": 2})
    cases = [
        case
        for seed, (name, (fn, operands)) in enumerate(EXPRESSIONS.items())
        for case in sampled(mesh, fn, *operands, id=name, count=some(2, 5), seed=seed)
    ]
    assert len(cases) > len(EXPRESSIONS)
    check(mesh, cases)


def test_arrangements_of_integers_and_of_eager_values_are_right() -> None:
    mesh = sh.make_mesh({"x": 4})
    names = ("pad with a number", "roll", "repeat", "tril", "diag of a matrix", "trace")
    cases = [
        case
        for name in names
        for case in sampled(mesh, EXPRESSIONS[name][0], EXPRESSIONS[name][1][0][:4, :4], id=name, count=some(1, 4))
    ]
    cases += [Case(EXPRESSIONS[n][0], (INTEGERS,), ("[4@x,4]",), id=n) for n in ("tril", "trace", "repeat", "roll")]
    check(mesh, cases, eager=True)


@pytest.mark.parametrize("policy", ["partial", "jax"])
def test_arrangements_have_the_types_that_the_law_gives(policy: Any) -> None:
    def typed(name: str, *types: tuple[str, str]) -> list[Case]:
        fn, operands = EXPRESSIONS[name]
        return [Case(fn, operands, (given,), out=out, id=name) for given, out in types]

    with sh.policy(policy):
        check(
            sh.make_mesh({"x": 2, "y": 2}),
            [
                *typed("tril", ("[4@x,8@y]", "[4@x,8@y]"), ("[4,8@(y,x)]", "[4,8@(y,x)]"), ("[4@x,8]{U:y}",) * 2),
                *typed("trace", ("[4@x,4@y]", "[]{U:(x,y)}"), ("[4@x,4]", "[]{U:x}")),
                *typed("diag of a vector", ("[8@(x,y)]", "[8@(x,y),8]"), ("[8@y]{U:x}", "[8@y,8]{U:x}")),
                *typed("diag of a matrix", ("[4,4@x]", "[4@x]"), ("[4@x,4]{U:y}", "[4@x]{U:y}")),
                *typed(
                    "diagonal far above", ("[4@x,8]", "[4@x]"), ("[4@(y,x),8]", "[4@(y,x)]"), ("[4,8]{U:y}", "[4]{U:y}")
                ),
                *typed("diagonal below", ("[4@y,2@x,8]", "[2@x,4@y]")),
                *typed("repeat", ("[4@x,4@y]", "[12@x,4@y]"), ("[4@(x,y),4]", "[12@(x,y),4]")),
                *typed("pad with a number", ("[4@x,4]{U:y}", "[4@x,7]{U:y}")),
            ],
        )


def test_a_constant_around_an_unreduced_value_counts_once() -> None:
    with sh.use_mesh(sh.make_mesh({"x": 4})):
        a = arr(4, 4)
        padded = sh.pad(sh.array(a, "[4,4]{U:x}"), 1, constant_values=3.0)
        assert_close(host(padded), np.pad(a, 1, constant_values=3.0))


def _lax_pad(m: Any, a: Any, value: Any, config: Any) -> Any:
    """`jax.lax.pad`, whose form `sh.pad` takes too."""
    return m.pad(a, value, config) if m is sh else lax.pad(a, jnp.asarray(value, a.dtype), config)


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
    check(mesh, cases)
    check(mesh, cases[1::4], eager=True)


def test_arrangements_map_over_a_dim() -> None:
    a = arr(3, 4, 4)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x = sh.array(a, "[3,4@x,4]")
        for typed, plain in (
            (sh.tril, np.tril),
            (
                lambda r: sh.pad(r, ((0, 0), (1, 0)), constant_values=2.0),
                lambda r: np.pad(r, ((0, 0), (1, 0)), constant_values=2.0),
            ),
            (lambda r: sh.roll(sh.flip(r, 1), 1, 1), lambda r: np.roll(np.flip(r, 1), 1, 1)),
            (sh.trace, np.trace),
            (lambda r: sh.repeat(r, 2, 0), lambda r: np.repeat(r, 2, 0)),
        ):
            assert_close(host(sh.vmap(typed)(x)), np.stack([plain(r) for r in a]))


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
        (lambda a: sh.diag(sh.sum(a, 1), 1), "`pad` acts along dim 0, which is sharded on mesh axis `x`"),
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
            "`concatenate` acts along dim 0, which is sharded on mesh axis `x`",
        ),
        (lambda a: sh.diagonal(a, 0, 1, 1), "`diagonal` does not take these arguments"),
        (lambda a: sh.rot90(a, 2), "`flip` acts along dim 0, which is sharded on mesh axis `x`"),
    ],
)  # fmt: skip
def test_an_arrangement_that_does_not_type_says_why(call: Callable[..., Any], what: str) -> None:
    with sh.use_mesh(sh.make_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as info:
        call(sh.array(arr(4, 4), "[4@x,4]"))
    assert info.value.what == what
    assert "test_arrange.py" in info.value.where
