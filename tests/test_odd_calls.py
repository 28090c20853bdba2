"""Public functions that are no ops, called with anything: a result, or a refusal with the user's line."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import FunctionType
from typing import Any, Final

import numpy as np
import pytest

import shtypes as sh
from shtypes import api
from shtypes.ops.table import OPS
from tests.end_to_end import some

#: What sets something for all that follows; and functions of the half that is loaded first, refused by Python itself.
SETTING: Final = {"set_mesh", "set_policy", "set_region", "set_debug_checks", "current_policy", "dims", "dim_axes"}


def functions() -> Iterator[tuple[str, Any]]:
    for name, _, _ in api.places():
        if name not in OPS and name not in SETTING:
            yield name, getattr(sh, name)
    for space in ("debug", "tree", "optim", "init"):
        for name in getattr(sh, space).__all__:
            yield f"{space}.{name}", getattr(getattr(sh, space), name)


CALLED: Final = {n: f for n, f in functions() if isinstance(f, FunctionType) and f.__module__.startswith("shtypes")}


def given() -> dict[str, Any]:
    x = sh.ones("f32[4@x,8]")
    return {
        "a value": x, "a scalar": sh.ones("f32[]"), "a pair": (x, x), "a type": x.type, "numpy's": np.ones(3),
        "a number": 3, "a float": 2.5, "below zero": -1, "a text": "x", "a type's text": "f32[4]", "half": "f32[",
        "nothing": None, "a list": [], "a dict": {}, "true": True, "an object": object(),
        "a function": lambda *xs: xs, "functions": [abs], "a builtin": abs,
    }  # fmt: skip


@pytest.mark.one_in(57)
@pytest.mark.parametrize("name", CALLED)
def test_a_call_with_anything_gives_something_or_is_refused_in_words(name: str) -> None:
    f, wrong = CALLED[name], {}
    with sh.use_mesh(sh.make_mesh({"x": 2})), warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        values = given()
        calls = [names for count in range(3) for names in itertools.product(values, repeat=count)]
        calls += list(itertools.product(values, repeat=3))[:: some(400, 37)]
        for names in calls:
            try:
                f(*(values[n] for n in names))
            except sh.ShardingTypeError as error:
                if not str(error).strip():
                    wrong[names] = "an empty message"
            except Exception as error:
                wrong[names] = repr(error)
    assert not wrong


def test_most_functions_are_called() -> None:
    assert len(CALLED) > 70
