"""`sh.debug`: what each device shows, where it may be called, and that nothing goes from device to device for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh

m: Any = sh.debug  # for calls that a type checker refuses too
X = np.arange(8, dtype=np.float32).reshape(4, 2)
PARTS = ["[dp=0] [[0. 1.]\n [2. 3.]]", "[dp=1] [[4. 5.]\n [6. 7.]]"]


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 2})


@pytest.fixture
def x() -> Any:
    return sh.array(X, "f32[4@dp,2]")


def printed(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """What was printed, one text for each call, sorted: devices come in any order."""
    jax.effects_barrier()
    text = capfd.readouterr().out
    return sorted(
        part.rstrip("\n") for part in text.replace("\n[", "\n\0[").replace("\n#", "\n\0#").split("\0") if part
    )


def show(x: Any) -> Any:
    sh.debug.print("{}", x)
    return x * 2


MODES: dict[str, Callable[[Callable[[Any], Any]], Callable[[Any], Any]]] = {
    "eager": lambda f: f,
    "sh.jit": sh.jit,
    "jax.jit": jax.jit,
    "grad": lambda f: sh.grad(lambda x: sh.sum(sh.sin(f(x)))),
    "jit of grad": lambda f: sh.jit(jax.grad(lambda x: sh.sum(sh.sin(f(x))))),
    "jax.jit of grad": lambda f: jax.jit(sh.grad(lambda x: sh.sum(sh.sin(f(x))))),
    "linearize": lambda f: lambda x: sh.linearize(f, x),
    "checkpoint": lambda f: sh.jit(sh.checkpoint(f)),
    "cond": lambda f: sh.jit(lambda x: sh.cond(sh.all_reduce(sh.sum(x)) > 0, f, lambda x: x, x)),
    "scan": lambda f: sh.jit(lambda x: sh.scan(lambda c, _: (f(c), None), x, None, 1)),
    "fori_loop": lambda f: sh.jit(lambda x: sh.fori_loop(0, 1, lambda i, c: f(c), x)),
    "one region": lambda f: sh.jit(lambda x: sh.scan(lambda c, _: (f(c), None), x, None, 1), region="require"),
    "disable_jit": lambda f: lambda x: _without_jit(f, x),
}


def _without_jit(f: Callable[[Any], Any], x: Any) -> Any:
    with jax.disable_jit():
        return sh.jit(f)(x)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("mode", MODES)
def test_each_device_prints_its_part_wherever_the_program_runs(
    mode: str, x: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    MODES[mode](show)(x)
    assert printed(capfd) == PARTS


#: Types of the value ``[[0, 1], [2, 3]]``, and what is printed.
SHOWN = {
    "f32[2,2]": ["[[0. 1.]\n [2. 3.]]"],
    "f32[2,2]{I:(dp,tp)}": ["[[0. 1.]\n [2. 3.]]"],
    "f32[2@dp,2]": ["[dp=0] [[0. 1.]]", "[dp=1] [[2. 3.]]"],
    "f32[2@dp,2@tp]": ["[dp=0, tp=0] [[0.]]", "[dp=0, tp=1] [[1.]]", "[dp=1, tp=0] [[2.]]", "[dp=1, tp=1] [[3.]]"],
    "i32[2,2@tp]": ["[tp=0] [[0]\n [2]]", "[tp=1] [[1]\n [3]]"],
    "f32[2,2]{U:tp}": [
        "[tp=0] [[0. 1.]\n [2. 3.]] (a term of f32[2,2]{U:tp})",
        "[tp=1] [[0. 0.]\n [0. 0.]] (a term of f32[2,2]{U:tp})",
    ],
}


@pytest.mark.parametrize("mode", ["eager", "sh.jit"])
@pytest.mark.parametrize("text", SHOWN)
def test_what_is_printed_follows_from_the_type(text: str, mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    value = sh.array(np.arange(4).reshape(2, 2), text)
    MODES[mode](show)(value)
    assert printed(capfd) == SHOWN[text]


@pytest.mark.parametrize("mode", ["eager", "sh.jit"])
def test_a_varying_value_prints_the_value_of_each_device(mode: str, capfd: pytest.CaptureFixture[str]) -> None:
    def inside(v: Any) -> Any:
        sh.debug.print("{} on {}", v, sh.lax.axis_index("dp"))
        return v

    mapped = sh.shard_map(inside, in_specs="[_@dp]", out_specs="[_@dp]")
    MODES[mode](mapped)(sh.array([1.0, 2.0], "f32[2@dp]"))
    assert printed(capfd) == ["[dp=0] [1.] on 0", "[dp=1] [2.] on 1"]


def test_formats_reach_into_values(x: Any, capfd: pytest.CaptureFixture[str]) -> None:
    sh.jit(
        lambda x: sh.debug.print(
            "#{0:.2f} {x.shape} {x[0][1]} {name} {s}", sh.all_reduce(sh.sum(x)), x=x, name="n", s=sh.sum(x)
        )
    )(x)
    assert printed(capfd) == [
        "[dp=0] #28.00 (2, 2) 1.0 n 6.0 (a term of f32[]{U:dp})",
        "[dp=1] #28.00 (2, 2) 5.0 n 22.0 (a term of f32[]{U:dp})",
    ]


def test_keys_and_bools_print(x: Any, capfd: pytest.CaptureFixture[str]) -> None:
    modes: list[Any] = [lambda f: f, sh.jit]
    for mode in modes:
        mode(lambda k: sh.debug.print("{}", k))(sh.random.key(7))
        mode(lambda x: sh.debug.print("{}", x > 3))(x)
    words = f"{np.asarray(jax.random.key_data(jax.random.key(7)))}"
    parts = [f"[dp={i}] {part > 3}" for i, part in enumerate((X[:2], X[2:]))]
    assert printed(capfd) == sorted([*parts, words] * 2)


@pytest.mark.parametrize("mode", ["eager", "sh.jit", "jax.jit"])
def test_each_step_of_vmap_prints(mode: str, x: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run: Any = MODES[mode]
    run(sh.vmap(show))(x)  # over the sharded dim
    assert printed(capfd) == [f"[dp={i // 2}] {X[i]}" for i in range(4)]
    run(sh.vmap(show, in_axes=1, out_axes=1))(x)
    assert printed(capfd) == [
        f"[dp={i}] {part}" for i in range(2) for part in (X[2 * i : 2 * i + 2, 0], X[2 * i : 2 * i + 2, 1])
    ]


def test_each_step_of_a_loop_prints_in_order_on_each_device(x: Any, capfd: pytest.CaptureFixture[str]) -> None:
    sh.jit(lambda x: sh.scan(lambda c, row: (c + 1, sh.debug.print("{} {}", c, row)), 0, sh.transpose(x)))(x)
    jax.effects_barrier()
    lines = [line.strip() for line in capfd.readouterr().out.splitlines()]
    for i in range(2):
        assert [line for line in lines if line.startswith(f"[dp={i}]")] == [
            f"[dp={i}] {step} {X[2 * i : 2 * i + 2, step]}" for step in range(2)
        ]


@pytest.mark.parametrize("mode", ["eager", "sh.jit", "jax.jit"])
def test_a_callback_is_given_the_parts_and_if_it_asks_their_places(mode: str, x: Any) -> None:
    seen: list[Any] = []

    def note(*given: Any, **named: Any) -> None:
        seen.append((given, named))

    def f(x: Any) -> Any:
        sh.debug.callback(note, x, 3, places=True, total=sh.all_reduce(sh.sum(x)))
        sh.debug.callback(note, sh.all_reduce(sh.sum(x)))
        return x

    MODES[mode](f)(x)
    jax.effects_barrier()
    whole = [given for given, named in seen if not named]
    assert len(whole) == 1
    assert float(whole[0][0]) == 28.0
    parts = sorted(
        (given[0]["dp"], given[1].tolist(), given[2], float(named["total"])) for given, named in seen if named
    )
    assert parts == [(0, X[:2].tolist(), 3, 28.0), (1, X[2:].tolist(), 3, 28.0)]


def test_what_a_rule_shows_of_a_tangent_is_shown_forward_alone(x: Any) -> None:
    """In the backward pass there is no tangent: JAX leaves the call out there, and the gradient is as without it."""
    seen: list[Any] = []

    @jax.custom_jvp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    @f.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        jax.debug.callback(seen.append, tangents[0])
        return f(primals[0]), tangents[0] * jnp.cos(primals[0])

    for gradient in (sh.grad(lambda x: sh.sum(sh.lift(f)(x))), sh.lift(jax.grad(lambda x: jnp.sum(f(x))))):
        np.testing.assert_allclose(np.asarray(sh.all_reduce(sh.jit(gradient)(x))), np.cos(X), rtol=1e-6)
    jax.effects_barrier()
    assert not seen
    jax.block_until_ready(sh.jit(lambda x: sh.jvp(sh.lift(f), (x,), (x,))[1])(x).data)
    jax.effects_barrier()
    assert len(seen) == 2


#: Functions that call back, and the policies of a checkpoint around them.
IN_CHECKPOINTS: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "an argument": (lambda call, x: (call(x), jnp.sin(jnp.sin(x)))[1], None),
    "an argument of what is linear": (lambda call, x: (call(x), x * 2)[1], None),
    "an argument, all saved": (lambda call, x: (call(x), jnp.sin(x))[1], sh.checkpoint_policies.everything_saveable),
    "a saved value": (
        lambda call, x: (call(y := jnp.sin(x)), jnp.sin(y))[1],
        sh.checkpoint_policies.everything_saveable,
    ),
    "a value": (lambda call, x: (call(y := jnp.sin(x)), jnp.sin(y))[1], sh.checkpoint_policies.dots_saveable),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", IN_CHECKPOINTS)
@pytest.mark.mesh({"dp": 2})
def test_a_checkpoint_calls_again_as_that_of_jax(name: str, x: Any) -> None:
    seen: list[Any] = []
    f, policy = IN_CHECKPOINTS[name]
    step = jax.checkpoint(lambda x: f(functools.partial(jax.debug.callback, seen.append), x), policy=policy)

    def loss(x: Any) -> Any:
        return jnp.sum(jax.lax.scan(lambda c, _: (step(c), None), step(x), None, 2)[0])

    def calls(gradient: Callable[[Any], Any], x: Any) -> int:
        seen.clear()
        gradient(x)
        jax.effects_barrier()
        return len(seen)

    wanted = calls(jax.jit(jax.grad(loss)), X)
    assert wanted == (3 if name == "a saved value" else 6)
    for gradient in (sh.grad(sh.lift(loss)), sh.lift(jax.grad(loss)), sh.implicit_comm(sh.lift(jax.grad(loss)))):
        assert calls(sh.jit(gradient), x) == 2 * wanted


def test_nothing_goes_from_device_to_device(x: Any) -> None:
    def f(x: Any) -> Any:
        sh.debug.print("{} {}", x, sh.sum(x))
        return x * 2

    assert not list(sh.ledger(f, x))
    with sh.no_comm(), sh.comm_budget(bytes=0):
        sh.jit(f)(x)
    compiled = sh.jit(f).lower(x).compile().as_text()
    assert not [
        name for name in ("all-reduce", "all-gather", "all-to-all", "collective-permute") if f"{name}(" in compiled
    ]
    jax.effects_barrier()


def test_types_alone_print_nothing(capfd: pytest.CaptureFixture[str], x: Any) -> None:
    jax.eval_shape(show, x)
    with sh.use_mesh(sh.abstract_mesh({"dp": 64})):
        sh.check(show, "f32[64@dp,2]")
        show(sh.abstract_array("f32[64@dp,2]"))
    assert printed(capfd) == []


def test_plain_programs_print_as_jax_does(capfd: pytest.CaptureFixture[str]) -> None:
    sh.debug.print("#{} {}", 3, np.ones(2))
    jax.jit(lambda a: sh.debug.print("#{}", a))(jnp.ones(2))
    run = jax.jit(lambda a: (sh.debug.print("#again"), a)[1])
    run(jnp.ones(2))
    run(jnp.ones(2))
    assert printed(capfd) == ["#3 [1. 1.]", "#[1. 1.]", "#again", "#again"]


def test_lines_are_ordered_where_there_is_one_device(capfd: pytest.CaptureFixture[str]) -> None:
    with sh.use_mesh(sh.make_mesh({"dp": 1})):
        x = sh.array(np.ones(2), "f32[2@dp]")

        def f(x: Any) -> Any:
            for i in range(4):
                sh.debug.print("#{} {}", i, x, ordered=True)
            return x

        for mode in (lambda f: f, sh.jit, jax.jit):
            mode(f)(x)
            jax.effects_barrier()
            assert capfd.readouterr().out.splitlines() == [f"[dp=0] #{i} [1. 1.]" for i in range(4)]


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (
            jax.jit(lambda x: sh.debug.print("{}", x, ordered=True)),
            "`debug.print` cannot be ordered in traced code on 4 devices\n"
            "  where: LINE: print\n"
            "  why:   each device calls its host by itself, and none waits for another\n"
            "  try:   without ordered=: the lines of each device name its place\n"
            "  try:   sh.debug.print(...) outside of jit",
        ),
        (
            lambda x: sh.debug.print("{} {}", x),
            "`debug.print` cannot write 1 values into '{} {}'\n"
            "  where: LINE: print\n"
            "  why:   Replacement index 1 out of range for positional args tuple",
        ),
        (
            lambda x: sh.debug.print("{y}", x=x),
            "`debug.print` cannot write 1 values into '{y}'\n"
            "  where: LINE: print\n"
            "  why:   there is no value named 'y'",
        ),
        (
            sh.debug.print,
            '`debug.print` takes a format string first, not Array\n  where: LINE: print\n  try:   "{}"',
        ),
        (lambda x: m.callback(3, x), "`debug.callback` takes a function, not 3\n  where: LINE: callback"),
    ],
)
def test_what_cannot_be_shown_is_refused_while_it_is_traced(call: Callable[[Any], Any], wanted: str, x: Any) -> None:
    with pytest.raises(sh.ShardingTypeError) as caught:
        call(x)
    line = caught.value.where.rpartition(": ")[0]
    assert str(caught.value).replace(line, "LINE") == wanted


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="JAX finds leaks in every program of hijax types")
def test_no_tracer_outlives_its_trace(x: Any) -> None:
    with jax.checking_leaks():
        jax.jit(show)(x)
        jax.jit(sh.grad(lambda x: sh.sum(show(x))))(x)
    jax.effects_barrier()
