"""What the plugin asks of the runtime: an answer, a refusal, or nothing; and sizes that stand for names."""

from __future__ import annotations

import gc
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import shtypes as sh
from shtypes.editor import runtime
from shtypes.editor.text_evaluator import ACTUAL_BELOW, StandInSizes, Undetermined
from shtypes.types.mesh import Mesh

MESH = Mesh({"dp": 2})


def asked(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return runtime.types_of_call(call, args, kwargs, MESH, "partial", sizes={})


def value(text: str) -> Any:
    return runtime.value(sh.ShType.parse(text, MESH))


def too_long(x: Any) -> Any:
    for _ in itertools.count():
        pass


class _Finalized:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        sum(range(20))


def too_long_in_finalizers(x: Any) -> Any:
    while True:
        _Finalized()


def too_large(x: Any) -> Any:
    return np.ones((10**6, 10**6)) + x


def no_error_of_types(x: Any) -> Any:
    raise RuntimeError


@pytest.fixture
def frequent_collections() -> Iterator[None]:
    """Collects garbage, and so runs finalizers, at Python's own pace, which tests/conftest.py slows down."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("frequent_collections")
@pytest.mark.parametrize("call", [too_long, too_long_in_finalizers, too_large, no_error_of_types])
def test_what_gives_no_answer_is_unknown(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "_SECONDS", 0.1)
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)  # that of pytest collects what is printed
    with pytest.raises(Undetermined):
        asked(call, value("f32[8]"))
    assert not capsys.readouterr().err
    assert asked(sh.exp, value("f32[8]")).shape == (8,)  # and the next answer is as before


@pytest.mark.parametrize("functions", [[], [np.sin]])  # with a function among its arguments a call is traced
def test_the_fixes_of_a_refusal_are_looked_for_where_they_are_wanted(functions: list[Any]) -> None:
    args = [value("f32[8]{U:dp}"), *functions]
    for fixes in (False, True):
        with pytest.raises(sh.ShardingTypeError) as caught:
            runtime.types_of_call(lambda x, *f: sh.exp(x), args, {}, MESH, "partial", sizes={}, fixes=fixes)
        assert bool(caught.value._fixes) == fixes


def test_a_number_that_is_not_written_is_known_where_its_value_does_not_matter() -> None:
    number = runtime.unknown_number("int")
    assert str(asked(lambda x, n: x[n], value("f32[8, 4]"), number)) == "f32[4]"
    assert str(asked(lambda x, n: x * n, value("bf16[8@dp]"), number)) == "bf16[8@dp]"
    with pytest.raises(Undetermined):
        asked(sh.sum, value("f32[8, 4]"), number)
    with pytest.raises(sh.ShardingTypeError, match="nonlinear"):
        asked(lambda x, n: n / x, value("f32[8]{U:dp}"), number)


def test_a_function_is_given_types_and_asked_between_two_calls() -> None:
    seen: list[str] = []

    def find(types: Any) -> Callable[[], Any]:
        seen.append(str(types))
        return lambda: (runtime.value_in_trace(types[0]), runtime.value_in_trace(types[1]))

    body = runtime.function_of_types(find)
    args = [body, value("f32[4]"), value("f32[6, 4]")]
    with pytest.raises(runtime.NeedsResult) as wanted:
        asked(sh.scan, *args)
    wanted.value.find()
    assert str(asked(sh.scan, *args)) == "(f32[4], f32[6,4])"
    assert seen == ["(f32[4], f32[4])"]


def test_sizes_of_names_are_read_back_from_arithmetic() -> None:
    sizes = StandInSizes({"heads": 16}, 8)
    n, m = sizes.of("n"), sizes.of("m")
    found = [sizes.text(s) for s in (n, 3 * n, n + 4, 2 * n - 1, n * m, n * m - 1, m * (n - 1), 16, 4096)]
    assert found == ["n", "3*n", "n + 4", "2*n - 1", "m*n", "m*n - 1", "m*(n - 1)", "16", "4096"]
    assert n % 8 == 0
    assert sizes.of("heads") == 16


def test_a_large_size_that_is_written_is_a_number() -> None:
    sizes = StandInSizes({}, 1)
    sizes.of("vocab")
    size = ACTUAL_BELOW + 28256
    assert sizes.text(size) is None
    sizes.add_written(size)
    assert sizes.is_actual(size)
    assert [sizes.text(s) for s in (size, 2 * size, size + 1)] == [str(size), str(2 * size), str(size + 1)]


def test_names_have_sizes_of_their_own_in_every_run() -> None:
    names = [f"n{i}" for i in range(200)]
    sizes = StandInSizes({}, 1)
    found = {sizes.of(name) for name in names}
    assert len(found) == 200
    assert StandInSizes({}, 1).of("n7") == sizes.of("n7")
    assert min(found) >= ACTUAL_BELOW
