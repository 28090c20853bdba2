"""Listings of whole programs: their golden text, and what must hold of every line."""

from __future__ import annotations

import io
import os
import re
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

import shtypes as sh
from shtypes.analysis.explain.document import Block, Line, lines_of
from shtypes.analysis.explain.explanation import Explanation, trace
from shtypes.analysis.explain.explanation import explained as explained_program
from shtypes.analysis.target import target_of
from shtypes.traced.program import with_gradient
from tests.analysis.explain import programs

GOLDEN = Path(__file__).parents[2] / "golden" / "explain"
MESH = {"dp": 2, "tp": 2}
DIFFERENTIATED = ["transformer", "custom", "branches", "local", "mapped"]
PROGRAMS = [*DIFFERENTIATED, "microbatches"]


def explained(name: str, policy: str = "partial") -> Explanation:
    with sh.policy(policy), sh.use_mesh(sh.abstract_mesh(MESH)):
        return sh.explain(getattr(programs, name), *programs.arguments(name), grad=name in DIFFERENTIATED)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_what_it_was(name: str) -> None:
    text = f"{explained(name)}\n"
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_ledger_is_that_of_the_gradient(name: str, policy: str) -> None:
    f, found = getattr(programs, name), explained(name, policy)
    with sh.policy(policy), sh.use_mesh(sh.abstract_mesh(MESH)):
        wanted = sh.ledger(with_gradient(f) if name in DIFFERENTIATED else f, *programs.arguments(name))
    assert [entry._replace(branches=()) for entry in found.ledger] == [entry._replace(branches=()) for entry in wanted]
    assert found.ledger.not_covered == wanted.not_covered
    assert found.ledger.total == wanted.total
    assert sum(len(line.collectives) for line in found.lines) == len(wanted)


def _overlapped(x: Any) -> Any:
    return sh.einsum("bi,bj->ij", x, x, out="[_@x,_]", overlap=True)


def _compiled_by_jax(x: Any) -> Any:
    spread = jax.sharding.NamedSharding(jax.make_mesh((1,), ("d",)), jax.sharding.PartitionSpec())
    return sh.from_jax(jax.jit(lambda v: v * 2.0, in_shardings=spread)(jnp.ones((8, 8))), "f32[8@x,8]") + x


@pytest.mark.parametrize("f", [_overlapped, _compiled_by_jax])
def test_the_ledger_has_rings_and_what_is_not_covered(f: Any) -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        x = sh.ShType.parse("f32[8@x,8]")
        found, wanted = sh.explain(f, x).ledger, sh.ledger(f, x)
    assert found.to_json() == wanted.to_json()
    assert list(found) or found.not_covered


@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_every_cotangent_has_the_type_that_its_name_says(name: str, policy: str) -> None:
    found = explained(name, policy)
    checked = 0
    for forward, backward in levels(found):
        for line in backward:
            of = cotangent_of(line.name, forward)
            if of is not None:
                checked += 1
                assert line.type == of.type.to_ct_aval(), line
    assert checked > 5
    assert [line.name for line in found.gradients] == [f"g_{a.name}" for a in found.arguments if a.type.differentiable]


def levels(found: Explanation) -> list[tuple[dict[str, Line], list[Line]]]:
    """For the program and each block of its backward pass, the forward lines that it may name, and its own lines."""
    known = {line.name: line for line in (*found.arguments, *lines_of(found.forward))}
    own = [item for item in found.backward if isinstance(item, Line)]
    pairs = [(known, [*found.seeds, *own])]
    blocks = [item for item in found.backward if isinstance(item, Block)]
    while blocks:
        block = blocks.pop()
        causes = {line.cause.name: line.cause for line in lines_of(block.items) if line.cause is not None}
        pairs.append((causes, [item for item in block.items if isinstance(item, Line)]))
        blocks += [item for item in block.items if isinstance(item, Block)]
    return pairs


def cotangent_of(name: str, known: dict[str, Line]) -> Line | None:
    for suffix in ("", "_so_far"):
        if name.startswith("g_") and name.endswith(suffix):
            found = known.get(name[2 : len(name) - len(suffix)])
            if found is not None:
                return found
    return known.get(name[2:].partition("_from_")[0]) if name.startswith("g_") else None


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_every_backward_line_is_under_a_forward_line_or_a_sum_of_others(name: str) -> None:
    for line in explained(name).lines:
        if line.direction == "backward" and line.cause is None:
            assert line.op in ("add", "add_any") or not line.op or not line.operands, line
        elif line.direction == "backward":
            assert line.cause is not None
            assert line.cause.direction == "forward"


def test_a_python_loop_gets_a_name_and_a_cause_for_each_round() -> None:
    def chain(x: Any) -> Any:
        for _ in range(4):
            x = sh.sin(x) * 2.0
        return sh.sum(x)

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = sh.explain(chain, sh.ShType.parse("f32[8@dp]"), grad=True)
    names = [item.name for item in found.forward if isinstance(item, Line)]
    assert names == ["sin_x", "x_2", "sin_x_2", "x_3", "sin_x_3", "x_4", "sin_x_4", "x_5", "chain"]
    causes = [item.cause.name for item in found.backward if isinstance(item, Line) and item.cause is not None]
    assert causes == names[::-1]
    assert [item.name for item in found.backward if isinstance(item, Line)][-1] == "g_x"


