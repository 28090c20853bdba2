"""Every error has one shape, names the user's line, and prints only fixes that type and cost what they say.

Wrong programs: each op on operands of any types, and calls with a wrong argument of any kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shtypes as sh
from shtypes.errors import TRACEBACK
from tests.end_to_end import assignments, some
from tests.error_checks import faults, refusal, run, wrong_fixes

MESHES: tuple[dict[str, int], ...] = ({"x": 2}, {"x": 2, "y": 2})
POLICIES = ("jax", "partial")
ALONG = ("", ", axis=0", ", axis=1")
REDUCTIONS = [
    *("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "var", "std", "logsumexp", "ptp", "median", "amax"),
    *("count_nonzero", "nansum", "average", "linalg.norm", "cumsum", "cumprod", "cummax", "cumlogsumexp", "sort"),
    *("argsort", "softmax", "log_softmax", "standardize"),
]
UNARY = ("sin", "exp", "abs", "relu", "softplus", "sign", "isfinite", "sqrt", "nan_to_num")
BINARY = ("add", "multiply", "divide", "maximum", "power", "less", "logical_and", "outer", "vdot")
#: Programs of one op; ``{0}`` and ``{1}`` are operands of shape (8, 4).
ONE = [
    *(
        f"m.{name}({{0}})"
        for name in ["sin", "exp", "abs", "relu", "softplus", "sign", "isfinite", "sqrt", "nan_to_num"]
    ),
    *("{0} ** 2", "{0} + 1", "1 / {0}", "2 ** {0}", "{0} > 0.5", "m.clip({0}, 0, 1)", "m.maximum({0}, 0.3)"),
    *(f"m.{name}({{0}}{axis})" for name in REDUCTIONS for axis in ALONG),
    *("m.reshape({0}, (2, 4, 4))", "m.reshape({0}, (32,))", "m.ravel({0})", "m.flip({0}, 0)", "m.roll({0}, 1, 0)"),
    *("m.roll({0}, 1)", "m.tile({0}, 2)", "m.repeat({0}, 2, axis=0)", "m.pad({0}, 1)", "m.diff({0}, axis=0)"),
    *("m.trace({0})", "m.diagonal({0})", "{0}[1:3]", "{0}[::2]", "{0}[:, ::-1]", "{0}[2]", "{0}[jnp.asarray([0, 1])]"),
    *("m.split({0}, 2)", "m.unstack({0})", "m.top_k({0}, 2)", "m.dynamic_slice({0}, (1, 1), (2, 2))"),
    *("m.fft.fft({0})", "m.fft.fft2({0})", "{0}.at[0].set(1)", "{0}.at[1:3].add(2)", "m.astype({0}, 'i32')"),
    *("m.astype({0}, 'bf16')", "m.rot90({0})", "m.random.permutation(m.random.key(0), {0})", "m.to_jax({0})"),
    *("m.checkpoint(m.sin)({0})", "m.all_reduce({0}, 'x')", "m.all_gather({0}, 'x')", "m.shard({0}, 'x', 1)"),
]
TWO = [
    *(
        f"m.{name}({{0}}, {{1}})"
        for name in ["add", "multiply", "divide", "maximum", "power", "less", "logical_and", "outer", "vdot"]
    ),
    *("m.where({0}, 1, {1})", "m.concatenate([{0}, {1}])", "m.concatenate([{0}, {1}], axis=1)", "m.stack([{0}, {1}])"),
    *(f"m.einsum('{equation}', {{0}}, {{1}})" for equation in ("ij,ij->ij", "ij,ij->", "ij,kj->ik", "ij,ik->jk")),
    "m.cond(YES, lambda: {0}, lambda: {1})",
    *("m.tensordot({0}, {1}, axes=2)", "{0}.at[:].set({1})", "{0}.at[:].add({1})", "{0}.at[:].multiply({1})"),
    *("m.dynamic_update_slice({0}, {1}, (0, 0))", "m.hstack([{0}, {1}])", "m.xlogy({0}, {1})", "m.isclose({0}, {1})"),
]


def check_all(seed: int, each: int, most_fixes: int, both: bool = True, step: int = 1) -> dict[str, int]:
    """Chooses types for programs: what is refused is refused well, and its fixes mend it. Gives the counts."""
    rng = np.random.default_rng(seed)
    counts = {"programs": 0, "refused": 0, "fixes": 0}
    for place, axes in enumerate(MESHES):
        mesh = sh.abstract_mesh(axes)
        texts = list(assignments(mesh, (8, 4)))
        for policy in POLICIES if both else POLICIES[place:][:1]:
            with sh.use_mesh(mesh), sh.policy(policy):
                for template in [t for t in (*ONE, *TWO)[place::step] for _ in range(each)]:
                    names = ["a", "b"][: 2 if "{1}" in template else 1]
                    types = {n: sh.ShType.parse("f32" + str(rng.choice(texts)), mesh) for n in names}
                    error = refusal(template.format(*names), types)
                    counts["programs"] += 1
                    if error is None:
                        continue
                    counts["refused"] += 1
                    about = f"{template} of {list(map(str, types.values()))}, {policy}\n{error}"
                    assert not faults(error), f"{about}\n{faults(error)}"
                    if isinstance(error, sh.ShardingTypeError) and counts["fixes"] < most_fixes:
                        counts["fixes"] += len(error.fixes)
                        assert not (wrong := wrong_fixes(error, template, types)), f"{about}\n{wrong}"
    return counts


def test_what_is_refused_is_refused_well_and_mended_by_its_fixes() -> None:
    counts = check_all(
        0, 1, most_fixes=some(10, 20), both=False, step=some(6, 2)
    )  # on each mesh others of the programs
    assert counts["refused"] > some(16, 25), counts
    assert counts["fixes"] >= some(10, 20), counts


@pytest.mark.parametrize(
    ("axes", "template", "texts"),
    [
        ({"x": 2, "y": 3}, "m.kron({0}, {1})", ("[12@x,6]{I:y}", "[12,6@y]")),
        ({"x": 2, "y": 3}, "m.append({0}, {1}, axis=0)", ("[12,6]{V:x, U:y}", "[12,6]{U:(x,y)}")),
        ({"x": 2, "y": 3}, "m.hypot({0}, {1})", ("[12,6]{I:(x,y)}", "[12,6]{V:y, U:x}")),
        ({"x": 8}, "m.convolve({0}, {1}, 'same')", ("[1024@x]", "[9]")),
        ({"x": 2}, "m.linalg.solve_triangular({0}, {1}, lower=True)", ("[4@x,4]", "[4@x]")),
    ],
)
def test_fixes_of_ops_made_of_others_count_what_these_cast(axes: Any, template: str, texts: Any) -> None:
    """A step after the first casts an operand or a value made of it, which communicates backward."""
    mesh = sh.abstract_mesh(axes)
    with sh.use_mesh(mesh), sh.policy("partial"):
        types = {name: sh.ShType.parse(f"f32{text}", mesh) for name, text in zip("ab", texts, strict=True)}
        error = refusal(template.format(*types), types)
        assert isinstance(error, sh.ShardingTypeError), error
        assert error.fixes
        assert not faults(error), error
        assert not wrong_fixes(error, template, types), error


@pytest.mark.parametrize(
    ("template", "texts"),
    [
        *((f"m.{name}({{0}})", ("[8,4]{U:x}",)) for name in ("sign", "floor", "ceil", "round", "to_jax")),
        ("m.floor_divide({0}, {1})", ("[8,4]{U:x}", "[8,4]")),
        ("m.copysign({0}, {1})", ("[8@x,4]", "[8,4@x]")),
        ("m.where({0}, 1, {1})", ("[8@x,4]", "[8,4@x]")),
    ],
)
def test_no_fix_has_a_price_for_a_cotangent_that_does_not_return(template: str, texts: tuple[str, ...]) -> None:
    error = checked({"x": 2}, template, texts)
    assert any(fix.bytes_forward and not fix.bytes_backward for fix in error.fixes), error


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("template", "texts", "fix"),
    [
        ("m.split({0}, 2)", ("[8@x,4]",), 'sh.split(..., out=("[4@x,4]", "[4@x,4]"))'),
        ("m.linalg.cholesky({0}, symmetrize_input=False)", ("[64@x,64]",), 'sh.linalg.cholesky(..., out="[64@x,64]")'),
        ("m.linalg.cholesky({0})", ("[64,64@x]",), 'sh.linalg.cholesky(..., out="[64,64]")'),
        ("m.median({0}, axis=0)", ("[64@x,64]",), 'sh.median(..., out="[64@x]")'),
        ("m.quantile({0}, 0.3, axis=0)", ("[64@x,64]",), 'sh.quantile(..., out="[64@x]")'),
        ("m.median({0})", ("[8,4]{U:x}",), 'sh.median(..., out="[]")'),
        ("m.outer({0}, {1})", ("[8,4@x]", "[8,4@x]"), 'sh.reshard(lhs, "[8,4]"); sh.reshard(rhs, "[8@x,4]")'),
    ],
)
def test_a_fix_that_asks_for_a_result_costs_what_the_op_then_sends(template: str, texts: Any, fix: str) -> None:
    assert fix in [each.code for each in checked({"x": 2}, template, texts).fixes]


def checked(axes: dict[str, int], template: str, texts: tuple[str, ...]) -> sh.ShardingTypeError:
    """The error of a program, each fix of which was applied and sends what it says."""
    mesh = sh.abstract_mesh(axes)
    with sh.use_mesh(mesh):
        types = {name: sh.ShType.parse(f"f32{text}", mesh) for name, text in zip("ab", texts, strict=False)}
        error = refusal(template.format(*types), types)
        assert isinstance(error, sh.ShardingTypeError), error
        assert error.fixes
        assert not faults(error), error
        assert not (wrong := wrong_fixes(error, template, types)), f"{error}\n{wrong}"
    return error


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 6))
def test_thousands_of_wrong_programs_are_refused_well(seed: int) -> None:
    counts = check_all(seed, 4, most_fixes=10_000)
    assert counts["fixes"] > 1000, counts


# wrong calls

TYPES = {
    "a": "f32[8@x,4]",
    "b": "f32[8,4]{U:x}",
    "c": "f32[4]",
    "i": "i32[4]",
    "k": "bool[4]",
    "s": "f32[]",
    "v": "f32[3,4]",
    "r": "f32[8,4]{R:x}",
    "q": "f32[8,4]{I:x,I:y}",
}
#: Calls of every family with a wrong argument: shapes, dims, dtypes, names of axes, texts, targets, functions, trees.
WRONG = """
a + v; a * "x"; a + None; a @ v; m.add(a); m.add(a, a, a); m.sin(); m.sin(a, 3, 4, 5); m.sin("x"); m.sin([1, 2])
m.sin(3.0); m.sin(a, foo=1); m.factorial(c, exact=True); m.select_n(a, c)
m.sum(a, axis=5); m.sum(a, axis="x"); m.sum(a, axis=(0, 0)); m.sum(a, dtype="nope")
m.sum(a, out="[8]"); m.sum(a, out="["); m.sum(a, out=7); m.sum(); m.max(c, axis=1); m.argmax(a, axis=(0, 1))
m.reshape(a, (3, 3)); m.reshape(a, "x"); m.reshape(a); m.transpose(a, (0, 0)); m.swapaxes(a, 0, 4)
m.expand_dims(a, 9); m.squeeze(a, 0); m.broadcast_to(a, (3, 3)); m.concatenate([]); m.concatenate([a, c])
m.concatenate(3); m.stack([a, c]); m.split(a, 3); m.split(a, "x"); m.unstack(s); m.flip(a, 7); m.roll(a, "x")
m.tile(a, -1); m.repeat(a, "x"); m.pad(a, -1); m.pad(a, 1, mode="nope"); m.tril(c); m.trace(c); m.rot90(c)
m.einsum("ij,jk->ik", a, v); m.einsum("ij->zz", a); m.einsum("??", a); m.einsum(a, "ij->i")
m.einsum("ij->i", a, out="[8@q]"); m.einsum("ij->i", a, preferred_element_type="zz"); m.matmul(s, a)
m.tensordot(a, a, 5); a["x"]; a[1.5]; a[0, 0, 0]; a[..., ...]; a.at[0].set(v); a.at["x"].set(1); a.at[0].set("x")
m.take(a, 1.5); m.take(a, i, mode="zz"); m.one_hot(c, 4); m.one_hot(i, -1); m.embedding(a, c)
m.segment_sum(c, i, -1); m.dynamic_slice(a, (0,), (1, 1)); m.dynamic_slice(a, (0.5, 0), (1, 1))
m.dynamic_update_slice(a, c, (0, 0)); m.where(a > 0, a, v); m.where(a > 0, a); m.where("x", a, a); m.select([], [], 0)
m.astype(a, "nope"); a.astype(a); m.astype(b, "i32"); m.astype(b, "bf16"); m.cumsum(a, axis=5); m.diff(s); m.sort(s)
m.top_k(a, 99); m.fft.fft(a, axis=7); m.fft.fft(a, norm="x"); m.linalg.inv(c); m.linalg.norm(a, ord="x")
m.linalg.multi_dot([a]); m.softmax("x"); m.zeros("nope"); m.zeros("f32[8@q]"); m.zeros("f32[7@x]")
m.zeros("f32[8@x,4@x]"); m.zeros("f32[8]{U:x,R:x}"); m.zeros("f32[8}"); m.zeros("f32[n]"); m.zeros(3.5)
m.zeros("bool[8]{U:x}"); m.full("f32[8]", "x"); m.arange("x"); m.arange(0, 10, 0); m.random.normal(3, "f32[8]")
m.random.normal(m.random.key(0), "i32[8]"); m.random.randint(m.random.key(0), "f32[8]", 0, 4); m.random.split(a)
m.random.key("x"); m.reshard(a, "[8@q,4]"); m.reshard(a, "[9,4]"); m.reshard(a, "[8,4"); m.reshard(a, 3); m.reshard(a)
m.reshard(a, "[8,4]{V:x}"); m.reshard(a, q="U"); m.reshard(a, x="Z"); m.reshard(k, x="U"); m.reshard(3.0, "[8]")
m.all_reduce(a, "q"); m.all_reduce(a, "x", to="Z"); m.all_gather(b, "x"); m.reduce_scatter(b, "x", 9)
m.all_to_all(a, "x", 9); m.shard(a, "x", 0); m.to_jax(b); m.to_jax(3); m.from_jax(a); m.from_jax(3); m.array(a, "[8,4]")
m.array([[1], [1, 2]], "[2]"); m.array([1.0], "i32[1]"); m.typeof(3); m.Array(3); len(s); iter(s); m.constant("x")
m.reinterpret(a, x="U"); m.reinterpret(a, q="V"); m.grad(lambda z: z)(a); m.grad(lambda z: m.sum(z))(i)
m.grad(lambda z: "x")(a); m.grad(lambda z: m.sum(z), argnums=3)(a); m.grad(lambda z: (m.sum(z), 1))(a)
m.grad(lambda z: m.sum(z), has_aux=True)(a); m.grad(lambda z: m.sum(z))("x"); m.value_and_grad(lambda z: z * 2)(a)
m.vjp(m.sin, a)[1](c); m.vjp(m.sin, a)[1](b); m.vjp(m.sin, a)[1]((a, a)); m.jvp(m.sin, (a,), (c,))
m.jvp(m.sin, (a,), (a, a)); m.linearize(m.sin, a)[1](c); m.linearize(m.sin, a)[1](a, a)
m.scan(lambda z, y: (z, y), c, a); m.scan(lambda z, y: (z, y), c, s); m.scan(lambda z, y: z, c, v)
m.scan(lambda z, y: (z[:2], y), c, v); m.scan(lambda z, y: ((z, z), y), c, v); m.scan(lambda z, y: (z, y), c)
m.scan(lambda z, y: (z, y), c, v, length=9); m.scan(lambda z, y: (z.to_jax(), y), c, v)
m.while_loop(lambda z: z, lambda z: z, c); m.while_loop(lambda z: "x", lambda z: z, c)
m.fori_loop(0, 3, lambda i, z: z[:2], c); m.fori_loop(0, c, lambda i, z: z, c); m.cond(c, lambda: c, lambda: c)
m.cond(m.sum(b), lambda: c, lambda: c); m.cond(True, lambda: a, lambda: v); m.cond(YES, lambda: c, lambda: (c, c))
m.cond(YES, lambda z: c, lambda z: z.to_jax(), c); m.cond(YES, lambda: c)
m.switch(0, []); m.switch(0, [lambda: c, lambda: a])
m.vmap(m.sin)(s); m.vmap(lambda p, q: p)(c, v); m.vmap(m.sin, in_axes=5)(a); jax.vmap(m.sin)(a)
m.checkpoint(3); m.checkpoint(m.sin, policy=3); m.checkpoint_name(a, 3); m.checkpoint_name("x", "n")
m.jit(m.sin)("x"); m.custom_vjp(m.sin)(a); m.local_map(lambda z: z, out="[8,4]")(a)
m.local_map(lambda z: z, out="[8@q,4]")(a); m.local_map(lambda z: jax.lax.psum(z, "x"), out="[8@x,4]")(a)
m.shard_map(lambda z: z, out_specs="[8,4]")(a); m.shard_map(lambda z: z, out_specs="[8@q,4]")(a)
m.shard_map(lambda z: m.lax.psum(z, "q"), out_specs="[4,4]")(a); m.lax.psum(c, "x"); m.lax.axis_index("q")
m.no_comm("nope"); m.no_comm()(lambda: m.reshard(a, "[8,4]"))(); m.comm_budget(kinds="nope"); m.comm_budget(bytes="x")
m.comm_budget(bytes=3)(lambda: m.reshard(a, "[8,4]"))(); m.set_policy("nope"); m.policy("nope").__enter__()
m.use_mesh(3).__enter__(); m.set_mesh(3); m.make_mesh({"x": 99}); m.make_mesh(3); m.abstract_mesh({"x": 0})
m.tree.from_jax([a], like=[a, a]); m.tree.from_jax([3], like=[a]); m.tree.array([a], {"0": "[8,4]"})
m.tree.array([a]); m.tree.array([a], {"1": "[...]"}); m.tree.array([a], {"0": "[8@q,4]"}); m.tree.array([a], 3)
m.tree.types([a], {"0": 3}); m.tree.reshard([jnp.ones(3)], {"0": "[3]"}); m.tree.bytes(a, "x"); m.tree.show(a, -1)
m.dim_axes(3); m.dim_axes({"s": "q"})(lambda: m.reshard(a, "[s,4]"))(); a ** "x"; a & a; a << 1; jnp.sin(a)
a.reshape(3, 3); a.sum(axis=9); m.power(a, "x"); m.bitwise_and(a, a); m.real("x"); m.average(a, weights=v)
"""
CALLS = [call.strip() for line in WRONG.strip().split("\n") for call in line.split("; ")]


@pytest.fixture
def mesh() -> Iterator[Any]:
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})) as found:
        yield found


@pytest.mark.usefixtures("mesh")
def test_a_wrong_call_is_refused_well_traced_and_eager_in_the_same_words() -> None:
    found = []
    types = {n: sh.ShType.parse(t) for n, t in TYPES.items()}
    values = {n: sh.zeros(t) for n, t in TYPES.items()}
    for call in CALLS:
        errors = {"traced": refusal(call, types), "eager": raised_by(call, values)}
        for way, error in errors.items():
            if error is None or faults(error):
                found.append(f"{call}, {way}: {error and faults(error)}\n{error}")
        traced, eager = (str(error).split("\n")[0] for error in errors.values())
        if traced != eager and "Tracer" not in traced and "jnp." not in call:  # a message may show the value
            found.append(f"{call}: traced, {traced}; eager, {eager}")
    assert not found, "\n\n".join(found)


def raised_by(call: str, values: dict[str, Any]) -> Exception | None:
    """What a call raises when it runs at once."""
    try:
        run(call, values)
    except Exception as error:
        return error
    return None


def raised(error: Exception) -> Exception:
    """An error with a traceback."""
    try:
        raise error
    except Exception as same:
        return same


def test_the_checks_find_a_bad_error() -> None:
    no_place, ours = sh.ShardingTypeError("no place"), sh.ShardingTypeError("please report this", where="program.py:1")
    assert faults(raised(KeyError("q")))[0].startswith("is KeyError")
    assert faults(no_place) == ["is placed at ''"]
    assert faults(ours) == ["is a mistake of the library"]
    mesh = sh.abstract_mesh({"x": 2})
    with sh.use_mesh(mesh):
        types = {"a": sh.ShType.parse("f32[8]{U:x}", mesh)}
        error = refusal("m.sin(a)", types)
        assert isinstance(error, sh.ShardingTypeError), error
        assert not wrong_fixes(error, "m.sin({0})", types)
        cheap = sh.Fix(error.fixes[0].code)
        free = sh.Fix('sh.reshard(x, "[8]{U:x}")')
        error.fixes = (cheap, free, sh.Fix("do something"))
        assert len(wrong_fixes(error, "m.sin({0})", types)) == 3


@pytest.mark.parametrize(("shown", "last"), [("", "apply.py"), ("1", "typing.py")])
def test_a_traceback_shows_the_rule_that_refused_where_the_environment_asks(
    shown: str, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACEBACK, shown)
    with sh.use_mesh(sh.abstract_mesh({"x": 2})), pytest.raises(sh.ShardingTypeError) as caught:
        sh.exp(sh.abstract_array("f32[4]{U:x}"))
    assert Path(caught.traceback[-1].path).name == last
