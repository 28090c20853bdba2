"""No public function swallows a keyword that it does not have, and each says so by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import shtypes as sh
from shtypes import api
from shtypes.core.interop_errors import OF_ARRAYS, OF_PHYSICAL
from shtypes.ops.row_functions import native_of
from shtypes.ops.table import OPS

m: Any = sh  # for calls that a type checker refuses too

#: Keywords that are the user's: arguments of the function that is asked about, mesh axes, dims, names to print.
OPEN = {
    "sh.assert_comm", "sh.check", "sh.compare", "sh.compute", "sh.explain", "sh.ledger", "sh.memory", "sh.eval_shape",
    "sh.dims", "sh.cost_model", "sh.Array", "sh.debug.callback", "sh.debug.print", "sh.apply_along_axis",
    "sh.fromfunction", "sh.piecewise",
    *(f"sh.{op.name}" for op in OPS.values() if op.module == "shtypes.ops.functions" and native_of(op) is None),
}  # fmt: skip
#: Of the half that is loaded first: refused by Python itself.
PLAIN = {"sh.current_policy"}


pytestmark = pytest.mark.mesh({"x": 2})


def value() -> Any:
    return sh.array(np.ones((4, 4), np.float32), "f32[4@x,4]")


def of_namespaces() -> Iterator[tuple[str, Any]]:
    spaces = {"sh": sh, **{f"sh.{name}": getattr(sh, name) for name in sorted(api.NAMESPACES)}}
    for space, module in spaces.items():
        for name in sorted(getattr(module, "__all__", dir(module))):
            found = getattr(module, name)
            home = str(getattr(found, "__module__", ""))
            if name[0] != "_" and callable(found) and home.startswith("shtypes") and not isinstance(found, ModuleType):
                yield f"{space}.{name}", found


def of_values() -> Iterator[tuple[str, Any]]:
    x = value()
    for holder, shown in ((x, "x"), (x.at[0], "x.at[0]")):
        for name in sorted(dir(holder)):
            if (
                name[0] != "_"
                and name not in ("aval", "val", *OF_ARRAYS, *OF_PHYSICAL)
                and callable(found := getattr(holder, name))
            ):
                yield f"{shown}.{name}", found


def refusal(f: Callable[..., Any]) -> Exception | None:
    """What says of ``banana=`` that it is unknown; other arguments are found by trying."""
    x = value()
    for args in ((), (x,), (x, x), (x, 1), ("f32[4]",), (abs,), (None, abs), (abs, x, x)):
        try:
            f(*args, banana=3)
        except Exception as error:
            if "banana" in str(error):
                return error
        else:
            return None
    return None


def test_no_function_swallows_an_unknown_keyword() -> None:
    wrong = {}
    found = dict(of_namespaces())
    assert len(found) > 600
    for name, f in found.items():
        if name in OPEN:
            continue
        error = refusal(f)
        own_words = isinstance(f, type) or name in PLAIN
        if error is None or not (own_words or isinstance(error, sh.ShardingTypeError)):
            wrong[name] = repr(error)
    assert not wrong


def test_no_method_of_a_value_swallows_an_unknown_keyword() -> None:
    found = dict(of_values())
    assert {"x.sum", "x.dot", "x.at[0].set", "x.at[0].get"} <= set(found)
    refused = {name: refusal(f) for name, f in found.items()}
    own_words = {
        f"x.{name}"
        for name in ("block_until_ready", "copy_to_host_async", "delete", "is_deleted", "is_ready", "item", "tolist")
    }
    assert not [name for name, e in refused.items() if not isinstance(e, TypeError)]
    assert {name for name, e in refused.items() if not isinstance(e, sh.ShardingTypeError)} == own_words


MESSAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "near": (
        lambda x: m.softmax(x, axs=1),
        "`softmax` has no parameter `axs`\n  where: LINE: softmax\n  why:   it has x, axis, where, out\n  try:   axis=",
    ),
    "none like it": (
        lambda x: m.exp(x, banana=3),
        "`exp` has no parameter `banana`\n  where: LINE: exp\n  why:   it has none",
    ),
    "what JAX calls it": (
        lambda x: m.sum(x, out_sharding=None),
        "`sum` has no parameter `out_sharding`\n  where: LINE: sum\n"
        "  why:   a result's type says how it lies; it has a, axis, dtype, out, keepdims, initial, where, "
        "promote_integers\n  try:   out=\n  try:   sh.reshard(y, type)",
    ),
    "an update": (
        lambda x: x.at[:, 0].add(1.0, banana=3),
        "`at[...].add` has no parameter `banana`\n  where: LINE: add\n"
        "  why:   it has mode, unique_indices, indices_are_sorted, wrap_negative_indices, out",
    ),
    "too many": (
        lambda x: m.all_to_all(x, "x", 0, 1),
        "`all_to_all` does not take these arguments\n  where: LINE: all_to_all\n"
        "  why:   takes 3 positional arguments but 4 were given; it has x, axis, dim, comm_dtype, "
        "ct_comm_dtype, narrow_sums",
    ),
    "too few": (
        lambda x: m.reshard(),
        "`reshard` does not take these arguments\n  where: LINE: reshard\n"
        "  why:   missing 1 required positional argument: 'x'",
    ),
}


@pytest.mark.parametrize("case", MESSAGES.values(), ids=MESSAGES)
def test_what_does_not_fit_is_said_by_name(case: tuple[Callable[[Any], Any], str]) -> None:
    call, wanted = case
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(value())
    line = caught.value.where.rpartition(": ")[0]
    assert line.startswith("test_parameters.py:")
    assert str(caught.value).replace(line, "LINE") == wanted


def test_what_goes_wrong_in_a_users_function_stays_as_it_is() -> None:
    def f(x: Any, y: Any) -> Any:
        return sh.sum(x)

    calls: list[Any] = [sh.grad(f), sh.jit(f), sh.vmap(f), sh.checkpoint(f), sh.local_map(f, out="[_]")]
    for call in calls:
        with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'y'|`f`|`vmap`"):
            call(value())


def test_updates_take_a_type_for_the_result_and_refuse_what_would_mean_another_thing() -> None:
    x = sh.array(np.arange(16.0).reshape(4, 4), "f32[4@x,4]")
    assert str(x.at[:, 1].get(out="[4]").type) == "f32[4]"
    assert str(x.at[:, 1].add(1.0, out="[4,4]").type) == "f32[4,4]"
    np.testing.assert_array_equal(x.at[:, 1].set(7.0, out="[4,4@x]"), np.asarray(x.at[:, 1].set(7.0)))
    assert str(x.at[:, 1].apply(sh.exp, out="[4,4]").type) == "f32[4,4]"
    assert x.at[:, 1].set(7.0, indices_are_sorted=True, wrap_negative_indices=True).type == x.type
    with pytest.raises(sh.ShardingTypeError, match="has no parameter `fill_value`"):
        x.at[:, 1].add(1.0, fill_value=2.0)  # type: ignore[call-arg]


# what is no function

#: Each public function that takes functions, with 3 in the place of one.
TAKING: dict[str, Callable[[Any], Any]] = {
    "`vmap` takes a function": lambda x: m.vmap(3),
    "`grad` takes a function": lambda x: m.grad(3),
    "`value_and_grad` takes a function": lambda x: m.value_and_grad(3),
    "`vjp` takes a function": lambda x: m.vjp(3, x),
    "`jvp` takes a function": lambda x: m.jvp(3, (x,), (x,)),
    "`jacfwd` takes a function": lambda x: m.jacfwd(3),
    "`jacrev` takes a function": lambda x: m.jacrev(3),
    "`hessian` takes a function": lambda x: m.hessian(3),
    "`linearize` takes a function": lambda x: m.linearize(3, x),
    "`jit` takes a function": lambda x: m.jit(3),
    "`scan` takes a function": lambda x: m.scan(3, x, x),
    "`map` takes a function": lambda x: m.map(3, x),
    "the predicate of `while_loop` is a function": lambda x: m.while_loop(3, 3, x),
    "the body of `while_loop` is a function": lambda x: m.while_loop(bool, 3, x),
    "the body of `fori_loop` is a function": lambda x: m.fori_loop(0, 1, 3, x),
    "a branch of `cond` is a function": lambda x: m.cond(True, 3, abs, x),
    "a branch of `switch` is a function": lambda x: m.switch(0, [abs, 3], x),
    "`checkpoint` takes a function": lambda x: m.checkpoint(3),
    "the policy of `checkpoint` is a function": lambda x: m.checkpoint(abs, policy=3),
    "`custom_vjp` takes a function": lambda x: m.custom_vjp(3),
    "the forward function of `custom_vjp` is a function": lambda x: m.custom_vjp(abs).defvjp(3, abs),
    "the backward function of `custom_vjp` is a function": lambda x: m.custom_vjp(abs).defvjp(abs, 3),
    "`local_map` takes a function": lambda x: m.local_map(3, out="[]"),
    "`shard_map` takes a function": lambda x: m.shard_map(3, out_specs="f32[]"),
    "`typed` takes a function": lambda x: m.typed(3),
    "`ledger` takes a function": lambda x: m.ledger(3, x),
    "`at[...].apply` takes a function": lambda x: x.at[0].apply(3),
    "`tree.map` takes a function": lambda x: m.tree.map(3, x),
}


@pytest.mark.parametrize("what", TAKING)
def test_what_is_no_function_is_refused_where_one_is_asked_for(what: str) -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        TAKING[what](value())
    assert caught.value.what == f"{what}, not 3"
    assert caught.value.where.startswith("test_parameters.py:")
