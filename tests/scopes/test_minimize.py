"""`implicit_comm(minimize=...)`: the direction that is to send least does, and values stay right."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from shtypes.types import ShType
from tests.compiling import compiled
from tests.end_to_end import assignments, some
from tests.random_checks import denoted
from tests.random_plain import PLAIN
from tests.random_programs import POLICIES, spread
from tests.scopes.implicit_programs import CASES, loss_of
from tests.tolerance import assert_within, computed

m: Any = sh  # for calls that a type checker refuses too

DIRECTIONS: tuple[Any, ...] = ("both", "forward", "backward")


def step_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """A loss and its gradients."""

    def step(*args: Any) -> Any:
        loss, pull = sh.vjp(f, *args)
        return loss, pull(1.0)

    return step


def decorated(f: Callable[..., Any], direction: Any) -> Callable[..., Any]:
    return step_of(sh.implicit_comm(f, minimize=direction))


def jitted(f: Callable[..., Any], direction: Any) -> Callable[..., Any]:
    return step_of(sh.jit(sh.implicit_comm(f, minimize=direction)))


FORMS = {"decorated": decorated, "jitted": jitted}
#: Each under both policies, or under one of the two, in one form.
HELD = [
    (name, policy, form)
    for i, name in enumerate(CASES)
    for policy in some([POLICIES[i % 2]], list(POLICIES))
    for form in some([("decorated", "jitted")[i // 2 % 2]], list(FORMS))
]


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "policy", "form"), HELD)
def test_the_direction_that_is_to_send_least_sends_no_more_than_in_the_others(
    name: str, policy: str, form: str
) -> None:
    axes, texts, f, _ = CASES[name]
    with sh.use_mesh(sh.abstract_mesh(axes)), sh.policy(policy):
        args = [sh.abstract_array(text) for text in texts]
        found = {d: sh.ledger(FORMS[form](loss_of(f), d), *args) for d in DIRECTIONS}
        forward, backward = ({d: part(found[d]).bytes for d in DIRECTIONS} for part in (forward_of, backward_of))
        total = {d: found[d].bytes for d in DIRECTIONS}
        assert total["both"] == min(total.values())
        assert forward["forward"] == min(forward.values())
        assert backward["backward"] == min(backward.values())
        inferred = {d: sh.ledger(sh.implicit_comm(f, minimize=d), *args).bytes for d in ("both", "forward")}
        assert inferred["forward"] <= inferred["both"]


def forward_of(ledger: sh.Ledger) -> sh.Ledger:
    return ledger.forward()


def backward_of(ledger: sh.Ledger) -> sh.Ledger:
    return ledger.backward()


@pytest.mark.nightly
def test_a_setting_for_one_direction_sends_less_there_than_the_default() -> None:
    axes, texts, f, _ = CASES["attention, dp and tp"]
    with sh.use_mesh(sh.abstract_mesh(axes)):
        args = [sh.abstract_array(text) for text in texts]
        both, backward = (sh.ledger(decorated(loss_of(f), d), *args).backward().bytes for d in ("both", "backward"))
        assert backward < both


@pytest.mark.nightly
def test_the_default_sends_no_more_in_all_than_a_setting_for_one_direction() -> None:
    axes, texts, f, _ = CASES["residual MLPs, sequence"]
    with sh.use_mesh(sh.abstract_mesh(axes)):
        args = [sh.abstract_array(text) for text in texts]
        both, forward = (sh.ledger(decorated(loss_of(f), d), *args).bytes for d in DIRECTIONS[:2])
        assert both <= forward


def mlp(m: Any, x: Any, up: Any, down: Any) -> Any:
    return m.sin(m.tanh(m.sin(x) @ up) @ down) + x


@pytest.mark.one_in(9)
@pytest.mark.parametrize("direction", DIRECTIONS[1:])
def test_values_and_gradients_are_right(direction: Any) -> None:
    shapes, space = ((8, 4), (4, 8), (8, 4)), {"x": 2, "y": 2}
    hosts = [np.random.default_rng(i).normal(size=shape).astype(np.float32) * 0.4 for i, shape in enumerate(shapes)]
    dice = np.random.default_rng(len(direction))

    def gradients_of(m: Any, grad: Any) -> Callable[..., Any]:
        return grad(lambda *args: m.sum(mlp(m, *args)), argnums=(0, 1, 2))  # type: ignore[no-any-return]

    wanted, errors = computed(gradients_of(PLAIN, jax.value_and_grad), *hosts)
    mesh = sh.make_mesh(space)
    for seed in range(some(1, 40)):
        with sh.use_mesh(mesh), sh.policy(POLICIES[seed % 2]):
            texts = [f"f32{dice.choice([*assignments(mesh, shape)])}" for shape in shapes]
            args = [spread(host, text) for host, text in zip(hosts, texts, strict=True)]
            step = sh.jit(sh.implicit_comm(minimize=direction)(gradients_of(sh, sh.value_and_grad)))
            loss, grads = jax.block_until_ready(compiled(step.lower(*args))(*args))
            assert_within(denoted(loss), wanted[0], errors[0], f"loss of {texts}")
            for x, found, expected, error in zip(args, grads, wanted[1], errors[1], strict=True):
                assert found.type == x.type.cotangent()
                assert_within(denoted(found), expected, error, f"gradient of {x.type} in {texts}")


# single ops: a pending sum is finished by a reduce-scatter (half the bytes forward, a gather backward) or by an
# all-reduce to invariant (all of them forward, nothing backward)

FINISHED = {"forward": "f32[8@x]", "backward": "f32[8]{I:x}"}


@pytest.fixture
def pending() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh({"x": 4})):
        yield sh.reshard(sh.array(np.arange(8.0), "f32[8]"), "[8]{U:x}")


def blocked(direction: Any, x: Any) -> Any:
    with sh.implicit_comm(minimize=direction):
        return sh.sin(x)


@pytest.mark.parametrize("direction", FINISHED)
def test_an_op_alone_finishes_a_sum_for_its_direction(direction: Any, pending: Any) -> None:
    wanted = ShType.parse(FINISHED[direction], pending.type.mesh)
    runs: list[Callable[[Any], Any]] = [
        functools.partial(blocked, direction),
        sh.implicit_comm(minimize=direction)(sh.sin),
        sh.implicit_comm(sh.sin, minimize=direction),
        sh.jit(functools.partial(blocked, direction)),
        jax.jit(functools.partial(blocked, direction)),
        sh.implicit_comm(minimize="both")(functools.partial(blocked, direction)),  # the innermost says
    ]
    for run in runs:
        y = jax.block_until_ready(run(pending))
        assert y.type == wanted
        np.testing.assert_allclose(denoted(y), np.sin(np.arange(8.0)), rtol=1e-5)


def test_a_trace_in_one_scope_does_not_answer_for_another(pending: Any) -> None:
    jitted = sh.jit(sh.sin)
    for direction, text in (*FINISHED.items(), *reversed(FINISHED.items())):
        with m.implicit_comm(minimize=direction):
            assert jitted(pending).type == ShType.parse(text, pending.type.mesh)
            assert sh.sin(pending).type == ShType.parse(text, pending.type.mesh)


@pytest.mark.parametrize(("direction", "goal"), [("forward", "f32[8@x]"), ("backward", "f32[8]{I:x}")])
def test_branches_join_in_what_sends_least_in_the_direction(direction: Any, goal: str) -> None:
    with sh.use_mesh(sh.abstract_mesh({"x": 4})):
        types = [sh.abstract_array(t) for t in ("f32[8@x]", "f32[8]{I:x}", "i32[]")]
        for order in (types, [types[1], types[0], types[2]]):  # slice or gather: one of the two sends in each direction
            f = sh.implicit_comm(minimize=direction)(lambda a, b, i: sh.cond(i > 0, lambda: a, lambda: b))
            assert sh.check(f, *order).results == ShType.parse(goal)


def test_another_direction_is_refused() -> None:
    for call in (functools.partial(m.implicit_comm, minimize=d) for d in (None, "sideways")):
        with pytest.raises(sh.ShardingTypeError, match="minimizes what is sent forward, backward or both") as caught:
            call()
    line = caught.traceback[0].lineno + 1
    assert str(caught.value) == (
        "`implicit_comm` minimizes what is sent forward, backward or both, not 'sideways'\n"
        f"  where: test_minimize.py:{line} in test_another_direction_is_refused: implicit_comm\n"
        '  try:   sh.implicit_comm(minimize="both")\n'
        '  try:   sh.implicit_comm(minimize="forward")\n'
        '  try:   sh.implicit_comm(minimize="backward")'
    )
