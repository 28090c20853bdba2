"""Arrays from nothing, in every state."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import close, host

pytestmark = pytest.mark.mesh({"x": 2, "y": 2})


TYPES = [
    *("f32[4@x,8]", "f32[4,8]{U:x}", "bf16[4,8]{U:(x,y)}", "i32[4,8]{U:x}", "f8_e4m3fn[4,8@y]", "bool[4@x,8]"),
    *("c64[4]{U:x}", "f32[]", "f32[0@x]", "f32[4]{I:x}", "u8[4@(x,y)]", "i4[4]"),
]


@pytest.mark.one_in(5)
@pytest.mark.core
@pytest.mark.parametrize("text", TYPES)
def test_constants_have_their_type_and_denote_their_number(text: str) -> None:
    wanted = sh.ShType.parse(text)
    for value, made in (
        (0, sh.zeros(text)),
        (1, sh.ones(text)),
        (1, sh.full(text, 1)),
        (1, sh.ones_like(sh.zeros(text))),
    ):
        assert made.type == wanted
        close(host(made), np.full(wanted.shape, value, wanted.dtype), text, 0)


def test_varying_constants_are_made_on_each_device() -> None:
    made = sh.ones("f32[2]{V:x}")
    assert made.type == sh.ShType.parse("f32[2]{V:x}")
    assert (np.asarray(made.data) == 1).all()


def test_a_shape_is_replicated_by_policy() -> None:
    assert sh.zeros((4, 8)).type == sh.ShType.parse("f32[4,8]{R:(x,y)}")
    assert sh.zeros(np.int64(4), "bf16").type == sh.ShType.parse("bf16[4]{R:(x,y)}")
    with sh.policy("jax"):
        assert sh.zeros(4).type == sh.ShType.parse("f32[4]{I:(x,y)}")


def test_dtypes_come_from_the_type_the_argument_or_the_number() -> None:
    assert sh.zeros("[4@x]").type == sh.ShType.parse("f32[4@x]")
    assert sh.zeros("[4@x]", jnp.bfloat16).type == sh.ShType.parse("bf16[4@x]")
    assert sh.full("[4@x]", 2).type == sh.ShType.parse("i32[4@x]")
    assert sh.full((4,), True).type == sh.ShType.parse("bool[4]")
    assert sh.full((), 1j).type == sh.ShType.parse("c64[]")
    x = sh.zeros("f32[4@x]")
    assert sh.zeros_like(x, "i32").type == sh.ones_like(x, jnp.int32).type == sh.ShType.parse("i32[4@x]")
    assert sh.full_like(x, 3, "bf16").type == sh.ShType.parse("bf16[4@x]")


@pytest.mark.parametrize("xp", [sh, jnp], ids=["typed", "lifted"])
def test_flags_like_a_pending_sum_are_replicated(xp: Any) -> None:
    x = sh.zeros("f32[4@x]{U:y}")

    def flags(x: Any) -> Any:
        makers = xp.ones_like, xp.zeros_like, xp.empty_like, functools.partial(xp.full_like, fill_value=True)
        return [make(x, dtype=bool) for make in makers], xp.where(xp.ones_like(x, dtype=bool), x, 0.0)

    made, chosen = (flags if xp is sh else sh.lift(flags))(x)
    assert [y.type for y in made] == [sh.ShType.parse("bool[4@x]")] * 4
    assert chosen.type == x.type


@pytest.mark.one_in(13)
@pytest.mark.parametrize("type", [None, "[_@x]", "[n@(x,y)]", "[_]{U:x}", "[_]{I:x}"], ids=str)
@pytest.mark.parametrize("numbers", [(8,), (2, 10), (2, 10, 2), (0, 1, 0.25), (8.0,), (8, 0, -1)], ids=str)
def test_arange_counts_by_the_global_index(type: str | None, numbers: tuple[Any, ...]) -> None:
    if type == "[n@(x,y)]" and np.arange(*numbers).size % 4:
        return
    close(host(sh.arange(*numbers, type=type)), jnp.arange(*numbers), str(numbers))


def test_ones_are_floats_where_nothing_says_otherwise_as_zeros_are() -> None:
    for given in ((4, 4), "[4@x, 4]"):
        assert sh.ones(given).dtype == sh.zeros(given).dtype == jnp.ones((4, 4)).dtype
        assert sh.ones(given, "i32").dtype == jnp.int32
