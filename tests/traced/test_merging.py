"""Reshards that are merged: what is sent, that values and gradients stay, and what is left alone."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.core.operation import applied_by
from shtypes.core.reshard import Reshard
from shtypes.traced.equations import equations
from shtypes.traced.merging import merge
from tests.analysis.explain.test_json import SCHEMA, faults
from tests.traced.compiled import assert_compiled_as_said
from tests.traced.random_programs import AXES, random_program

pytestmark = [pytest.mark.usefixtures("on_a_mesh"), pytest.mark.one_in(9)]

X, W, PENDING = "f32[8@dp, 16]", "f32[16, 16@tp]", "f32[16@tp, 16]"


def product(x: Any, w: Any, v: Any) -> Any:
    """A sum that is pending over ``tp``."""
    return sh.tanh(x @ w) @ v


def there_and_on(x: Any, w: Any, v: Any) -> Any:
    return sh.shard(sh.all_reduce(product(x, w, v), "tp", to="I"), "tp", 1)


def layer_after_layer(x: Any, w: Any, v: Any) -> Any:
    """One function ends with a reshard, the next begins with one."""

    def layer(x: Any) -> Any:
        return sh.all_reduce(product(sh.reshard(x, "[_@dp, _]"), w, v), "tp")

    def split(x: Any) -> Any:
        return sh.sin(sh.reshard(x, "[_@dp, _@tp]"))

    return split(layer(split(layer(x))))


def beside_a_loop(x: Any, w: Any, v: Any) -> Any:
    """A loop of which one result is taken: it has its other operands all the same."""
    (y, _), _ = sh.scan(lambda c, _: ((c[0] + 1, c[1] * 2), None), (x, sh.sin(x)), None, length=2)
    return there_and_on(y, w, v)


def scattered_and_gathered(x: Any, w: Any, v: Any) -> Any:
    return sh.all_gather(sh.reduce_scatter(product(x, w, v), "tp", 1), "tp")


def three_in_a_row(x: Any, w: Any, v: Any) -> Any:
    return sh.shard(sh.reshard(sh.all_reduce(product(x, w, v), "tp"), "[_@dp, _]{I:tp}"), "tp", 1)


def back_to_pending(x: Any, w: Any, v: Any) -> Any:
    return sh.reshard(sh.all_reduce(product(x, w, v), "tp"), tp="U")


def in_a_loop(x: Any, w: Any, v: Any) -> Any:
    def body(c: Any, _: Any) -> tuple[Any, None]:
        return sh.sin(sh.all_gather(there_and_on(c, w, v), "tp")), None

    return sh.scan(body, x, None, 3)[0]


def in_a_while(x: Any, w: Any, v: Any) -> Any:
    return sh.fori_loop(0, 2, lambda _, c: sh.sin(sh.all_gather(there_and_on(c, w, v), "tp")), x)


def in_a_branch(x: Any, w: Any, v: Any) -> Any:
    return sh.cond(sh.all_reduce(sh.sum(x)) > 0, lambda x: there_and_on(x, w, v), lambda x: sh.shard(x, "tp", 1), x)


def in_a_checkpoint(x: Any, w: Any, v: Any) -> Any:
    return sh.checkpoint(there_and_on)(x, w, v)


def in_a_jit(x: Any, w: Any, v: Any) -> Any:
    return jax.jit(there_and_on)(x, w, v) + jax.jit(there_and_on)(sh.sin(x), w, v)


@sh.custom_vjp
def _tripled(x: Any) -> Any:
    return 3.0 * sh.shard(sh.all_reduce(x, "tp"), "tp", 1)


_tripled.defvjp(
    lambda x: (_tripled(x), None), lambda _, ct: (sh.reshard(sh.all_gather(3.0 * ct, "tp"), tp=sh.State.REDUCED),)
)


def with_a_custom_derivative(x: Any, w: Any, v: Any) -> Any:
    return _tripled(product(x, w, v))


def mapped(x: Any, w: Any, v: Any) -> Any:
    return jax.vmap(there_and_on, in_axes=(None, None, 0))(x, w, sh.stack([v, sh.sin(v)]))


def lifted(x: Any, w: Any, v: Any) -> Any:
    return sh.lift(lambda x, w, v: sh.shard(sh.all_reduce(jax.numpy.sin(x) @ w @ v, "tp"), "tp", 1))(x, w, v)


#: Programs, and how many launches fewer the forward pass has.
PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "in a row": (there_and_on, 0),
    "across functions": (layer_after_layer, 0),
    "back to the start": (scattered_and_gathered, 1),
    "three in a row": (three_in_a_row, 0),
    "to pending again": (back_to_pending, 1),
    "scan": (in_a_loop, 3),
    "while": (in_a_while, 2),
    "cond": (in_a_branch, 0),
    "checkpoint": (in_a_checkpoint, 0),
    "jit": (in_a_jit, 0),
    "custom_vjp": (with_a_custom_derivative, 0),
    "vmap": (mapped, 0),
    "lift": (lifted, 0),
}


def arguments() -> list[Any]:
    rng = np.random.default_rng(0)
    return [sh.array(rng.standard_normal(sh.ShType.parse(t).shape).astype(np.float32) / 4, t) for t in (X, W, PENDING)]


def loss(f: Callable[..., Any], *args: Any) -> Any:
    return sh.sum(sh.sin(sh.reshard(f(*args), "[...]")) ** 2)


def gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    return sh.value_and_grad(functools.partial(loss, f), argnums=(0, 1, 2))


def on_one_device(f: Callable[..., Any], run: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The results as one device has them."""
    values = [np.asarray(x) for x in arguments()]
    with sh.use_mesh(sh.make_mesh(dict.fromkeys(AXES, 1))):
        args = [sh.array(x, t) for x, t in zip(values, (X, W, PENDING), strict=True)]
        return jax.tree.map(finished, run(f)(*args))


