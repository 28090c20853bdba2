"""Arguments of the wrong kind: taken, or refused in our words and with the user's line."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from tests.end_to_end import some
from tests.ops.test_table import calls_of, function, variables
from tests.peers.programs import VARIABLES, array

m: Any = sh  # for calls that a type checker refuses too

WRONG: dict[str, Callable[[], Any]] = {
    "a typed number": lambda: sh.array(np.float32(1), "[]"),
    "a typed vector": lambda: sh.array(np.ones(2, np.float32), "[2]"),
    "a number of JAX's": lambda: jnp.float32(1),
    "a vector of JAX's": lambda: jnp.ones(2),
    "text": lambda: "banana",
    "an object": object,
    "a list": lambda: [1.5, 2.5],
    "a negative number": lambda: -7,
    "a fraction": lambda: 1.5,
    "nothing": lambda: None,
}
#: Parameters that JAX does not check, so that XLA refuses them where it compiles.
UNCHECKED = ("recall_target", "reduction_input_size_override")
CHOSEN = [op for op in OPS.values() if op.space in ("", "linalg", "fft", "nn")]
CHOSEN = CHOSEN[:: some(40, 1)]


@pytest.fixture(autouse=True)
def on_a_mesh() -> Iterator[None]:
    with sh.use_mesh(sh.make_mesh({"x": 2})), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX's own, of parameters that it does not use
        yield


def arguments(call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call of the list, on typed values."""
    values = {}
    for name in variables(call):
        v = VARIABLES[name]
        values[name] = sh.array(array(name), f"{v.dtype}[{','.join(map(str, v.shape))}]")
    found: tuple[tuple[Any, ...], dict[str, Any]] = eval(f"(lambda *a, **k: (a, k))({call})", values)
    return found


@pytest.mark.one_in(15)
@pytest.mark.parametrize("op", CHOSEN, ids=lambda op: op.name)
def test_an_argument_of_the_wrong_kind_is_refused_in_our_words(op: Op) -> None:
    f, calls = function(op), calls_of(op)
    if not calls:
        pytest.skip("no call of the list fits")
    args, kwargs = arguments(calls[0])
    raw = {}
    for parameter in list(inspect.signature(f).parameters.values())[len(args) :]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in (*kwargs, *UNCHECKED):
            continue
        for kind, make in WRONG.items():
            try:
                f(*args, **kwargs, **{parameter.name: make()})
            except sh.ShardingTypeError as error:
                if "test_arguments.py" not in error.where:
                    raw[parameter.name, kind] = repr(error)
            except Exception as error:
                raw[parameter.name, kind] = repr(error)
    assert not raw


MESSAGES = {
    "a fraction": (
        lambda x: m.fft.fft(x, axis=1.5),
        "`fft` does not take `axis=1.5`\n  where: LINE: fft\n"
        "  why:   'float' object cannot be interpreted as an integer",
    ),
    "a value": (
        lambda x: m.nan_to_num(x, nan=x),
        "`nan` of `nan_to_num` must be known when it is traced\n  where: LINE: nan_to_num\n"
        "  why:   it is a value of type f32[2]",
    ),
    "an array": (
        lambda x: m.nan_to_num(x, nan=jnp.ones(3)),
        "`nan` of `nan_to_num` is one number, not an array of shape [3]\n  where: LINE: nan_to_num",
    ),
    "numbers": (
        lambda x: m.nan_to_num(x, nan=[0.0, 1.0]),
        "`nan` of `nan_to_num` is one number, not [0.0, 1.0]\n  where: LINE: nan_to_num",
    ),
    "a mask of floats": (
        lambda x: m.softmax(x, where=x),
        "`softmax` does not take `where=f32[2]`\n  where: LINE: softmax\n"
        "  why:   jnp.max: where must be None or a boolean array; got where.dtype=dtype('float32').",
    ),
    "two that may be meant": (
        lambda x: m.fft.fft(x, n="k", axis=1.5),
        "`fft` does not take these arguments\n  where: LINE: fft\n"
        "  why:   'str' object cannot be interpreted as an integer",
    ),
    "an order": (
        lambda x: m.linalg.norm(x, ord=object),
        "`norm` does not take `ord=<class 'object'>`\n  where: LINE: norm\n"
        "  why:   float() argument must be a string or a real number, not 'type'",
    ),
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_what_is_wrong_is_said(case: tuple[Callable[[Any], Any], str]) -> None:
    call, wanted = case
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(sh.ones("f32[2]"))
    line = caught.value.where.rpartition(": ")[0]
    assert line.startswith("test_arguments.py:")
    assert str(caught.value).replace(line, "LINE") == wanted


def test_a_parameter_may_be_a_number_of_jax() -> None:
    x = sh.array(np.asarray([1.0, np.nan], np.float32), "[2]")
    assert np.asarray(sh.nan_to_num(x, nan=jnp.float32(3))).tolist() == [1.0, 3.0]
    assert np.asarray(sh.celu(-x, alpha=jnp.float32(2)))[0] == pytest.approx(2 * np.expm1(-0.5), rel=1e-6)


def test_no_traced_value_is_kept_for_the_next_call() -> None:
    x = sh.ones("f32[2]")
    for _ in range(2):
        with pytest.raises(sh.ShardingTypeError, match="must be known"):
            sh.grad(lambda v: sh.sum(m.nan_to_num(v, copy=v)))(x)
    assert np.asarray(sh.nan_to_num(x)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "why", "hints"),
    [
        (lambda x: m.sum(x, axis="x"), "; `x` is a mesh axis, and shards dim 0", ("axis=0",)),
        (lambda x: x.mean(axis=("h", 0)), "; `h` is the name of dim 1, for reading", ("axis=(1, 0)",)),
        (lambda x: m.softmax(x, axis="q"), "", ()),
        (lambda x: m.swapaxes(x, "b", 1), "; `b` is the name of dim 0, for reading", ("axis1=0",)),
    ],
)
def test_a_name_in_the_place_of_a_dim_is_told_the_number(call: Any, why: str, hints: tuple[str, ...]) -> None:
    with pytest.raises(sh.ShardingTypeError, match="and a dim is given by its number") as caught:
        call(sh.ones("f32[b=4@x, h=2]"))
    assert (caught.value.why, caught.value.hints) == (f"the operand is f32[b@x, h]{why}", hints)
