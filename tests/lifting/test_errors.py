"""Errors inside plain programs: the user's line, the function that was called there, and fixes that can be typed."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.golden import golden

pytestmark = pytest.mark.one_in(9)

MESH = {"dp": 2, "tp": 4}
CASES: dict[str, Callable[[], Any]] = {}


def case(fn: Callable[[], Any]) -> Callable[[], Any]:
    """Makes a function a case: it calls a lifted program that is refused."""
    CASES[fn.__name__.strip("_")] = fn
    return fn


def library(name: str) -> Any:
    """A library that may not be installed."""
    return pytest.importorskip(name)


def _pending() -> tuple[Any, Any]:
    """Operands whose product is a pending sum."""
    return sh.ones("f32[8@dp, 16@tp]"), sh.ones("f32[16@tp, 8]")


def _rows() -> Any:
    return sh.ones("f32[8@dp, 16@tp]")


def _typed(tree: Any, **types: str) -> Any:
    """A tree of plain parameters, typed: those whose shape is named, ``16x8``, as said, the others replicated."""

    def one(x: Any) -> Any:
        shape = "x".join(map(str, x.shape))
        return sh.array(np.asarray(x), types.get(f"of_{shape}", f"{x.dtype.name.replace('float', 'f')}{list(x.shape)}"))

    return jax.tree.map(one, tree)


def bad(x: Any, w: Any) -> Any:
    """A pending sum meets what is nonlinear."""
    return jnp.tanh(x @ w)


# inside libraries


@case
def _optax_cross_entropy() -> Any:
    optax = library("optax")

    def step(x: Any, w: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy(x @ w, y).mean()

    return sh.lift(step)(*_pending(), sh.ones("f32[8@dp, 8]"))


@case
def _optax_adam() -> Any:
    optax = library("optax")

    optimizer = optax.adam(1e-3)

    def step(g: Any, state: Any, params: Any) -> Any:
        updates, state = optimizer.update(g, state, params)
        return optax.apply_updates(params, updates), state

    params = sh.ones("f32[16, 8]")
    return sh.lift(step)(sh.ones("f32[16, 8]{U:tp}"), sh.lift(optimizer.init)(params), params)


@case
def _optax_clipping() -> Any:
    optax = library("optax")

    optimizer = optax.clip_by_global_norm(1.0)

    def step(g: Any, state: Any) -> Any:
        return optimizer.update(g, state)

    return sh.lift(step)({"w": sh.ones("f32[16@tp, 8]")}, optimizer.init({"w": jnp.ones((16, 8))}))


@case
def _optax_huber() -> Any:
    optax = library("optax")

    return sh.lift(lambda x, w: optax.huber_loss(x @ w))(*_pending())


@case
def _linen_dense() -> Any:
    nn = library("flax.linen")

    class Model(nn.Module):  # type: ignore[misc,name-defined]  # it may not be there
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return nn.Dense(4)(nn.relu(nn.Dense(8)(x)))

    model = Model()
    params = _typed(model.init(jax.random.key(0), jnp.ones((8, 16))), of_16x8="f32[16@tp, 8]")

    def forward(params: Any, x: Any) -> Any:
        return model.apply(params, x)

    return sh.lift(forward)(params, _rows())


@case
def _linen_layer_norm() -> Any:
    nn = library("flax.linen")

    model = nn.LayerNorm()
    params = _typed(model.init(jax.random.key(0), jnp.ones((8, 16))), of_16="f32[16@tp]")

    def forward(params: Any, x: Any) -> Any:
        return model.apply(params, x)

    return sh.lift(forward)(params, _rows())


@case
def _linen_attention() -> Any:
    nn = library("flax.linen")

    model = nn.MultiHeadDotProductAttention(num_heads=2)
    params = _typed(model.init(jax.random.key(0), jnp.ones((2, 4, 16))))

    def forward(params: Any, x: Any) -> Any:
        return model.apply(params, x)

    return sh.lift(forward)(params, sh.ones("f32[2@dp, 4, 16@tp]"))


@case
def _nnx_linear() -> Any:
    nnx = library("flax.nnx")

    graph, state = nnx.split(nnx.Linear(16, 8, rngs=nnx.Rngs(0)))
    state = _typed(state, of_16x8="f32[16@tp, 8]")

    def forward(state: Any, x: Any) -> Any:
        layer = nnx.merge(graph, state)
        return nnx.gelu(layer(x))

    return sh.lift(forward)(state, _rows())


@case
def _nnx_norm() -> Any:
    nnx = library("flax.nnx")

    graph, state = nnx.split(nnx.RMSNorm(16, rngs=nnx.Rngs(0)))
    state = _typed(state, of_16="f32[16@tp]")

    def forward(state: Any, x: Any) -> Any:
        return nnx.merge(graph, state)(x)

    return sh.lift(forward)(state, _rows())


@case
def _equinox_mlp() -> Any:
    eqx = library("equinox")

    arrays, static = eqx.partition(eqx.nn.MLP(16, 8, 16, 1, key=jax.random.key(0)), eqx.is_array)
    arrays = _typed(arrays, of_16x16="f32[16, 16@tp]")

    def forward(arrays: Any, x: Any) -> Any:
        return jax.vmap(eqx.combine(arrays, static))(x)

    return sh.lift(forward)(arrays, _rows())


@case
def _equinox_norm() -> Any:
    eqx = library("equinox")

    arrays, static = eqx.partition(eqx.nn.LayerNorm(16), eqx.is_array)
    arrays = _typed(arrays, of_16="f32[16@tp]")

    def forward(arrays: Any, x: Any) -> Any:
        return jax.vmap(eqx.combine(arrays, static))(x)

    return sh.lift(forward)(arrays, _rows())


@case
def _haiku_mlp() -> Any:
    hk = library("haiku")

    net = hk.transform(lambda x: hk.nets.MLP([8, 4])(x))  # noqa: PLW0108  # modules are made inside
    params = _typed(net.init(jax.random.key(0), jnp.ones((8, 16))), of_16x8="f32[16@tp, 8]")

    def forward(params: Any, x: Any) -> Any:
        return net.apply(params, None, x)

    return sh.lift(forward)(params, _rows())


# inside JAX's functions


@case
def _median() -> Any:
    def f(x: Any) -> Any:
        return jnp.median(x, axis=1)

    return sh.lift(f)(_rows())


@case
def _sort_in_a_lambda() -> Any:
    return sh.lift(lambda x: jnp.sort(2 * x))(_rows())


@case
def _variance_alone() -> Any:
    return sh.lift(jnp.var)(_rows())


@case
def _logsumexp() -> Any:
    def f(x: Any) -> Any:
        return jax.scipy.special.logsumexp(x, axis=1)

    return sh.lift(f)(_rows())


@case
def _einsum() -> Any:
    def f(x: Any, w: Any) -> Any:
        return jnp.einsum("bi,bj->ij", x, w)

    return sh.lift(f)(sh.ones("f32[8@dp, 4]"), sh.ones("f32[8@tp, 4]"))


@case
def _an_operator() -> Any:
    def f(x: Any, w: Any) -> Any:
        y = x @ w
        return y**2.5

    return sh.lift(f)(*_pending())


@case
def _a_reshape_in_a_method() -> Any:
    class Flat:
        def __call__(self, x: Any) -> Any:
            return x.reshape(-1)

    return sh.lift(lambda x: Flat()(2 * x))(sh.ones("f32[8, 6@dp]"))


@case
def _an_inverse() -> Any:
    def f(params: Any) -> Any:
        return jnp.linalg.inv(params["w"])

    return sh.lift(f)({"w": sh.ones("f32[8@tp, 8]")})


# inside transformations


@case
def _a_decorated_function() -> Any:
    def passed_on(g: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(g)
        def inner(*args: Any) -> Any:
            return g(*args)

        return inner

    @passed_on
    @jax.jit
    def f(x: Any) -> Any:
        return jnp.cumsum(x, axis=1)[:, ::-1]

    return sh.lift(f)(_rows())


@case
def _a_scan() -> Any:
    def f(x: Any, w: Any) -> Any:
        def body(carry: Any, _: Any) -> Any:
            return carry, jax.nn.softmax(x @ w)

        return jax.lax.scan(body, 0.0, None, length=2)

    return sh.lift(f)(*_pending())


@case
def _a_branch() -> Any:
    def f(x: Any, w: Any, i: Any) -> Any:
        return jax.lax.cond(i > 0, bad, lambda x, w: x @ w, x, w)

    return sh.lift(f)(*_pending(), sh.array(1, "i32[]"))


@case
def _a_predicate() -> Any:
    def f(x: Any) -> Any:
        return jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x)

    return sh.lift(f)(_rows())


@case
def _vmap() -> Any:
    def f(x: Any, w: Any) -> Any:
        return jax.vmap(lambda row: bad(row, w))(x)

    return sh.lift(f)(*_pending())


@case
def _grad_inside() -> Any:
    def f(x: Any, w: Any) -> Any:
        return jax.grad(lambda w: bad(x, w).sum())(w)

    return sh.lift(f)(*_pending())


@case
def _grad_outside() -> Any:
    def f(x: Any, w: Any) -> Any:
        return jnp.sum(bad(x, w))

    return sh.jit(sh.grad(sh.lift(f), argnums=1))(*_pending())


@case
def _checkpoint() -> Any:
    def f(x: Any, w: Any) -> Any:
        return jax.checkpoint(bad)(x, w)

    return sh.lift(f)(*_pending())


@case
def _custom_vjp() -> Any:
    @jax.custom_vjp
    def g(x: Any, w: Any) -> Any:
        return bad(x, w)

    g.defvjp(lambda x, w: (bad(x, w), (x, w)), lambda kept, ct: kept)
    return sh.lift(lambda x, w: g(2 * x, w))(*_pending())


@case
def _the_backward_pass() -> Any:
    @jax.custom_vjp
    def g(x: Any, w: Any) -> Any:
        return x @ w

    g.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, ct: (jnp.tanh(ct @ kept[1].T), kept[1]))

    def f(x: Any, w: Any) -> Any:
        return jnp.sum(g(x, w))

    total = lambda x, w: sh.all_reduce(sh.lift(f)(x, w))  # noqa: E731
    return sh.jit(sh.grad(total))(sh.ones("f32[8, 16]"), sh.ones("f32[16, 8@tp]"))


@case
def _a_scope_that_forbids() -> Any:
    def f(x: Any, w: Any) -> Any:
        return jnp.sum(x @ w)

    with sh.no_comm():
        return sh.lift(f, pending="finish")(*_pending())


def _message(name: str) -> sh.ShardingTypeError:
    with sh.use_mesh(sh.make_mesh(MESH)), pytest.raises(sh.ShardingTypeError) as error:
        CASES[name]()
    return error.value


@pytest.mark.one_in(17)
@pytest.mark.parametrize("name", CASES)
def test_an_error_reads_as_it_always_did(name: str) -> None:
    text = re.sub(r"\.py:\d+", ".py:N", str(_message(name)))
    golden(f"lifting/{name}.txt", text)


@pytest.mark.parametrize("name", [n for n in CASES if n != "variance_alone"])
def test_an_error_names_a_line_of_the_program(name: str) -> None:
    where = _message(name).where
    found = re.match(r"test_errors\.py:(\d+) in", where)
    assert found is not None, where
    first = inspect.getsourcelines(CASES[name])[1]
    inside = range(first, first + len(inspect.getsource(CASES[name]).split("\n")))
    assert int(found[1]) in inside or " in bad" in where


def _places(name: str) -> list[dict[str, str]]:
    """What the fixes of an error say to `at=`."""
    codes = [fix.code for fix in _message(name).fixes]
    return [ast.literal_eval(found[1]) for code in codes if (found := re.match(r"sh\.lift\(\w+, at=(\{.*\})\)$", code))]


def _outcome(name: str) -> str:
    try:
        CASES[name]()
    except sh.ShardingTypeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CASES)
def test_a_fix_names_no_line_inside_jax(name: str) -> None:
    files = {path.name for path in Path(jax.__file__).parent.rglob("*.py")} - {
        "attention.py",
        "normalization.py",
    }  # Flax has both
    text = " ".join(fix.code for fix in _message(name).fixes)
    assert not files.intersection(re.findall(r"\w+\.py", text))


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [(sh.no_comm, 0), (sh.no_comm("backward"), 1), (sh.comm_budget(bytes=8), 0)],
    ids=["no_comm", "backward", "budget"],
)
def test_a_fix_that_a_scope_around_the_program_forbids_is_advice(scope: Any, allowed: int) -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)), pytest.raises(sh.ShardingTypeError) as error:
        scope(sh.lift(lambda x: jax.nn.softmax(x * 2)))(sh.abstract_array("f32[16, 16@tp]"))
    assert len(error.value.fixes) == allowed
    assert all("outside `" in hint for hint in error.value.hints)
    assert len(error.value.hints) == 2


CALLS: dict[str, tuple[Callable[..., Any], str]] = {
    "median": (lambda x: jnp.median(x, axis=1), "x"),
    "var": (lambda x: jnp.var(x, axis=1) + 1, "x"),
    "inverse": (lambda x: jnp.linalg.inv(2 * x[:8, :8]), "2 * x[:8, :8]"),
    "of an expression": (lambda x: jnp.cumsum(x * 2, axis=1), "x * 2"),
    "softmax": (lambda x: jax.nn.softmax(-x), "-x"),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("f", "operand"), CALLS.values(), ids=CALLS)
def test_a_fix_of_a_function_of_jax_reshards_the_operand_of_the_call(f: Callable[..., Any], operand: str) -> None:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        x = sh.abstract_array("f32[16, 16@tp]" if operand != "2 * x[:8, :8]" else "f32[16, 16]{U:tp}")
        with pytest.raises(sh.ShardingTypeError) as error:
            sh.lift(f)(x)
        whole = [
            fix for fix in error.value.fixes if fix.forward == "all-gather over `tp`" or "all-reduce" in fix.forward
        ]
        assert whole
        for fix in error.value.fixes:
            code = fix.code.partition("  #")[0]
            if "(..., out=" in code:
                continue
            assert code.startswith(f"sh.reshard({operand}, ")
            target = code.rpartition(", ")[2].strip(')"')
            if operand == "x":  # what makes the whole call type
                assert sh.lift(f)(sh.reshard(x, target)).type


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", ["linen_layer_norm", "equinox_mlp", "haiku_mlp", "optax_clipping"])
def test_a_place_that_a_fix_names_mends_the_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places = _places(name)
    assert places
    before, lift = str(_message(name)), sh.lift
    for at in places:
        with monkeypatch.context() as patched, sh.use_mesh(sh.make_mesh(MESH)):
            patched.setattr(sh, "lift", functools.partial(lift, at=at))
            after = _outcome(name)
        assert after.split("\n")[:2] != before.split("\n")[:2]


@pytest.mark.mesh({"x": 2, "y": 2})
@pytest.mark.parametrize("f", [lambda v: v != v, lambda v: jnp.maximum(v, v), lambda v: jnp.arctan2(v, v)])
def test_a_value_that_an_op_takes_twice_is_moved_once(f: Any) -> None:
    t = sh.array(np.arange(8, dtype=np.float32), "[8]{U:y}")
    with pytest.raises(sh.ShardingTypeError) as raised:
        sh.lift(f)(t)
    for fix in raised.value.fixes:
        assert fix.code.count("sh.reshard(") == 1
    best = raised.value.fixes[0]
    moved = sh.ledger(lambda t: sh.lift(f)(sh.reshard(t, best.code.split('"')[1])), t)
    assert best.bytes_forward == moved.forward().total.bytes


def test_a_fix_of_operands_of_several_lines_names_the_line_of_each() -> None:
    """It named one line only, where the other operand is an argument."""

    def largest(x: Any, p: Any) -> Any:
        total = jnp.sum(x, 0)
        return jnp.maximum(total, p)

    with sh.use_mesh(sh.make_mesh(MESH)), pytest.raises(sh.ShardingTypeError) as error:
        sh.lift(largest)(sh.ones("f32[8@dp,4]"), sh.abstract_array("f32[4]{U:dp}"))
    first = largest.__code__.co_firstlineno
    code = error.value.fixes[0].code
    assert code.startswith('sh.reshard(jnp.sum(x, 0), "[4@dp]"); sh.reshard(p, "[4@dp]")')
    assert code.endswith(f"  # test_errors.py:{first + 1}, test_errors.py:{first + 2}")


def test_no_fix_inside_vmap_moves_an_axis_that_may_shard_the_mapped_dim() -> None:
    """It printed `sh.reshard(a[:, None], dp="R")`, which does not type there."""
    with sh.use_mesh(sh.make_mesh(MESH)), pytest.raises(sh.ShardingTypeError) as error:
        sh.lift(jax.vmap(lambda a, b: a[:, None] * b[None, :]))(
            sh.abstract_array("f32[8@dp,8]"), sh.abstract_array("f32[8,8]{U:dp}")
        )
    assert not any("a[:, None]" in fix.code for fix in error.value.fixes)


def test_a_fix_of_a_call_that_jax_inlines_reshards_its_operands() -> None:
    """All of its equations have one stack, and so the last of them was taken for a call of its own, without fixes."""
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        x, w = sh.abstract_array("f32[8@dp,8]"), sh.abstract_array("f32[8,8]{U:dp}")
        with pytest.raises(sh.ShardingTypeError) as error:
            sh.lift(lambda x, w: 2 * jnp.outer(x, w))(x, w)
    assert {fix.code for fix in error.value.fixes} == {'sh.reshard(x, "[8,8]")', 'sh.reshard(w, "[8,8]")'}


def test_an_error_whose_operands_have_no_name_says_what_allows_it() -> None:
    """It had neither a fix nor a hint: inside a loop inside vmap, no line of the user's is the operand."""

    def power(x: Any) -> Any:
        return jax.vmap(lambda y: jax.lax.fori_loop(0, 3, lambda _, z: z @ (z.T @ z), y))(x[None])

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        x = sh.abstract_array("f32[32@tp,16@dp]")
        with pytest.raises(sh.ShardingTypeError) as error:
            sh.lift(power)(x)
        assert not error.value.fixes
        assert error.value.hints == ("sh.implicit_comm() around the call allows it",)
        with pytest.raises(sh.ShardingTypeError) as forbidden, sh.no_comm():
            sh.lift(power)(x)
        assert not forbidden.value.hints
        with sh.implicit_comm():
            jax.eval_shape(sh.lift(power), x)


def test_a_mapped_loop_that_asks_all_devices_says_what_allows_it() -> None:
    """Its `any` is no line of the program: there was neither a fix nor a hint."""

    def rolled(x: Any, counts: Any) -> Any:
        return jax.vmap(lambda r, n: jax.lax.fori_loop(0, n, lambda _, z: jnp.roll(z, 1), r))(x, counts)

    with sh.use_mesh(sh.abstract_mesh(MESH)):
        args = sh.abstract_array("f32[8@dp,16@tp]"), sh.abstract_array("i32[8@dp]")
        with pytest.raises(sh.ShardingTypeError, match="`any` reduces dim 0") as error:
            sh.lift(rolled)(*args)
        assert error.value.hints == ("sh.implicit_comm() around the call allows it",)
        with pytest.raises(sh.ShardingTypeError, match="`any` reduces dim 0") as forbidden, sh.no_comm():
            sh.lift(rolled)(*args)
        assert not forbidden.value.hints
        with sh.implicit_comm():
            jax.eval_shape(sh.lift(rolled), *args)
