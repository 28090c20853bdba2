"""Parameters are called as JAX calls them, come in its order and have its defaults; what is not taken has a reason."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

import jax
import pytest

import shtypes as sh
from shtypes import api
from shtypes.context.unsupported import UNSUPPORTED_PARAMETERS, unsupported_parameter
from shtypes.ops.table import OPS

_OPEN: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
#: Parameters that are called otherwise at their place; JAX's name is taken by keyword.
RENAMED: Final = {
    "shape": ("type", "a type in the place of a shape says how the value lies, and a shape is one too"),
    "sizes": ("sizes", "as arrays of numpy, `reshape` takes sizes one by one"),
}
#: Functions some of whose parameters differ, by what follows their names.
DIFFERENT: Final = {
    ("jit", "*"): "it is called with one function and the options of this library",
    ("reshape", "shape"): "as a method of numpy it takes sizes one by one, and takes `shape=`",
    ("reshape", "order"): "it may follow the shape by place",
    ("all_gather", "*"): "it is of global values: `sh.lax.all_gather` is JAX's",
    ("all_to_all", "*"): "it is of global values: `sh.lax.all_to_all` is JAX's",
    ("reshard", "*"): "its keywords are mesh axes",
    ("make_mesh", "*"): "its axes are explicit, and given with their sizes",
    ("shard_map", "*"): "types take the place of specs; see its page",
    ("array", "*"): "it takes a type; `sh.asarray` is JAX's",
    ("debug.print", "fmt"): "without a text nothing is printed",
    ("debug.callback", "callback"): "without a function nothing is called",
    ("fill_diagonal", "inplace"): "JAX refuses its own default, which is numpy's",
    **{
        (name, "inplace"): "JAX refuses its own default, which is numpy's"
        for name in ("place", "put", "put_along_axis")
    },
    ("ravel_multi_index", "mode"): "JAX's own default raises an error under a trace",
    ("polyval", "unroll"): "releases of JAX differ, and it changes no value",
    ("take_along_axis", "wrap_negative_indices"): "releases of JAX differ, and None is True",
    ("random.lognormal", "sigma"): "the same number, of Python",
    ("zeta", "q"): "JAX refuses its own default",
}


def pairs() -> Iterator[tuple[str, Any, Any]]:
    """Each public function that JAX has too: its name, ours and JAX's."""
    for op in OPS.values():
        if op.jax:
            module, _, name = op.jax.rpartition(".")
            ours: Any = functools.reduce(getattr, op.name.split("."), sh)
            theirs = getattr(importlib.import_module(module), name, None)
            if theirs is not None:  # a newer release has it
                yield op.name, ours, theirs
    for name, _, _ in api.places():
        for space in (jax, jax.lax, jax.numpy):
            theirs = getattr(space, name, None)
            if name not in OPS and inspect.isfunction(getattr(sh, name)) and callable(theirs):
                yield name, getattr(sh, name), theirs
                break
    yield "custom_vjp", sh.custom_vjp, jax.custom_vjp
    for room in ("debug", "tree"):
        for name in getattr(sh, room).__all__:
            theirs = getattr(getattr(jax, room), name, None)
            if f"{room}.{name}" not in OPS and theirs is not None:
                yield f"{room}.{name}", getattr(getattr(sh, room), name), theirs


def parameters(f: Any) -> list[Parameter]:
    """The parameters of a function that have names."""
    try:
        return [p for p in inspect.signature(f).parameters.values() if p.kind not in _OPEN]
    except (TypeError, ValueError):
        return []


#: Of functions that take keywords of the user's, what they need before they look at them.
ARGUMENTS: Final = {"debug.print": ("",), "debug.callback": (print,)}
PAIRS: Final = {name: (ours, theirs) for name, ours, theirs in pairs()}


def differs(name: str, parameter: str) -> bool:
    return (name, parameter) in DIFFERENT or (name, "*") in DIFFERENT


def missing(name: str) -> list[str]:
    """JAX's parameters that a function does not take."""
    ours, theirs = (parameters(f) for f in PAIRS[name])
    taken = {p.name for p in ours if p.kind is not Parameter.POSITIONAL_ONLY}
    return [p.name for p in theirs if p.kind is not Parameter.POSITIONAL_ONLY and p.name not in taken]


def test_many_functions_are_compared() -> None:
    assert len(PAIRS) > 500


def test_parameters_come_in_the_order_of_jax_and_have_its_defaults() -> None:
    for name in PAIRS:  # in one test: as 700 tests they are reported more slowly than they run
        _come_in_the_order_of_jax(name)


def _come_in_the_order_of_jax(name: str) -> None:
    ours, theirs = (parameters(f) for f in PAIRS[name])
    by_place = [p.name for p in ours if p.kind is not Parameter.KEYWORD_ONLY]
    known = {p.name: p for p in ours}
    for i, p in enumerate(theirs):
        if differs(name, p.name) or unsupported_parameter(name.rpartition(".")[2], p.name):
            continue
        alias = RENAMED.get(p.name, (p.name,))[0]
        if p.kind is Parameter.POSITIONAL_OR_KEYWORD:
            assert by_place[i : i + 1] in ([p.name], [alias]), f"{p.name} is not in its place: {by_place}"
        elif p.kind is Parameter.POSITIONAL_ONLY:
            assert len(by_place) > i
        mine = known.get(p.name)
        if mine is None or p.kind is Parameter.POSITIONAL_ONLY or p.default is Parameter.empty:
            continue
        own = mine.default if alias not in known else known[alias].default
        assert own is not Parameter.empty
        same = own is p.default or repr(own) == repr(p.default)
        assert same or (p.name in RENAMED and own in (None, ())), f"{p.name}: {own!r}, not {p.default!r}"


@pytest.mark.parametrize("name", [name for name in PAIRS if missing(name)])
def test_a_parameter_that_is_not_taken_is_refused_with_a_reason(name: str) -> None:
    f: Callable[..., Any] = PAIRS[name][0]
    for parameter in missing(name):
        found = unsupported_parameter(name.rpartition(".")[2], parameter)
        if (name, "*") in DIFFERENT:
            continue
        assert found is not None, f"`{parameter}` of `{name}` has no reason"
        with pytest.raises(sh.ShardingTypeError, match=rf"has no parameter `{parameter}`") as error:
            f(*ARGUMENTS.get(name, ()), **{parameter: 1})
        assert found.why in error.value.why


def test_the_page_on_operations_lists_the_reasons() -> None:
    page = (Path(__file__).parents[1] / "docs" / "operations.md").read_text()
    for found in UNSUPPORTED_PARAMETERS:
        names = ", ".join(f"`{name}`" for name in found.names if name[0] != "_")
        of = ", ".join(f"`{name}`" for name in found.functions) or "all others"
        assert f"| {names} | {of} | {found.why} | {', '.join(found.instead)} |" in page


def test_no_reason_is_left_over() -> None:
    used = {id(unsupported_parameter(name.rpartition(".")[2], p)) for name in PAIRS for p in missing(name)}
    left = [found.names for found in UNSUPPORTED_PARAMETERS if id(found) not in used]
    assert left in ([], [("method",)])  # which only newer releases of JAX have