def finished(x: Any) -> Any:
    return np.asarray(sh.reshard(x, "[_...]"))


def test_a_loop_of_which_one_result_is_taken_keeps_all_its_operands() -> None:
    found = jax.block_until_ready(sh.jit(beside_a_loop)(*arguments()))
    np.testing.assert_allclose(finished(found), on_one_device(beside_a_loop, lambda f: f), rtol=2e-4, atol=2e-5)


@pytest.mark.one_in(29)
@pytest.mark.parametrize("name", PROGRAMS)
def test_less_is_sent_and_values_are_those_of_one_device(name: str, policy: str) -> None:
    f, fewer = PROGRAMS[name]
    args = arguments()
    written, merged = sh.ledger(f, *args), sh.ledger(sh.jit(f), *args)
    assert written.launches - merged.launches == fewer
    assert merged.bytes < written.bytes or name == "back to the start"
    assert sh.ledger(sh.jit(gradients(f)), *args).bytes <= sh.ledger(gradients(f), *args).bytes
    for run in (lambda f: f, gradients):
        found = jax.block_until_ready(sh.jit(run(f))(*args))
        with sh.merge_reshards(False):
            plain = jax.block_until_ready(sh.jit(run(f))(*args))
        assert [sh.typeof(x) for x in jax.tree.leaves(found)] == [sh.typeof(x) for x in jax.tree.leaves(plain)]
        for one, other in zip(*(jax.tree.leaves(r) for r in (found, on_one_device(f, run))), strict=True):
            np.testing.assert_allclose(finished(one), other, rtol=2e-4, atol=2e-5)


@pytest.mark.one_in(23)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in ("while",)])
def test_each_ledger_is_what_its_compiled_program_sends(name: str, policy: str) -> None:
    f, _ = PROGRAMS[name]
    args = arguments()
    for program in (f, gradients(f)):
        written = assert_compiled_as_said(program, *args)
        with sh.merge_reshards(False):
            assert sh.ledger(sh.jit(program), *args).total == written.total
            assert_compiled_as_said(program, *args, jits=[sh.jit])


@pytest.mark.one_in(29)
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < 4 else pytest.mark.nightly) for s in range(60)])
def test_random_programs_never_send_more(seed: int, policy: str) -> None:
    program = random_program(seed)
    args, cts = program.values(), program.cotangents()
    step = functools.partial(program.gradients)
    written = sh.ledger(step, args, cts)
    with sh.merge_reshards(False):
        expected = jax.block_until_ready(sh.jit(step)(args, cts))
    merged = sh.ledger(sh.jit(step), args, cts)
    found = jax.block_until_ready(sh.jit(step)(args, cts))
    assert_compiled_as_said(step, args, cts, jits=[sh.jit])
    assert merged.bytes <= written.bytes
    assert merged.launches <= written.launches
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.type == other.type
        largest = float(np.max(np.abs(finished(other)), initial=1.0))
        np.testing.assert_allclose(finished(one), finished(other), rtol=1e-3, atol=1e-4 * largest)