def test_arguments_have_the_names_and_paths_of_the_signature() -> None:
    def f(params: Any, *rest: Any, scale: Any) -> Any:
        return params["w"] @ rest[0] * scale

    t = sh.ShType.parse
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = sh.explain(f, {"w": t("f32[8@dp, 4]")}, t("f32[4]"), scale=t("f32[]"))
    assert [line.name for line in found.arguments] == ["params['w']", "rest[0]", "scale"]


def test_what_a_checkpoint_does_not_keep_is_not_saved() -> None:
    def block(x: Any, w: Any) -> Any:
        return sh.sin(sh.sin(x @ w))

    def of(f: Any) -> Explanation:
        return sh.explain(lambda x, w: sh.sum(f(x, w)), *args, grad=True)

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        args = [sh.ShType.parse(text) for text in ("f32[8@dp, 16]", "f32[16, 16@tp]")]
        kept, again = of(block), of(sh.checkpoint(block))
    size = 8 // 2 * 16 // 2 * 4
    assert (kept.saved_bytes, again.saved_bytes) == (2 * size, 0)
    assert [v.name for v in again.saved if v.argument] == ["x", "w"]
    assert {line.direction for line in again.lines} == {"forward", "backward", "recomputed"}


def test_what_is_no_array_is_a_constant() -> None:
    @sh.jit
    def inner(x: Any) -> Any:
        doubled = x * 2.0
        return doubled + 1.0

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = sh.explain(inner, sh.ShType.parse("f32[8@dp]"))
        mixed = sh.explain(lambda x, keep: x if keep else inner(x), "f32[8@dp]", False)
    assert [line.name for line in found.lines] == ["doubled", "inner"]
    assert [line.name for line in mixed.lines] == ["doubled", "inner"]


def test_what_does_not_type_is_refused_with_the_user_s_line() -> None:
    def wrong(x: Any) -> Any:
        return sh.sin(sh.sum(x))

    with (
        sh.use_mesh(sh.abstract_mesh(MESH)),
        pytest.raises(sh.ShardingTypeError, match=r"test_listing\.py:\d+ in wrong"),
    ):
        sh.explain(wrong, sh.ShType.parse("f32[8@dp]"))


def test_the_time_of_a_listing_grows_with_its_length_only() -> None:
    def seconds(rounds: int) -> float:
        def chain(x: Any, w: Any) -> Any:
            for _ in range(rounds):
                x = sh.sin(x) * w
            return sh.sum(x)

        with sh.use_mesh(sh.abstract_mesh(MESH)):
            traced = trace(target_of(chain, ("f32[8@dp]", "f32[8@dp]"), {}), grad=True)
            start = time.process_time()
            str(explained_program("chain", traced, grad=True))
            return time.process_time() - start

    seconds(10)
    assert seconds(400) < 10 * seconds(100)  # 4 times, and 16 where it were quadratic


def test_a_function_that_takes_gradients_itself_is_listed_in_its_order() -> None:
    def step(w: Any, x: Any) -> Any:
        loss, g = sh.value_and_grad(lambda w: sh.sum(sh.sin(x * w)))(w)
        new = w - 0.5 * g
        return loss, new

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = sh.explain(step, "f32[8@dp]", "f32[8@dp]")
    text = found.text(source=False, totals=False)
    assert text.index("\ng_w: ") < text.index("\nnew: ")
    assert "# sin_mul_x: " in text
    assert found.saved_bytes > 0


@pytest.mark.parametrize(
    ("f", "backward"),
    [
        (lambda x: (x, x), ["g_x: f32[8@dp]{U:tp} = add g_x_given g_x_2_given"]),
        (
            lambda x: (y := sh.sin(x), y),
            ["g_y: f32[8@dp]{U:tp} = add g_y_given g_y_2_given", "g_x: f32[8@dp]{U:tp} = jvp(sin) x g_y"],
        ),
    ],
    ids=["an argument", "a value"],
)
def test_the_cotangents_of_what_is_returned_twice_are_added(f: Any, backward: list[str]) -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        found = sh.explain(f, "f32[8@dp]", grad=True)
    assert [str(line) for line in found.lines if line.direction == "backward"] == backward
    assert all(value.argument for value in found.saved)


def test_a_function_without_results_has_none_in_its_listing() -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        assert sh.explain(lambda x: None, "f32[8@dp]", grad=True).results == ()


@pytest.mark.parametrize("name", ["transformer", "branches"])
def test_a_terminal_shows_every_line_with_the_collectives_in_colour(name: str) -> None:
    found = explained(name)
    screen = io.StringIO()
    Console(file=screen, width=400, force_terminal=True, color_system="standard").print(found)
    shown = screen.getvalue()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for line in found.lines:
        assert str(line) in plain
    assert "\x1b[1;35m" in shown


def test_what_a_step_of_a_loop_saves_for_its_own_backward_pass_counts() -> None:
    found = explained("microbatches")
    assert [(v.name, v.bytes) for v in found.saved if not v.argument and v.bytes > 4] == [("einsum_x", 4 * 16 * 4)]
