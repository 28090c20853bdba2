"""What must hold of every error: its one shape, its place, and fixes that type and cost what they say."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import shtypes as sh
from tests.random_plain import CONSTANTS

PACKAGE = str(Path(sh.__file__).parent)
FILE = "program.py"
#: What no message has: names of JAX's classes, of outer functions, and lines that are no user's.
INSIDE = re.compile(r"Tracer|<locals>|/shtypes/|0x[0-9a-f]{6}|See https|traced for")


def run(text: str, values: Mapping[str, Any]) -> Any:
    """The value of an expression, which stands in a file of its own."""
    return eval(compile(text, FILE, "eval"), {**CONSTANTS, "m": sh, "sh": sh, "jax": jax, **values})


def refusal(text: str, types: Mapping[str, Any]) -> Exception | None:
    """What a program raises when its types are worked out; None if it types."""
    try:
        jax.eval_shape(lambda **values: run(text, values), **{n: sh.abstract_array(t) for n, t in types.items()})
    except Exception as error:
        return error
    return None


def faults(error: BaseException) -> list[str]:
    """What is wrong with an error as such."""
    found = []
    if not isinstance(error, sh.ShardingTypeError):
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        if not isinstance(error, (TypeError, ValueError)) or not last.startswith(PACKAGE):
            found.append(f"is {type(error).__name__} from {last}")
        return found
    if "please report" in str(error):
        found.append("is a mistake of the library")
    if not error.what or "\n" in error.what:
        found.append(f"says in {error.what.count(chr(10)) + 1} lines what is wrong")
    if not re.match(rf"{FILE}:\d+", error.where):
        found.append(f"is placed at {error.where!r}")
    labels = re.findall(r"^  (\S+)", str(error), re.M)
    if order_of(labels) != sorted(order_of(labels)) or -1 in order_of(labels):
        found.append(f"has the parts {labels}")
    for fix in error.fixes:
        if (fix.bytes_forward > 0) > bool(fix.forward) or (fix.bytes_backward > 0) > bool(fix.backward):
            found.append(f"has a fix that sends bytes without saying how: {fix}")
    costs = [f.order for f in error.fixes]
    if costs != sorted(costs):
        found.append(f"has fixes that cost {costs}")
    return found


def order_of(labels: Sequence[str]) -> list[int]:
    """The place of each label in the one order of parts."""
    known = ["where:", "why:", "fix:", "try:"]
    return [known.index(label) if label in known else -1 for label in labels]


#: The two forms of a fix: operands resharded first, or a result asked for in a type.
_RESHARD = re.compile(r'sh\.reshard\((\w+), "([^"]*)"\)')
_OUT = re.compile(r"sh\.([\w.]+)\(\.\.\., out=(.*)\)")


def applied(code: str, template: str, names: Sequence[str]) -> str:
    """A program with a fix written into it.

    Args:
        code: The fix.
        template: The program, with ``{0}``, ``{1}``, ... for its operands.
        names: The variables there.

    Raises:
        AssertionError: the fix has none of the known forms.
    """
    asked = _OUT.fullmatch(code)
    if asked:
        assert template.endswith(")"), template
        return f"{template.format(*names)[:-1]}, out={asked[2]})"
    called = ("x",) if len(names) == 1 else ("lhs", "rhs") if len(names) == 2 else [f"operand_{i}" for i in range(9)]
    operands = list(names)
    for part in code.split("; "):
        found = _RESHARD.fullmatch(part)
        assert found, f"nobody can apply {part}"
        assert found[1] in called or found[1].startswith("result_"), f"{part} names no operand"
        i = called.index(found[1]) if found[1] in called else int(found[1].removeprefix("result_"))  # of a branch
        operands[i] = f'm.reshard({operands[i]}, "{found[2]}")'
    return template.format(*operands)


def cost(text: str, types: Mapping[str, Any]) -> tuple[int, int]:
    """The bytes that a program sends forward and backward as it is written, by the ledger.

    A fix costs what its reshard does; what stands behind it may be merged with it.
    """
    names = list(types)
    given = [sh.abstract_array(t) for t in types.values()]
    chosen = [i for i, x in enumerate(given) if x.type.differentiable]
    out = jax.eval_shape(lambda *xs: run(text, dict(zip(names, xs, strict=True))), *given)
    leaves = [jax.typeof(x) if isinstance(x, sh.Array) else x for x in jax.tree.leaves(out)]
    differentiable = [i for i, t in enumerate(leaves) if _has_gradient(t)]

    def both(cts: Any, *xs: Any) -> Any:
        def of_chosen(*values: Any) -> Any:
            merged = dict(zip(chosen, values, strict=True))
            outs = run(text, {n: merged.get(i, x) for i, (n, x) in enumerate(zip(names, xs, strict=True))})
            return [jax.tree.leaves(outs)[i] for i in differentiable]

        y, pull = jax.vjp(of_chosen, *[xs[i] for i in chosen])
        return y, pull(cts)

    arguments: tuple[Any, ...]
    if chosen and differentiable:
        found = [leaves[i] for i in differentiable]
        cts = [sh.abstract_array(t.cotangent()) if isinstance(t, sh.ShType) else t for t in found]
        arguments = both, cts, *given
    else:
        arguments = (lambda *xs: run(text, dict(zip(names, xs, strict=True))), *given)
    with sh.merge_reshards(False):
        book = sh.ledger(*arguments)
    sent = {"forward": 0, "backward": 0}
    for entry in book:
        sent["forward" if entry.direction == "forward" else "backward"] += entry.bytes
    return sent["forward"], sent["backward"]


def _has_gradient(t: Any) -> bool:
    """Whether what has a type, ours or JAX's, has a gradient."""
    return bool(t.differentiable if isinstance(t, sh.ShType) else jnp.issubdtype(t.dtype, jnp.inexact))


def wrong_fixes(error: sh.ShardingTypeError, template: str, types: Mapping[str, Any]) -> list[str]:
    """The fixes of an error that cannot be applied, do not type, or cost something else than they say."""
    found = []
    for fix in error.fixes:
        try:
            text = applied(fix.code, template, list(types))
        except AssertionError as unknown:
            found.append(str(unknown))
            continue
        again = refusal(text, types)
        if again is not None:
            found.append(f"with {fix.code}: {again}")
            continue
        # the cotangent of a plain array is invariant: gathered before it is cast, which sends less over idle axes
        alone = template.replace("m.to_jax({0})", "{0}")
        sent = cost(applied(fix.code, alone, list(types)), types)
        if sent != (fix.bytes_forward, fix.bytes_backward):
            found.append(f"{fix} sends {sent}")
    return found