# what is left alone


def reshards(f: Callable[..., Any], *args: Any) -> Counter[str]:
    return Counter(e.kind for e in sh.ledger(sh.jit(f), *args) if e.launches)


def test_a_value_with_another_use_stays() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        y = sh.all_reduce(product(x, w, v), "tp")
        return sh.shard(y, "tp", 1), y

    assert reshards(f, *arguments()) == {"all-reduce": 1}


def test_what_is_sharded_to_save_memory_stays_sharded() -> None:
    def f(x: Any, w: Any, v: Any) -> Any:
        kept = sh.reshard(x, "[_@(dp,tp), _]")
        y = product(x, w, v)
        return sh.all_gather(kept, "tp") * sh.all_reduce(y, "tp")

    assert reshards(f, *arguments()) == {"all-gather": 1, "all-reduce": 1}


def test_a_value_in_a_narrower_dtype_is_rounded_as_it_is_written() -> None:
    x = sh.array(np.full((8, 16), 1.0009765625, np.float32), "[_, _@tp]")
    for dtype in ("f16", "bf16"):

        def program(x: Any, dtype: str = dtype) -> Any:
            return sh.reshard(sh.all_gather(x, "tp", comm_dtype=dtype), "[_@tp, _]")

        np.testing.assert_array_equal(np.asarray(sh.jit(program)(x)), np.asarray(program(x)))


def test_a_program_with_nothing_to_merge_is_itself() -> None:
    program = jax.make_jaxpr(product)(*arguments())
    found = merge(program)
    assert found is not None
    assert found.jaxpr is program


def test_eager_calls_and_jax_jit_run_what_is_written() -> None:
    args = arguments()
    for f in (there_and_on, jax.jit(there_and_on)):
        assert [e.kind for e in sh.ledger(f, *args)] == ["all-reduce"]
    assert [e.kind for e in sh.ledger(sh.jit(there_and_on), *args)] == ["reduce-scatter"]
    assert [e.kind for e in sh.ledger(sh.jit(there_and_on, region="off"), *args)] == ["all-reduce"]


def test_a_scope_judges_what_is_written() -> None:
    args = arguments()
    with pytest.raises(sh.ShardingTypeError, match=r"no_comm.*forbids all-reduce"), sh.no_comm():
        sh.jit(back_to_pending).trace(*args)


# what is said of it


def test_the_ledger_says_what_was_merged() -> None:
    said = sh.ledger(sh.jit(layer_after_layer), *arguments())
    first = said[0]
    assert [place.function for place in first.merged] == [
        "layer_after_layer.<locals>.layer",
        "layer_after_layer.<locals>.split",
    ]
    assert "written, merged from 2: test_merging.py:" in str(said)
    assert '"merged": [{"file"' in said.to_json()


def test_explain_shows_the_lines_as_written_and_what_runs() -> None:
    f = sh.jit(there_and_on)
    found = sh.explain(f, *arguments())
    text = found.text(source=False)
    assert "(merged)" in text.split("<- ")[0]
    assert "<- reduce-scatter over tp, 192 B/device, merged from 2: test_merging.py:" in text
    assert found.ledger == sh.ledger(f, *arguments())


def test_the_json_of_merged_reshards_is_as_documented() -> None:
    document = json.loads(sh.explain(sh.jit(three_in_a_row), *arguments()).to_json())
    assert list(faults(document, SCHEMA)) == []
    items = document["items"]
    assert sum(item.get("merged", False) for item in items) == 2
    assert [len(e["merged"]) for item in items for e in item["collectives"]] == [3]


@pytest.mark.one_in(15)
@pytest.mark.parametrize("name", PROGRAMS)
def test_explain_and_the_ledger_agree(name: str, policy: str) -> None:
    f, _ = PROGRAMS[name]
    args = arguments()
    for program in (f, sh.jit(f)):
        assert sh.explain(program, *args).ledger.total == sh.ledger(program, *args).total


def test_every_reshard_of_the_program_is_accounted_for() -> None:
    program = jax.make_jaxpr(gradients(three_in_a_row))(*arguments())
    found = merge(program)
    assert found is not None
    written = [e.eqn for e in equations(program) if isinstance(applied_by(e.eqn), Reshard)]
    kept = {id(e.eqn) for e in equations(found.jaxpr)}
    assert all(id(eqn) in kept or id(eqn) in found.runs for eqn in written if applied_by(eqn).forward_comm())
