"""Fixes name the operands as the user's line has them."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.traced.program import with_gradient

pytestmark = pytest.mark.core


def pending(text: str = "f32[8@tp]") -> Any:
    return sh.sum(sh.ones(text))


CASES: dict[str, tuple[Callable[[Any, Any], object], str | None]] = {
    "a variable": (lambda u, d: sh.exp(u), "u"),
    "an item": (lambda u, d: sh.exp(d["a b"]), 'd["a b"]'),
    "an operator": (lambda u, d: sh.exp(u + 2 * u), "u + 2 * u"),
    "an operand of an operator": (lambda u, d: (u + u) ** 2, "u + u"),
    "the right operand": (lambda u, d: 1 / sh.sum(d["a b"]), 'sh.sum(d["a b"])'),
    "a method": (lambda u, d: d["a b"].sum().astype("i32"), 'd["a b"].sum()'),
    "a keyword": (lambda u, d: sh.sort(a=d["a b"] - 0), 'd["a b"] - 0'),
    "an item of a list": (lambda u, d: sh.concatenate([sh.ones("f32[8]"), d["c"]], 0), 'd["c"]'),
    "a position of an update": (lambda u, d: d["c"].at[d["i"]].set(1.0), 'd["i"]'),
    "one of several positions of an update": (lambda u, d: sh.ones((4, 8)).at[:, d["i"]].set(1.0), 'd["i"]'),
    "what is updated": (lambda u, d: d["a b"].at[:2].max(1.0), 'd["a b"]'),
    "one of a pytree": (lambda u, d: sh.tree.map(sh.exp, {"w": d["a b"]}), 'd["a b"]'),
    "in a trace": (lambda u, d: jax.eval_shape(lambda v: sh.exp(v), u), "v"),  # noqa: PLW0108
    "a number on the left": (lambda u, d: 1 < u, "u"),  # noqa: SIM300
    "read": (lambda u, d: float(u), "u"),
    "read by numpy": (lambda u, d: np.asarray(u), "u"),
    "read by a condition": (lambda u, d: 1 if u else 0, "u"),
    "read by a function of another name": (lambda u, d: [bool][0](u), None),
    "passed on": (lambda u, d: list(map(sh.exp, [u])), None),
    "unpacked": (lambda u, d: sh.exp(*[u]), None),
    "one of several": (lambda u, d: u and 1, None),
    "formatted": (lambda u, d: "%f" % u, None),  # noqa: UP031
}


@pytest.mark.parametrize("case", CASES)
def test_a_fix_names_the_expression(case: str) -> None:
    run, expected = CASES[case]
    with sh.use_mesh(sh.make_mesh({"tp": 8})):
        u, d = pending(), {"a b": sh.ones("f32[8]{U:tp}"), "c": sh.ones("f32[8@tp]")}
        d["i"] = sh.sum(sh.ones("i32[8@tp]"))
        with pytest.raises(sh.ShardingTypeError) as caught:
            run(u, d)
        codes = {fix.code for fix in caught.value.fixes}
        printed = set(re.findall(r"fix: +(?:sh\.reshard\((.*?), \"|sh)", str(caught.value)))
    assert codes
    assert printed - {""} == {expected or "x"}


def test_an_error_that_was_pickled_prints_the_same() -> None:
    with sh.use_mesh(sh.make_mesh({"tp": 8})), pytest.raises(sh.ShardingTypeError) as caught:
        sh.exp(pending() * 2)
    assert "sh.reshard(pending() * 2, " in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_the_fixes_themselves_have_names_that_do_not_depend_on_the_line() -> None:
    with sh.use_mesh(sh.make_mesh({"tp": 8})), pytest.raises(sh.ShardingTypeError) as caught:
        sh.divide(1 + sh.ones("f32[8@tp]"), pending())
    assert "sh.reshard(rhs, " in caught.value.fixes[0].code
    assert "sh.reshard(pending(), " in str(caught.value)


def test_a_fix_of_an_operand_that_is_given_twice_is_printed_once() -> None:
    with sh.use_mesh(sh.make_mesh({"tp": 8})):
        v = sh.ones("f32[8@tp]")
        with pytest.raises(sh.ShardingTypeError) as caught:
            sh.outer(v, v)
    fixes = [line for line in str(caught.value).splitlines() if "fix:" in line]
    assert len(fixes) == len({*fixes}) == len(caught.value.fixes)
    assert 'sh.reshard(v, "[8]")   [forward: all-gather over `tp`, 28 B/device;' in fixes[0]


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize(
    ("call", "types"),
    [
        (lambda q: q @ q, ["f32[8@x, 8]"]),
        (lambda q: q * q, ["f32[8@x, 8]{U:y}"]),
        (lambda q: sh.clip(q, q, q), ["f32[8@x, 8]{U:y}"]),
        (lambda q, k: sh.clip(q, k, k), ["f32[8@x, 8]", "f32[8, 8@x]"]),
        (lambda q, k: sh.einsum("ij,jk,jl->il", q, k, k), ["f32[8@x, 8]", "f32[8, 8@x]"]),
        (lambda q, k: sh.nn.dot_product_attention(q, k, k), ["f32[2@x, 4, 4, 8]", "f32[2, 4, 4, 8@x]"]),
        (lambda q, k: sh.concatenate([k, q, k]), ["f32[2@x, 4]", "f32[2, 4@x]"]),
    ],
)
def test_a_fix_reshards_a_value_wherever_the_call_reads_it(call: Any, types: list[str], policy: Any) -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 2, "y": 2})), sh.policy(policy):
        with pytest.raises(sh.ShardingTypeError) as caught:
            sh.check(call, *types)
        printed = [line for line in str(caught.value).splitlines() if "fix:" in line and "out=" not in line]
        fixes = [fix for fix in caught.value.fixes if "out=" not in fix.code]
        assert fixes
        for fix, line in zip(fixes, printed, strict=True):
            goals = re.findall(r'sh\.reshard\((\w), "([^"]*)"\)', line)
            targets = dict(goals)
            assert len(goals) == len(targets) == line.count("sh.reshard")

            def resharded(*xs: Any, targets: dict[str, str] = targets) -> Any:
                named = zip("qk", xs, strict=False)
                return call(*[sh.reshard(x, targets[name]) if name in targets else x for name, x in named])

            ledger = sh.ledger(with_gradient(resharded), *types)
            assert (ledger.forward().bytes, ledger.backward().bytes) == (fix.bytes_forward, fix.bytes_backward)
