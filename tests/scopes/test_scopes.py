"""Scopes forbid, bound and allow communication, where it is made and whatever is traced, cached or transformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shtypes as sh
from shtypes.traced.ledger import ledger
from tests.end_to_end import some
from tests.traced.compiled import JITS, Sent, compiled_text, sent_by_compiled
from tests.traced.random_programs import AXES, random_program

pytestmark = pytest.mark.mesh(AXES)


def typed(text: str) -> Any:
    return sh.abstract_array(text)


def block(x: Any, w_in: Any, w_out: Any) -> Any:
    return sh.silu(x @ w_in) @ w_out


def operands(x: str = "f32[8@dp,8]") -> tuple[Any, Any, Any]:
    return typed(x), typed("f32[8,16@tp]"), typed("f32[16@tp,8]")


X, INVARIANT = "f32[8@dp,8]", "f32[8@dp,8]{I:tp}"


def reduced(*args: Any) -> Any:
    return sh.all_reduce(block(*args), "tp", to="I")  # silent backward


# what is forbidden in which direction

CASES: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "einsums": (lambda: block(*operands()), set()),
    "all_reduce to I": (lambda: reduced(*operands()), {"forward"}),
    "all_reduce to R": (lambda: sh.all_reduce(block(*operands()), to="R"), {"forward", "backward"}),
    "reshard I to R": (lambda: sh.reshard(typed(INVARIANT), tp="R"), {"backward"}),
    "reshard R to I": (lambda: sh.reshard(typed(X), tp="I"), set()),
    "reshard I to S": (lambda: sh.reshard(typed(INVARIANT), tp=1), {"backward"}),
    "reshard R to S": (lambda: sh.reshard(typed(X), tp=1), set()),
    "reshard S to R": (lambda: sh.reshard(typed(X), dp="R"), {"forward", "backward"}),
    "reshard S to I": (lambda: sh.reshard(typed(X), dp="I"), {"forward"}),
    "reshard S to U": (lambda: sh.reshard(typed(X), dp="U"), set()),
    "all_to_all": (lambda: sh.all_to_all(typed(X), "dp", 1), {"forward", "backward"}),
    "cast of an invariant operand": (lambda: block(*operands(INVARIANT)), {"backward"}),
    "cast of an integer": (lambda: typed("i32[8@dp,8]{I:tp}") + typed("i32[8@dp,8@tp]"), set()),
    "out=": (lambda: sh.einsum("ij,jk->ik", *operands()[:2], out="[8,16@tp]"), {"forward", "backward"}),
    "from_jax": (
        lambda: jax.eval_shape(lambda a: sh.from_jax(a, "f32[8]{R:(dp,tp)}"), jnp.ones(8)),
        {"backward"},
    ),
    "checkpoint": (lambda: jax.eval_shape(sh.checkpoint(reduced), *operands()), {"forward", "backward"}),
    "reinterpret I to V": (lambda: sh.reinterpret(typed("f32[8]{I:tp}"), tp="V"), {"backward"}),
}


def refused(do: Callable[[], Any], scope: Any) -> bool:
    found = None
    try:
        with scope:
            do()
    except sh.ShardingTypeError as error:
        found = error
    assert found is None or ("no_comm" in str(found) and found.placed)
    return found is not None


@pytest.mark.parametrize("name", list(CASES))
def test_no_comm_forbids_what_communicates_in_its_direction(name: str) -> None:
    do, directions = CASES[name]
    assert refused(do, sh.no_comm("forward")) == ("forward" in directions)
    assert refused(do, sh.no_comm("backward")) == ("backward" in directions)
    assert refused(do, sh.no_comm()) == bool(directions)
    do()


@pytest.mark.parametrize("size", [1, 2])
def test_the_size_of_an_axis_does_not_matter(size: int) -> None:
    jax.set_mesh(None)
    with sh.use_mesh(sh.abstract_mesh({"x": size})):
        assert refused(lambda: sh.all_reduce(typed("f32[8]{U:x}")), sh.no_comm())


# where scopes hold

TRACED: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "jit": lambda f: jax.eval_shape(jax.jit(f), *operands()),
    "sh.jit": lambda f: sh.jit(f).eval_shape(*operands()),
    "scan": lambda f: jax.eval_shape(
        lambda x, *ws: sh.scan(lambda c, _: (f(c, *ws), None), x, None, 3)[0], *operands()
    ),
    "cond": lambda f: jax.eval_shape(lambda *args: sh.cond(True, f, lambda x, *_: x, *args), *operands()),
    "checkpoint": lambda f: jax.eval_shape(sh.checkpoint(f), *operands()),
    "vmap": lambda f: jax.eval_shape(
        sh.vmap(f, (None, 0, None)), *operands()[:1], typed("f32[3,8,16@tp]"), operands()[2]
    ),
    "grad": lambda f: jax.eval_shape(sh.grad(lambda *args: sh.sum(f(*args))), *operands()),
    "eager": lambda f: f(*(sh.ones(x.type) for x in operands())),
}


def quiet(x: Any, *_: Any) -> Any:
    return sh.sin(x)


@pytest.mark.parametrize("name", list(TRACED))
def test_a_scope_holds_around_and_inside_every_transformation(name: str) -> None:
    run = TRACED[name]
    run(lambda *args: sh.all_reduce(block(*args), "tp"))
    with pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids all-reduce over `tp` in the forward pass"):
        run(sh.no_comm(lambda *args: sh.all_reduce(block(*args), "tp")))
    with sh.no_comm():
        run(quiet)
        with pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids all-reduce over `tp` in the forward pass"):
            run(lambda *args: sh.all_reduce(block(*args), "tp"))


@pytest.mark.parametrize("jit", [jax.jit, sh.jit], ids=["jax.jit", "sh.jit"])
def test_a_cached_trace_never_escapes_a_scope(jit: Any) -> None:
    args = [sh.ones(x.type) for x in operands()]
    f = jit(lambda *args: sh.all_reduce(block(*args), "tp"))
    f(*args).block_until_ready()
    with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids"):
        f(*args)
    f(*args).block_until_ready()


def test_an_eager_call_that_ran_before_is_judged_again() -> None:
    x = sh.ones("f32[8@dp,8]")
    for _ in range(3):
        sh.all_gather(x, "dp").block_until_ready()
    for _ in range(2):
        with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="all-gather"):
            sh.all_gather(x, "dp")


def test_a_cast_made_before_the_loop_is_judged_where_it_is_used() -> None:
    def f(x: Any, w: Any) -> Any:
        @sh.no_comm
        def body(c: Any, _: Any) -> tuple[Any, None]:
            return c * w, None

        return sh.scan(body, x, None, 3)[0]

    with pytest.raises(sh.ShardingTypeError, match=r"`mul` casts f32\[8@dp,8\]\{I:tp\} to f32\[8@dp,8\]"):
        jax.eval_shape(f, typed(X), typed(INVARIANT))


def test_a_cast_that_is_known_already_is_judged_again() -> None:
    def f(x: Any, w: Any) -> Any:
        y = x * w
        with sh.no_comm():
            return y * w

    with pytest.raises(sh.ShardingTypeError, match="`mul` casts"):
        jax.eval_shape(f, typed(X), typed(INVARIANT))


@sh.custom_vjp
def silent(x: Any) -> Any:
    return sh.sin(x)


def loud_backward(_: Any, ct: Any) -> tuple[Any]:
    return (sh.reshard(sh.reshard(ct, dp="R"), dp=0),)


silent.defvjp(lambda x: (sh.sin(x), None), loud_backward)


@pytest.mark.parametrize("outer", [lambda f: f, jax.jit, sh.checkpoint], ids=["alone", "jit", "checkpoint"])
def test_a_custom_backward_is_checked_under_the_scope_of_its_call(outer: Any) -> None:
    def f(x: Any, scope: Any) -> Any:
        y = sh.sin(x)
        with scope:
            y = outer(silent)(y)
        return sh.sum(y)

    def step(scope: Any) -> Any:
        return jax.eval_shape(sh.grad(lambda x: f(x, scope)), typed(X))

    for scope in (sh.no_comm(), sh.no_comm("backward")):
        with pytest.raises(sh.ShardingTypeError, match="in the backward function of a `custom_vjp`"):
            step(scope)
    step(sh.no_comm("forward"))
    step(sh.comm_budget(axes="dp"))
    with sh.no_comm():
        jax.eval_shape(silent, typed(X))  # the forward function is silent


@pytest.mark.parametrize("run", [lambda f: f(), lambda f: sh.jit(f)(), lambda f: jax.jit(f)()], ids=["", "sh", "jax"])
def test_a_backward_pass_that_runs_inside_a_scope_is_judged_there(run: Any) -> None:
    x = sh.ones(X)
    out, pull = sh.vjp(lambda x: sh.all_gather(x, "dp", to="R"), x)
    varying = sh.ones(out.type.cotangent().with_axis("dp", sh.State.VARYING))
    pending = sh.reinterpret(varying, dp="U")  # each device has a term, and none the sum
    for direction in ("both", "backward"):
        with (
            sh.no_comm(direction),
            pytest.raises(sh.ShardingTypeError, match="forbids reduce-scatter over `dp` in the backward pass"),
        ):
            run(lambda: pull(pending))
    with sh.no_comm("forward"):
        (g,) = run(lambda: pull(pending))
    assert g.type == x.type.cotangent()


def test_scopes_nest_and_end() -> None:
    scope = sh.no_comm("forward")
    with scope, scope:
        sh.reshard(typed(INVARIANT), tp="R")
        with sh.no_comm(), pytest.raises(sh.ShardingTypeError, match="backward"):
            sh.reshard(typed(INVARIANT), tp="R")
        with pytest.raises(sh.ShardingTypeError, match="forward"):
            sh.all_gather(typed(X), "dp")
    sh.all_gather(typed(X), "dp")


@pytest.mark.parametrize(
    "make", [sh.no_comm, sh.no_comm(), sh.no_comm("forward")], ids=["bare", "called", "with a direction"]
)
def test_a_scope_is_a_decorator(make: Any) -> None:
    def gather(x: Any) -> Any:
        """Gathers."""
        return sh.all_gather(x, "dp")

    gathered = make(gather)
    assert gathered.__name__ == "gather"
    assert gathered.__doc__ == "Gathers."
    with pytest.raises(sh.ShardingTypeError, match="no_comm"):
        gathered(typed(X))


def test_a_sharded_value_cannot_become_a_plain_array_inside() -> None:
    with sh.no_comm():
        assert sh.reshard(sh.ones("f32[]"), dp="I", tp="I").to_jax().shape == ()
        with pytest.raises(sh.ShardingTypeError, match="cannot vouch"):
            typed(X).to_jax()


# the property


@pytest.mark.one_in(13)
@pytest.mark.parametrize("seed", range(some(6, 40)))
def test_what_no_comm_accepts_compiles_to_no_collective_forward_or_backward(seed: int) -> None:
    with sh.policy("jax" if seed % 2 else "partial"):
        program = random_program(1000 + seed, scope=sh.no_comm)
        assert len(program.steps) >= 5
        for jit in JITS:
            gradients = jit(sh.no_comm(program.gradients))
            text = compiled_text(gradients, program.values(), program.cotangents(), options=None)
            assert sent_by_compiled(text) == Sent({}, {}), str(program)


@pytest.mark.one_in(13)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("seed", range(some(5, 40)))
def test_what_a_direction_accepts_has_nothing_in_the_ledger_of_that_direction(seed: int, direction: Any) -> None:
    with sh.policy("jax" if seed % 2 else "partial"):
        program = random_program(2000 + seed, scope=lambda: sh.no_comm(direction))
        found = ledger(sh.no_comm(direction)(program.gradients), program.values(), program.cotangents())
        assert not list(getattr(found, direction)()), str(program)


def test_a_program_that_is_silent_backward_may_communicate_forward() -> None:
    programs = [random_program(2000 + seed, scope=lambda: sh.no_comm("backward")) for seed in range(4)]
    assert any(ledger(p.gradients, p.values(), p.cotangents()).forward() for p in programs)


# budgets


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kinds": ["all-reduce"]}, "`comm_budget` allows all-reduce only, not all-gather over `dp`"),
        ({"kinds": []}, "`comm_budget` allows nothing only"),
        ({"axes": "tp"}, "`comm_budget` allows collectives over `tp` only, not all-gather over `dp`"),
        (
            {"bytes": 127},
            "`comm_budget` allows 127 B/device in the forward pass, and all-gather over `dp` makes it 128",
        ),
        (
            {"launches": 0},
            "`comm_budget` allows 0 collectives in the forward pass, and all-gather over `dp` makes it 1",
        ),
    ],
    ids=["kinds", "no kind", "axes", "bytes", "launches"],
)
def test_a_budget_refuses_what_exceeds_it(options: Any, says: str) -> None:
    with sh.comm_budget(**options), pytest.raises(sh.ShardingTypeError) as caught:
        sh.all_gather(typed(X), "dp", to="I")
    assert says in str(caught.value)


def test_a_budget_allows_what_is_in_it() -> None:
    with sh.comm_budget(kinds=["all-gather", "reduce-scatter"], axes=["dp"], bytes=128, launches=1):
        sh.all_gather(typed(X), "dp")


def test_a_budget_holds_for_the_backward_pass_too() -> None:
    with (
        sh.comm_budget(kinds="all-gather"),
        pytest.raises(sh.ShardingTypeError, match=r"reduce-scatter.*backward pass"),
    ):
        sh.all_gather(typed(X), "dp", to="R")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(sh.ShardingTypeError, match="there is no collective 'psum'; they are"):
        sh.comm_budget(kinds="psum")


def test_an_unknown_direction_is_refused() -> None:
    with pytest.raises(
        sh.ShardingTypeError, match="`no_comm` forbids communication forward, backward or both, not 'up'"
    ):
        sh.no_comm("up")  # type: ignore[call-overload]


# implicit communication


def test_ops_insert_the_cheapest_reshards_where_that_is_allowed() -> None:
    def f(*args: Any) -> Any:
        return sh.sin(block(*args))

    args = operands()
    with pytest.raises(sh.ShardingTypeError, match="nonlinear"):
        jax.eval_shape(f, *args)
    found = ledger(sh.implicit_comm(f), *args)
    assert [(e.kind, e.axes, e.inserted, e.bytes) for e in found] == [("reduce-scatter", ("tp",), True, 96)]
    assert found[0].place.function.endswith("f")


def test_no_comm_holds_inside_implicit_comm_and_around_it() -> None:
    pending = typed("f32[8]{U:tp}")
    for outer, inner in ((sh.no_comm(), sh.implicit_comm()), (sh.implicit_comm(), sh.no_comm())):
        with outer, inner, pytest.raises(sh.ShardingTypeError, match="`no_comm` forbids"):
            sh.sin(pending)


def test_what_no_reshard_helps_is_still_an_error() -> None:
    with sh.implicit_comm(), pytest.raises(sh.ShardingTypeError, match="einsum"):
        sh.einsum("ij,jk->ik", typed(X), typed("f32[9,8]"))


# messages

GOLDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "a reshard": (
        lambda: sh.all_reduce(typed("f32[8,8]{U:tp}")),
        """`no_comm` forbids all-reduce over `tp` in the forward pass: `all_reduce` takes f32[8,8]{U:tp} to f32[8,8]
  where: HERE: all_reduce(f32[8,8]{U:tp})
  why:   each device would send 384 B
  try:   sh.all_reduce(x) before the scope""",
    ),
    "a cast that another operand can spare": (
        lambda: typed(INVARIANT) * typed(X),
        """`no_comm` forbids all-reduce over `tp` in the backward pass: `mul` casts f32[8@dp,8]{I:tp} to f32[8@dp,8]
  where: HERE: mul(f32[8@dp,8]{I:tp}, f32[8@dp,8])
  why:   the gradient goes back from f32[8@dp,8]{U:tp} to f32[8@dp,8]{I:tp}; each device would send 192 B
  fix:   sh.reshard(typed(X), "[8@dp,8]{I:tp}")   [forward: none; backward: none]
  try:   sh.reshard(typed(INVARIANT), tp="R") before the scope
  try:   sh.constant(typed(INVARIANT)) if it needs no gradient, such as a learning rate""",
    ),
    "a learning rate": (
        lambda: jax.eval_shape(lambda x, lr: x * lr, typed(X), jnp.float32(1)),
        """`no_comm` forbids all-reduce over `dp`, `tp` in the backward pass: `mul` casts f32[]{I:(dp,tp)} to f32[]
  where: HERE: mul(f32[8@dp,8], f32[]{I:(dp,tp)})
  why:   the gradient goes back from f32[]{U:(dp,tp)} to f32[]{I:(dp,tp)}; each device would send 7 B
  try:   sh.reshard(rhs, dp="R", tp="R") before the scope
  try:   sh.constant(rhs) if it needs no gradient, such as a learning rate""",
    ),
    "a plain array": (
        lambda: typed(X).to_jax(),
        """`no_comm` cannot vouch for f32[8@dp,8] as a plain array: it is sharded over dp
  where: HERE: to_jax
  why:   JAX places what is computed on it, and may communicate where no type shows it
  try:   use the function of the same name in shtypes
  try:   x.to_jax() outside the scope""",
    ),
}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_a_message_says_what_where_why_and_what_else(name: str) -> None:
    do, text = GOLDEN[name]
    with sh.no_comm(), pytest.raises(sh.ShardingTypeError) as caught:
        do()
    place = caught.value.where.split(":", 2)
    assert place[0] == "test_scopes.py"
    printed = str(caught.value).replace(f"{place[0]}:{place[1]}", "HERE")
    assert printed == text


def test_the_advice_for_a_constant_names_the_state_where_the_policy_would_take_another() -> None:
    with sh.policy("jax"), sh.no_comm(), pytest.raises(sh.ShardingTypeError) as caught:
        typed("f32[8]{I:tp}") * typed("f32[8@tp]{I:dp}")
    assert 'sh.constant(lhs, to="R")' in str(caught.value)
