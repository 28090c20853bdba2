"""`local_map`: values and gradients against one device, saved residuals, and what is refused without running."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests.end_to_end import close, host

ROWS, INNER, COLUMNS, LAYERS = 8, 4, 6, 3
_rng = np.random.default_rng(0)
X = _rng.standard_normal((ROWS, INNER)).astype(np.float32)
W = _rng.standard_normal((INNER, COLUMNS)).astype(np.float32)
STACK = _rng.standard_normal((LAYERS, INNER, INNER)).astype(np.float32) / 2

RUN = {"eager": lambda f: f, "jax.jit": jax.jit, "sh.jit": sh.jit}
run_as = pytest.mark.parametrize("run", RUN.values(), ids=RUN.keys())


pytestmark = pytest.mark.mesh({"dp": 2, "tp": 2})


def plain(x: Any, w: Any) -> Any:
    return jnp.tanh(x) @ w


@jax.custom_vjp
def kernel(x: Any, w: Any) -> Any:
    return plain(x, w)


def _forward(x: Any, w: Any) -> Any:
    h = jnp.tanh(x)
    return h @ w, (h, w)


def _backward(residuals: Any, ct: Any) -> Any:
    h, w = residuals
    return (ct @ w.T) * (1 - h * h), h.T @ ct


kernel.defvjp(_forward, _backward)
KERNELS = {
    "recomputed": lambda out: sh.local_map(plain, out=out),
    "saved": lambda out: sh.local_map(plain, out=out, residuals="save"),
    "custom_vjp": lambda out: sh.local_map(kernel, out=out),
}
each_kernel = pytest.mark.parametrize("kernel_of", KERNELS.values(), ids=KERNELS.keys())


def gradients(loss: Callable[..., Any], run: Callable[..., Any], *args: Any) -> list[Any]:
    """The gradients, which have the cotangent types."""
    found = run(sh.grad(loss, argnums=tuple(range(len(args)))))(*args)
    assert [g.type for g in found] == [x.type.cotangent() for x in args]
    return [host(g) for g in found]


# values and gradients


LAYOUTS = {
    "dp and tp": ("[_@dp,_]", "[_,_@tp]", "[rows@dp, columns@tp]"),
    "dp on rows": ("[_@(dp,tp),_]", "[_,_]", "[_@(dp,tp),_]"),
    "invariant on tp": ("[_@dp,_]{I:tp}", "[_,_]{I:tp}", "[_@dp,_]{I:tp}"),
    "invariant on dp": ("[_,_]{I:dp}", "[_,_@tp]{I:dp}", "[_,_@tp]{I:dp}"),
    "invariant operands cast": ("[_@dp,_]{I:tp}", "[_,_@tp]{I:dp}", "[_@dp,_@tp]"),
}


def check_layout(op: Any, layout: tuple[str, str, str], run: Callable[..., Any]) -> None:
    x_type, w_type, out = layout
    x, w = sh.array(X, x_type), sh.array(W, w_type)
    y = run(op)(x, w)
    assert y.type == sh.ShType.parse(out, shape=(ROWS, COLUMNS), dtype="f32")
    close(host(y), plain(X, W), "value")
    wanted = jax.jit(jax.grad(lambda x, w: (plain(x, w) ** 2).sum(), argnums=(0, 1)))(X, W)
    for mine, theirs in zip(gradients(lambda x, w: sh.sum(op(x, w) ** 2), run, x, w), wanted, strict=True):
        close(mine, theirs, "gradient")


@pytest.mark.one_in(13)
@each_kernel
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_values_and_gradients_are_those_of_one_device(kernel_of: Any, layout: tuple[str, str, str]) -> None:
    check_layout(kernel_of(layout[-1]), layout, sh.jit)


@pytest.mark.one_in(5)
@pytest.mark.core
@run_as
@each_kernel
def test_it_runs_eagerly_and_under_both_kinds_of_jit(kernel_of: Any, run: Callable[..., Any]) -> None:
    layout = LAYOUTS["invariant operands cast"]
    check_layout(kernel_of(layout[-1]), layout, run)


#: What three times each shard denotes, by the states of operand and result; shards of a result have 4 elements.
TRIPLED: dict[tuple[str, str], Callable[[Any], Any]] = {
    ("[4]{R:x}", "[4]{R:x}"): lambda x: 3 * x,
    ("[4]{I:x}", "[4]{R:x}"): lambda x: 3 * x,
    ("[4]{I:x}", "[4]{I:x}"): lambda x: 3 * x,
    ("[4]{U:x}", "[4]{U:x}"): lambda x: 3 * x,
    ("[4]{R:x}", "[8@x]"): lambda x: 3 * jnp.concatenate([x, x]),
    ("[4]{I:x}", "[8@x]"): lambda x: 3 * jnp.concatenate([x, x]),
    ("[8@x]", "[8@x]"): lambda x: 3 * x,
    ("[8@x]", "[4]{U:x}"): lambda x: 3 * (x[:4] + x[4:]),
}


@pytest.mark.one_in(27)
@pytest.mark.parametrize("residuals", ["save", "recompute"])
@pytest.mark.parametrize(("operand", "result"), TRIPLED, ids=[f"{a} to {b}" for a, b in TRIPLED])
def test_a_claim_that_types_has_the_gradient_of_what_it_denotes(operand: str, result: str, residuals: Any) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    value = np.arange(8.0, dtype=np.float32)[: 8 if "8" in operand else 4]
    weights = np.arange(1.0, 9.0, dtype=np.float32)[: 8 if "8" in result else 4]
    op = sh.local_map(lambda x: 3 * x, out=result, residuals=residuals, name="triple")
    x = sh.array(value, operand)
    denoted = TRIPLED[operand, result]
    close(host(op(x)), denoted(value), "value")
    (found,) = gradients(lambda x: sh.sum(op(x) * weights), lambda f: f, x)
    close(found, jax.jit(jax.grad(lambda x: (denoted(x) * weights).sum()))(value), "gradient")


@pytest.mark.parametrize("residuals", ["save", "recompute"])
def test_an_invariant_result_is_not_claimed_of_a_reduced_operand(residuals: Any) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2}))
    op = sh.local_map(lambda x: 3 * x, out="[4]{I:x}", residuals=residuals, name="triple")
    with pytest.raises(sh.ShardingTypeError, match="cannot make an invariant result of a reduced operand"):
        op(sh.ones("f32[4]{R:x}"))


@pytest.mark.one_in(13)
@run_as
@each_kernel
def test_it_works_in_a_scan_of_checkpoints(kernel_of: Any, run: Callable[..., Any]) -> None:
    op = kernel_of("[_@dp, _]")
    x, stack = sh.array(X, "[_@dp,_]"), sh.array(STACK, "[_,_,_]")

    def loss(x: Any, stack: Any) -> Any:
        return sh.sum(sh.scan(sh.checkpoint(lambda c, w: (op(c, w), None)), x, stack)[0])

    wanted = jax.grad(lambda x, s: jax.lax.scan(lambda c, w: (plain(c, w), None), x, s)[0].sum(), argnums=(0, 1))
    for mine, theirs in zip(gradients(loss, run, x, stack), wanted(X, STACK), strict=True):
        close(mine, theirs, "gradient")


@each_kernel
def test_it_maps_and_differentiates_twice(kernel_of: Any) -> None:
    op = kernel_of("[_@dp, _]")
    xs, stack = sh.array(np.stack([X] * LAYERS), "[_,_@dp,_]"), sh.array(STACK, "[_,_,_]")
    mapped = sh.jit(sh.vmap(op))(xs, stack)
    close(host(mapped), jax.vmap(plain)(np.stack([X] * LAYERS), STACK), "mapped")

    def slope(f: Callable[..., Any], grad: Any, total: Any, gather: Any, x: Any, w: Any) -> Any:
        g = gather(grad(lambda x: total(f(x, w) * f(x, w)))(x))
        return total(g * g)

    typed = functools.partial(slope, op, sh.grad, sh.sum, lambda g: sh.all_reduce(g, "tp"))
    wanted = jax.jit(jax.grad(functools.partial(slope, plain, jax.grad, jnp.sum, lambda g: g)))(X, STACK[0])
    close(host(sh.jit(sh.grad(typed))(sh.array(X, "[_@dp,_]"), sh.array(STACK[0], "[_,_]"))), wanted, "second")


def test_forward_mode_works_where_nothing_is_saved() -> None:
    x, w = sh.array(X, "[_@dp,_]"), sh.array(W, "[_,_]")
    _, tangent = jax.jvp(sh.local_map(plain, out="[_@dp,_]"), (x, w), (x, w))
    close(host(tangent), jax.jvp(plain, (X, W), (X, W))[1], "tangent")


def test_results_and_arguments_are_trees_and_constants_arrive_as_they_are() -> None:
    def stats(batch: dict[str, Any], power: int, *, label: str) -> Any:
        assert label == "mean"
        return {"moment": (batch["x"] ** power).mean(1), "first": (batch["ids"] + 1, batch["x"])}

    x, ids = sh.array(X, "[rows@dp,_]"), sh.array(np.arange(ROWS), "i32[rows@dp]")
    op = sh.local_map(
        stats,
        out=lambda batch, power, label: {
            "moment": batch["x"].replace(dims=batch["x"].dims[:1]),
            "first": (batch["ids"], batch["x"]),
        },
    )
    found = op({"x": x, "ids": ids}, 2, label="mean")
    assert str(found["moment"].type) == "f32[rows@dp]"
    np.testing.assert_array_equal(host(found["first"][0]), np.arange(ROWS) + 1)
    close(host(found["moment"]), (X**2).mean(1), "moment")
    (g,) = gradients(lambda x: sh.sum(op({"x": x, "ids": ids}, 2, label="mean")["moment"]), lambda f: f, x)
    close(g, X * 2 / INNER, "gradient")


def test_integers_beside_saved_residuals_get_no_gradient() -> None:
    op = sh.local_map(lambda x, i: (x[i], i + 1), out=("[_,_]", "[_]"), residuals="save", name="rows")
    x, i = sh.array(X, "[_,_]"), sh.array(np.array([1, 1, 3]), "i32[_]")
    (g,) = gradients(lambda x: sh.sum(op(x, i)[0]), sh.jit, x)
    close(g, jax.jit(jax.grad(lambda x: x[np.array([1, 1, 3])].sum()))(X), "gradient")


def test_numbers_of_one_value_and_two_kinds_are_two_functions() -> None:
    op = sh.local_map(lambda x, n: x * n, out="[_]", name="times")
    x = sh.array(np.array([1, 2]), "i32[2]")
    assert [str(op(x, n).type.dtype_name) for n in (2, 2.0)] == ["i32", "f32"]


def test_it_is_a_decorator_and_keeps_the_name() -> None:
    @sh.local_map(out="[_@dp, _]")
    def sorted_rows(x: Any) -> Any:
        """Sorts."""
        return jnp.sort(x, axis=1)

    x = sh.array(X, "[_@dp,_]")
    assert (sorted_rows.__name__, sorted_rows.__doc__) == ("sorted_rows", "Sorts.")
    np.testing.assert_array_equal(host(sorted_rows(x)), np.sort(X, axis=1))


# what is printed and saved


def test_the_jaxpr_names_the_function_and_its_residuals_vary_on_every_axis() -> None:
    op = sh.local_map(kernel, out="[_@dp,_@tp]", name="flash")
    x, w = sh.array(X, "[_@dp,_]"), sh.array(W, "[_,_@tp]")
    lines = [line.strip() for line in str(jax.make_jaxpr(sh.grad(lambda x, w: sh.sum(op(x, w))))(x, w)).split("\n")]
    named = [re.sub(r"(^| )\w:|(?<=\)) [\w ]+$", r"\1", line).split(" = ") for line in lines if "flash" in line]
    assert named == [
        ["f32[8@dp,6@tp] f32[4,4]{V:(dp,tp)}", "fwd(flash)"],  # tanh(x); w is kept as it is
        ["f32[8@dp,4]{U:tp} f32[4,6@tp]{U:dp}", "bwd(flash)"],
    ]


def test_saved_residuals_are_not_computed_again_in_a_loop() -> None:
    def block(x: Any, w: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    def dots(residuals: Any) -> int:
        op = sh.local_map(block, out="[_@dp,_]", residuals=residuals)
        loss = sh.grad(lambda x, s: sh.sum(sh.scan(lambda c, w: (op(c, w), None), x, s)[0]), argnums=(0, 1))
        text = sh.jit(loss).lower(sh.array(X, "[_@dp,_]"), sh.array(STACK, "[_,_,_]")).compile().as_text()
        return len(re.findall(r" dot\(|__onednn\$matmul|= f32\S* dot", text))

    assert dots("save") < dots("recompute")


# what is refused


def _refused(f: Any, out: Any, *types: str, **options: Any) -> str:
    args = [sh.abstract_array(t) for t in types]
    with pytest.raises(sh.ShardingTypeError) as caught:
        sh.local_map(f, out=out, name="f", **options)(*args)
    assert "please report" not in str(caught.value)
    return re.sub(r"test_local_map.py:\d+ in \w+", "here", str(caught.value))


def test_a_collective_in_the_function_is_an_error() -> None:
    message = _refused(lambda x: jax.lax.psum(x, "dp"), "[8]", "f32[8@dp]")
    assert message == (
        "`f` is no function of shards: it uses a mesh axis\n"
        "  where: here: f(f32[8@dp])\n"
        "  why:   Found an unbound axis name: dp\n"
        "  try:   sh.shard_map takes functions that communicate\n"
        "  try:   sh.reshard before or after it"
    )


@pytest.mark.parametrize(
    ("f", "out", "types", "match"),
    [
        (lambda x: x, "[6@dp]", ["f32[8@dp]"], "the type given for the result of `f` does not fit: dim 0 has size 6"),
        (lambda x: x, "bf16[_@dp]", ["f32[8@dp]"], "the type has dtype `bf16`"),
        (lambda x: x, "[_@dp,_]", ["f32[8@dp]"], "the type has 2 dims"),
        (lambda x: (x, x), ("[_]",) * 3, ["f32[8@dp]"], "`out` of `f` has another structure than its results"),
        (lambda x: x, 3, ["f32[8@dp]"], "the type of the result of `f` cannot be 3"),
        (lambda x, w: x @ w, "[_,_]", ["f32[8,4]", "f32[8,4]"], r"`f` cannot be applied to shards f32\[8, 4\] and"),
        (lambda x: x, "[_]", ["f32[8]{U:dp}"], "`f` cannot make a result that is reduced on mesh axis `dp`"),
        (lambda x: x, "[_@dp]", ["f32[8]{U:dp}"], "`f` cannot make a result that is sharded on mesh axis `dp`"),
        (lambda x: (x, x), ("[_]{I:dp}", "[_]"), ["f32[8]{I:dp}"], "cannot make invariant and reduced results"),
        (lambda x: x > 0, "[_]{U:dp}", ["f32[8]"], "cannot be unreduced"),
    ],
    ids=["size", "dtype", "rank", "structure", "no type", "operands", "unreduced", "slices of terms", "mixed", "bool"],
)
def test_what_does_not_fit_is_refused_without_devices(f: Any, out: Any, types: list[str], match: str) -> None:
    sh.set_mesh(sh.make_mesh({"dp": 2, "tp": 2}))
    assert re.search(match, _refused(f, out, *types))


def test_a_given_type_is_compared_with_the_shards() -> None:
    t = sh.ShType.parse("f32[16@dp]", sh.abstract_mesh({"dp": 2, "tp": 2}))
    message = _refused(lambda x: x, t, "f32[8@dp]")
    assert "the function makes shards f32[4], and those of the type are f32[8]" in message


def test_a_constant_without_a_hash_and_an_unknown_option_are_errors() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Any) -> Any:
            return x

    assert "has no hash" in _refused(Unhashable(), "[_]", "f32[8]")
    with pytest.raises(sh.ShardingTypeError, match="`residuals` of `local_map` is one of 'auto', 'save', 'recompute'"):
        sh.local_map(plain, out="[_]", residuals="keep")  # type: ignore[call-overload]
    with pytest.raises(sh.ShardingTypeError, match="needs an operand"):
        sh.local_map(lambda: jnp.ones(3), out="[_]", name="f")()


def test_an_error_of_the_function_itself_is_not_hidden() -> None:
    def broken(_: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sh.local_map(broken, out="[_]")(sh.array(X, "[_,_]"))


def test_without_gradients_results_may_be_invariant_and_sharded() -> None:
    def of_both(x: Any, step: Any, name: str) -> Any:
        return x * 2, step + 1, len(name)

    def mapped(x: Any, step: Any) -> Any:
        claims = ("[_@x]", "[]{I:x}", "[]{I:x}")
        return sh.local_map(of_both, out=claims, differentiable=False)(x, step, name="abc")

    with sh.use_mesh(sh.make_mesh({"x": 2})):
        x, step = sh.array(np.arange(4.0), "f32[_@x]"), sh.array(np.float32(3), "f32[]{I:x}")
        doubled, after, _ = mapped(x, step)
        np.testing.assert_array_equal(np.asarray(doubled), [0, 2, 4, 6])
        assert (str(after.type), float(np.asarray(after))) == ("f32[]{I:x}", 4)
        assert sh.grad(lambda x: sh.all_reduce(sh.sum(mapped(x, step)[0] + x)))(x).tolist() == [1, 1, 1, 1]
        both = sh.local_map(lambda x, step: (x * step, step + 1), out=("[_@x]", "[]{I:x}"))
        with pytest.raises(sh.ShardingTypeError, match="cannot make invariant and sharded results"):
            both(x, step)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("policy", ["partial", "jax"])
@pytest.mark.parametrize("claim", ["[_@tp, _]", "[_@tp, _]{I:dp}", "[_@tp, _]{R:dp}"])
def test_inside_vmap_a_claim_is_of_one_step(claim: str, policy: str) -> None:
    # The devices along dp have other steps: what each makes is no copy of what the other makes.
    with sh.policy(policy):
        x = sh.array(np.stack([X, 2 * X]), "f32[2@dp, 8@tp, 4]")
        op = sh.local_map(jnp.tanh, out=claim)
        gradient = sh.jit(sh.grad(lambda x: sh.sum(sh.vmap(op)(x))))(x)
        assert sh.ledger(sh.vmap(op), x).total.bytes == 0
    assert sh.vmap(op)(x).type == x.type
    close(host(gradient), jax.jit(jax.grad(lambda x: jnp.sum(jnp.tanh(x))))(np.stack([X, 2 * X])), "gradient")
