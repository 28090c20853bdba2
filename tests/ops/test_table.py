"""The table of ops: each row names what is there, and says truly what types it and in what it is linear."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import re
import runpy
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes import api
from shtypes.ops.row_functions import native_of
from shtypes.ops.rows import Op
from shtypes.ops.table import OPS
from shtypes.types import dtypes
from tests.end_to_end import host, some
from tests.peers.programs import VARIABLES
from tests.peers.public import CALLS
from tests.random_programs import spread
from tests.tolerance import assert_close

ROOT = Path(__file__).parents[2]
FLOATS = ("f32", "bf16", "c64")
#: What looks at the types of operands alone.
UNREAD = {
    *("zeros_like", "ones_like", "empty_like", "full_like", "array_equal", "array_equiv", "histogram_bin_edges"),
}  # fmt: skip
#: What is the operand itself, does not look at it, or adds a number to it, for these arguments.
SAME = re.compile(
    r"clip\(\w\)|(integer_)?pow(er)?\(\w, 1\)|select_n\(\w, [\d.]+\)|nan_to_num\(p, .*\)|trapezoid\(\w, \w, \w\)"
    r"|ediff1d\([1p], .*\)"
)
#: What gives other arguments to a function of the user's.
PASSED_ON = ("apply_along_axis", "piecewise")
#: Parameters that change no value, and conditions, which are no sums.
IGNORED = ("assume_unique", "check_finite", "condlist", "copy", "order", "overwrite_a")


def function(op: Op) -> Any:
    """The public function of a row."""
    return functools.reduce(getattr, op.name.split("."), sh)


def test_a_row_names_a_function_and_that_of_jax() -> None:
    for op in OPS.values():  # in one test: as 700 tests they are reported more slowly than they run
        _names_a_function_and_that_of_jax(op)


def _names_a_function_and_that_of_jax(op: Op) -> None:
    assert callable(function(op))
    assert inspect.unwrap(function(op)) is inspect.unwrap(getattr(importlib.import_module(op.module), op.attr))
    if op.module == "shtypes.ops.functions" and native_of(op) is None:
        return  # it says so
    kinds = {p.kind for p in inspect.signature(function(op)).parameters.values()}
    assert op.name in PASSED_ON or not kinds >= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    assert op.out == ("out" in inspect.signature(function(op)).parameters)
    if op.jax and jax.__version_info__ >= (0, 12):  # an older release lacks some
        module, _, name = op.jax.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_the_public_names_are_those_of_the_tables() -> None:
    assert dir(sh) == sorted({name for name, _, _ in api.places()} | {*api.NAMESPACES})
    assert {op.space for op in OPS.values()} - {""} <= {*api.NAMESPACES}
    assert not [name for name in dir(sh) if name.startswith("_")]


@pytest.mark.parametrize("space", api.NAMESPACES)
def test_a_namespace_shows_what_is_public_and_nothing_else(space: str) -> None:
    module = getattr(sh, space)
    rows = {op.name.partition(".")[2] for op in OPS.values() if op.space == space}
    assert dir(module) == sorted(module.__all__)
    assert rows <= {*module.__all__}
    for name in {*module.__all__} - rows:  # other names, other namespaces, and what takes no arrays
        value = getattr(module, name)
        assert callable(value) or value in [getattr(sh, s) for s in api.NAMESPACES], name


def test_the_stubs_are_what_the_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["stubs.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "generate" / "stubs.py"), run_name="__main__")
    late = re.findall(r"(\w+/\w+\.pyi)", str(ended.value.code))
    of_releases = {"ops/functions.pyi"} if jax.__version_info__ >= (0, 11) else set()  # JAX's, as of its oldest release
    assert {*late} <= of_releases, ended.value.code
    assert bool(ended.value.code) == bool(late), ended.value.code


# what a row says of its types


def variables(call: str) -> list[str]:
    """The variables of a call, in order."""
    found = [node.id for node in ast.walk(ast.parse(f"op({call})")) if isinstance(node, ast.Name)]
    return [name for name in dict.fromkeys(found) if name in VARIABLES]


def typed(op: Op, call: str, pending: set[str]) -> bool:
    """Whether a call types, with these variables pending sums and the others replicated."""
    names = variables(call)
    texts = [f"{v.dtype}[{','.join(map(str, v.shape))}]" for v in (VARIABLES[n] for n in names)]
    types = [text + ("{U:x}" if name in pending else "{R:x}") for name, text in zip(names, texts, strict=True)]

    def run(*xs: Any) -> Any:
        return eval(f"op({call})", {"op": function(op), **dict(zip(names, xs, strict=True))})

    try:
        with sh.use_mesh(sh.abstract_mesh({"x": 2})), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # JAX's own, of infinity as an integer
            jax.eval_shape(run, *map(sh.abstract_array, types))
    except (TypeError, ValueError, IndexError, OverflowError):
        return False
    return True


ALL_CALLS = [call for call in (*CALLS, "q, r", "a, 0, p") if variables(call)]


@functools.cache
def calls_of(op: Op) -> list[str]:
    """The calls of arrays that a function takes."""
    return [call for call in ALL_CALLS if typed(op, call, set())]


CHOSEN = [op for op in OPS.values() if not op.space or op.space in ("linalg", "fft")][:: some(150, 1)]


@pytest.mark.parametrize("op", [op for op in CHOSEN if op.rule], ids=lambda op: op.name)
def test_a_row_names_the_rule_that_types_it(op: Op) -> None:
    asked = set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "cached" and "/rules/" in frame.f_code.co_filename:
            asked.add(frame.f_locals["function"].__name__)

    sys.setprofile(watch)
    try:  # refused calls too: what types an op also refuses
        for call in ALL_CALLS:
            typed(op, call, set())
    finally:
        sys.setprofile(None)
    if not calls_of(op):
        pytest.skip("no call of the list fits")
    assert op.rule in asked


@pytest.mark.one_in(5)
@pytest.mark.parametrize("op", CHOSEN, ids=lambda op: op.name)
def test_a_row_says_in_which_operands_it_is_linear(op: Op) -> None:
    """Pending sums are taken there, alone or together; elsewhere only where the op of such shapes is linear, too.

    Of one element the maximum is that element, and the first power of a matrix is that matrix.
    """
    for call in calls_of(op):
        given = floats(op, call)
        if op.linear[:1] == "+" and len(given) < len(variables(call)):
            continue  # a bool is no pending sum, and so no part of one
        if (
            op.name in UNREAD
            or SAME.fullmatch(f"{op.name}({call})")
            or len(re.findall(r"\b[a-z]\b", call)) > len(variables(call))
        ):
            continue
        for count in range(1, len(given) + 1):
            for pending in itertools.combinations(given, count):
                said = linear_in(op, [given[p] for p in pending])
                types = typed(op, call, {*pending})
                assert types or not said, f"{op.name}({call}), of which {pending} are pending"
                if types and not said:
                    assert_linear(op, call, {*pending})


def assert_linear(op: Op, call: str, pending: set[str]) -> None:
    """Compares a call of pending sums with the call of what they add up to."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name in variables(call):
        dtype = np.dtype(dtypes.to_numpy(VARIABLES[name].dtype))
        arrays[name] = np.asarray(2 * rng.normal(size=VARIABLES[name].shape)).astype(dtype)
    with sh.use_mesh(sh.make_mesh({"x": 2})):
        shapes = {name: f"[{','.join(map(str, x.shape))}]" for name, x in arrays.items()}
        whole = {name: sh.array(x, shapes[name]) for name, x in arrays.items()}
        terms = whole | {name: spread(arrays[name], f"{shapes[name]}{{U:x}}") for name in pending}
        found, wanted = (jax.tree.map(host, eval(f"op({call})", {"op": function(op), **x})) for x in (terms, whole))
    jax.tree.map(assert_close, found, wanted)


def floats(op: Op, call: str) -> dict[str, str]:
    """The variables of a call that have a gradient, and the parameters that they are for."""
    made = ast.parse(f"op({call})", mode="eval").body
    assert isinstance(made, ast.Call)
    keywords = {str(k.arg): ast.unparse(k.value) for k in made.keywords}
    bound = inspect.signature(function(op)).bind(*map(ast.unparse, made.args), **keywords)
    found: dict[str, str] = {}
    for name, value in bound.arguments.items():
        if name in IGNORED:
            continue
        for text in value if isinstance(value, tuple) else (value,):
            found |= {v: name for v in variables(str(text)) if VARIABLES[v].dtype in FLOATS}
    return found


def linear_in(op: Op, pending: list[str]) -> bool:
    """Whether a row says that these parameters, and no others, may be pending sums."""
    if not op.linear:
        return False
    if op.linear[0] in "*+":
        return op.linear[1:] in pending and (op.linear[0] == "+" or len(pending) == 1)
    known = re.split(r"[*+]", op.linear)
    if not {*pending} <= {*known}:
        return False
    return len({*pending}) == 1 or "+" in op.linear  # a parameter of a tree takes all of its leaves
