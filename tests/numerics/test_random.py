"""`sh.random` and `sh.init`: the numbers of `jax.random`, whatever the mesh, each device making its own part."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import shtypes as sh
from shtypes.numerics.random.global_bits import flat_indices
from tests.core.hlo import collectives
from tests.end_to_end import WIDE, host
from tests.tolerance import assert_close

pytestmark = pytest.mark.one_in(9)

MESHES = [{"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 2, "y": 4}]
TYPES = ["[8@x,16]", "[8@(x,y),16]", "[8@y,16@x]", "[8,16]", "[8@x,16]{U:y}", "[8,16]{U:x,I:y}"]
KEY = 7

#: A sample of a type, and of the same numbers by JAX.
SAMPLERS: dict[str, tuple[Callable[[Any, str], Any], Callable[[Any], Any]]] = {
    "normal": (sh.random.normal, lambda k: jax.random.normal(k, (8, 16))),
    "normal of bf16": (
        lambda k, t: sh.random.normal(k, t, "bf16"),
        lambda k: jax.random.normal(k, (8, 16), jnp.bfloat16),
    ),
    "normal of c64": (
        lambda k, t: sh.random.normal(k, t, "c64"),
        lambda k: jax.random.normal(k, (8, 16), jnp.complex64),
    ),
    "uniform": (
        lambda k, t: sh.random.uniform(k, t, minval=-2, maxval=3),
        lambda k: jax.random.uniform(k, (8, 16), minval=-2.0, maxval=3.0),
    ),
    "uniform of units": (sh.random.uniform, lambda k: jax.random.uniform(k, (8, 16))),
    "truncated_normal": (
        lambda k, t: sh.random.truncated_normal(k, -1, 2, t),
        lambda k: jax.random.truncated_normal(k, -1.0, 2.0, (8, 16)),
    ),
    "randint": (lambda k, t: sh.random.randint(k, t, -3, 9), lambda k: jax.random.randint(k, (8, 16), -3, 9)),
    "bits": (sh.random.bits, lambda k: jax.random.bits(k, (8, 16))),
    "bits of u8": (lambda k, t: sh.random.bits(k, t, "u8"), lambda k: jax.random.bits(k, (8, 16), jnp.uint8)),
    "exponential": (sh.random.exponential, lambda k: jax.random.exponential(k, (8, 16))),
    "gumbel": (sh.random.gumbel, lambda k: jax.random.gumbel(k, (8, 16))),
    "cauchy": (sh.random.cauchy, lambda k: jax.random.cauchy(k, (8, 16))),
    "rademacher": (sh.random.rademacher, lambda k: jax.random.rademacher(k, (8, 16))),
    "init normal": (sh.init.normal(0.5), lambda k: jax.nn.initializers.normal(0.5)(k, (8, 16))),
    "init uniform": (sh.init.uniform(2.0), lambda k: jax.nn.initializers.uniform(2.0)(k, (8, 16))),
    "init truncated_normal": (
        sh.init.truncated_normal(),
        lambda k: jax.nn.initializers.truncated_normal()(k, (8, 16)),
    ),
    "init lecun_normal": (sh.init.lecun_normal(), lambda k: jax.nn.initializers.lecun_normal()(k, (8, 16))),
    "init glorot_uniform": (sh.init.glorot_uniform(), lambda k: jax.nn.initializers.glorot_uniform()(k, (8, 16))),
    "init he_normal": (sh.init.he_normal(), lambda k: jax.nn.initializers.he_normal()(k, (8, 16))),
    "init by outputs": (
        sh.init.variance_scaling(3.0, "fan_out", "normal"),
        lambda k: jax.nn.initializers.variance_scaling(3.0, "fan_out", "normal")(k, (8, 16)),
    ),
}  # fmt: skip


#: What XLA computes alike whatever it compiles it with; logarithms and error functions may differ in the last bits.
EXACT = ("uniform of units", "bits", "bits of u8", "randint", "rademacher")


@pytest.mark.nightly
def test_a_sample_of_any_type_is_the_same_global_array_on_every_mesh() -> None:
    wanted = jax.jit(lambda key: {name: f(key) for name, (_, f) in SAMPLERS.items()})(jax.random.key(KEY))
    first: dict[str, Any] = {}
    for turn, axes in enumerate(MESHES if WIDE else MESHES[-1:]):
        sh.set_mesh(sh.make_mesh(axes))
        types = {name: TYPES[(i + turn) % len(TYPES)] for i, name in enumerate(SAMPLERS)}

        def run(key: Any, types: dict[str, str] = types) -> Any:
            return {name: f(key, types[name]) for name, (f, _) in SAMPLERS.items()}

        for name, value in jax.block_until_ready(jax.jit(run)(sh.random.key(KEY))).items():
            assert value.type == sh.ShType.parse(types[name], value.type.mesh, like=value.type)
            found = host(value)
            assert found.dtype == wanted[name].dtype
            what = f"{name} of {types[name]} on {axes}"
            for other in (wanted[name], first.setdefault(name, found)):
                if name in EXACT:
                    np.testing.assert_array_equal(found, other, err_msg=what)
                else:
                    assert_close(found, other, what=what)


def test_a_sample_of_bools_is_the_same_global_array() -> None:
    wanted = jax.random.bernoulli(jax.random.key(KEY), 0.3, (8, 16))
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key = sh.random.key(KEY)
    np.testing.assert_array_equal(host(sh.random.bernoulli(key, 0.3, "[8@(x,y),16]")), wanted)
    chances = sh.array(np.linspace(0, 1, 16, dtype=np.float32), "[16@y]")
    np.testing.assert_array_equal(
        host(sh.random.bernoulli(key, chances)), jax.random.bernoulli(jax.random.key(KEY), host(chances))
    )


@pytest.mark.nightly
def test_one_key_samples_the_same_eagerly_under_jit_and_in_one_region() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key = sh.random.key(KEY)
    sample = lambda k: sh.random.uniform(k, "f32[8@x,16@y]")  # noqa: E731
    wanted = jax.random.uniform(jax.random.key(KEY), (8, 16))
    runs: list[Any] = [sample, jax.jit(sample), sh.jit(sample)]
    for f in runs:
        np.testing.assert_array_equal(host(f(key)), wanted)
    np.testing.assert_array_equal(host(sample(jax.random.key(KEY))), wanted)  # type: ignore[no-untyped-call]
    np.testing.assert_array_equal(host(jax.jit(sample)(jax.random.key(KEY))), wanted)


@pytest.mark.parametrize("name", ["normal", "randint", "lecun_normal"])
def test_no_device_makes_the_global_array(name: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    f = {
        "normal": lambda k: sh.random.normal(k, "f32[256@x,512@y]"),
        "randint": lambda k: sh.random.randint(k, "i32[256@x,512@y]", 0, 9),
        "lecun_normal": lambda k: sh.init.lecun_normal()(k, "f32[256@x,512@y]"),
    }[name]
    compiled = jax.jit(f).lower(sh.random.key(KEY)).compile()
    text = str(compiled.as_text())
    shapes = [[int(n) for n in dims.split(",")] for dims in re.findall(r"\[(\d+(?:,\d+)*)\]", text)]
    assert max(map(math.prod, shapes)) == 128 * 128  # its own part, and nothing larger
    assert not collectives(text)
    memory: Any = compiled.memory_analysis()
    assert memory.temp_size_in_bytes <= 6 * 128 * 128 * 4


def test_keys_split_fold_and_travel_as_in_jax() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key, plain = sh.random.key(KEY), jax.random.key(KEY)
    words = jax.random.key_data
    for mine, theirs in zip(sh.random.split(key, 3), jax.random.split(plain, 3), strict=True):
        np.testing.assert_array_equal(host(sh.random.key_data(mine)), words(theirs))
    step, folded = sh.array(np.int32(5)), words(jax.random.fold_in(plain, 5))
    np.testing.assert_array_equal(host(sh.random.key_data(sh.random.fold_in(key, 5))), folded)
    np.testing.assert_array_equal(host(sh.random.key_data(jax.jit(sh.random.fold_in)(key, step))), folded)
    np.testing.assert_array_equal(host(sh.random.key_data(sh.random.key(step))), words(jax.random.key(5)))


def test_keys_map_and_loop() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    keys = sh.random.split(sh.random.key(KEY), 3)
    plain = jax.random.split(jax.random.key(KEY), 3)
    wanted = jax.vmap(lambda k: jax.random.uniform(k, (8,)))(plain)
    sample = lambda k: sh.random.uniform(k, "f32[8@y]")  # noqa: E731
    np.testing.assert_array_equal(host(sh.vmap(sample)(keys)), wanted)
    _, rows = sh.scan(lambda c, k: (c, sample(k)), sh.array(0.0), keys)  # type: ignore[no-untyped-call]
    np.testing.assert_array_equal(host(rows), wanted)


@pytest.mark.nightly
def test_a_varying_sample_is_another_one_on_each_device() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    x = sh.random.uniform(sh.random.key(KEY), "f32[8@x,3]{V:y}")
    parts = host(sh.reinterpret(x, y=1))
    for i in range(4):
        key = jax.random.fold_in(jax.random.key(KEY), i)
        np.testing.assert_array_equal(parts[:, 3 * i : 3 * i + 3], jax.random.uniform(key, (8, 3)))
    parts = host(sh.reinterpret(sh.random.uniform(sh.random.key(KEY), "f32[3]{V:(x,y)}"), x=0, y=0))
    for i, j in np.ndindex(2, 4):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(KEY), i), j)
        np.testing.assert_array_equal(parts.reshape(2, 4, 3)[i, j], jax.random.uniform(key, (3,)))


@pytest.mark.nightly
def test_classes_and_orders_are_sampled_as_in_jax() -> None:
    sh.set_mesh(sh.make_mesh({"x": 2, "y": 4}))
    key, plain = sh.random.key(KEY), jax.random.key(KEY)
    logits = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    sampled = sh.random.categorical(key, sh.array(logits, "f32[8@y,6]{I:x}"))
    np.testing.assert_array_equal(host(sampled), jax.random.categorical(plain, logits))
    moved = sh.random.categorical(key, sh.array(logits, "f32[8,6@x]"), axis=0)
    np.testing.assert_array_equal(host(moved), jax.random.categorical(plain, logits, axis=0))
    np.testing.assert_array_equal(host(sh.random.permutation(key, 9)), jax.random.permutation(plain, 9))
    rows = sh.random.permutation(key, sh.array(logits, "f32[8,6@x]"))
    np.testing.assert_array_equal(host(rows), jax.random.permutation(plain, logits))
    assert sh.random.permutation(key, sh.array(logits, "f32[8@x,6]")).type.axes(sh.State.UNREDUCED) == ("x",)


def test_a_sample_has_no_gradient_and_scales_what_has() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    key = sh.random.key(KEY)
    x = sh.array(np.ones((8, 4), np.float32), "f32[8@x,4]")
    _, pull = jax.vjp(lambda x: x * sh.random.uniform(key, sh.typeof(x)), x)
    (gradient,) = pull(x)
    np.testing.assert_array_equal(host(gradient), jax.random.uniform(jax.random.key(KEY), (8, 4)))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda k: sh.random.normal(0, "[4]"), "`normal` needs a key, not 0"),
        (lambda k: sh.random.normal(jax.random.PRNGKey(0), "[4]"), "`normal` needs a key, not u32[2]"),
        (lambda k: sh.random.normal(sh.random.split(k), "[4]"), "`normal` needs one key, not key<fry>[2]"),
        (lambda k: sh.random.normal(sh.random.key(0, impl="rbg"), "[4@x]"), "`normal` cannot make a part of f32[4@x]"),
        (lambda k: sh.random.categorical(k, sh.ones("f32[4,8@x]")), "`categorical` acts along dim 1"),
        (lambda k: sh.random.categorical(k, sh.ones("f32[4,8]{U:x}")), "`categorical` is nonlinear in rhs"),
        (lambda k: sh.random.key(1.5), "a seed is an integer, not 1.5"),
        (lambda k: sh.init.lecun_normal()(k, "f32[8]"), "f32[8] has too few dims to tell inputs from outputs"),
        (lambda k: sh.init.variance_scaling(1.0, "fan", "normal"), "there is no mode 'fan'"),
        (lambda k: sh.init.he_normal(in_axis=5)(k, "f32[8,8]"), "`variance_scaling` has no dim 5"),
        (lambda k: sh.init.normal()(k, "i32[8]"), "`normal` draws no `i32` values"),
        (lambda k: sh.init.normal("a"), "`normal` does not take `stddev='a'`"),  # type: ignore[arg-type]
        (lambda k: sh.init.orthogonal()(k, "bf16[8,8@x]"), "`orthogonal` draws no `bf16` values"),
    ],
)  # fmt: skip
def test_a_sample_that_does_not_type_says_why(call: Callable[[Any], Any], what: str) -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    with pytest.raises(sh.ShardingTypeError) as info:
        call(sh.random.key(0))
    assert info.value.what.startswith(what)


def test_another_generator_samples_what_is_not_sharded() -> None:
    sh.set_mesh(sh.make_mesh({"x": 4}))
    sampled = sh.random.uniform(sh.random.key(3, impl="rbg"), (4, 2))
    np.testing.assert_array_equal(host(sampled), jax.random.uniform(jax.random.key(3, impl="rbg"), (4, 2)))


@pytest.mark.nightly
def test_bits_that_jax_draws_for_a_whole_batch_of_keys_are_those_of_one_device() -> None:
    """XLA's generator, mapped by JAX, draws for all keys from the first; of unsafe keys, children are drawn so too."""
    sh.set_mesh(sh.make_mesh({"x": 2}))
    keys = jax.random.split(jax.random.key(KEY, impl="unsafe_rbg"), 4)
    typed, data = sh.array(keys, "key<urbg>[4@x]"), sh.array(np.arange(4), "i32[4@x]")
    words = jax.random.key_data
    programs: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (lambda k: sh.random.normal(k, (3,)), lambda k: jax.random.normal(k, (3,)), (typed,)),
        (sh.random.split, jax.random.split, (typed,)),
        (lambda i: sh.random.fold_in(keys[0], i), lambda i: jax.random.fold_in(keys[0], i), (data,)),
    ]
    for ours, of_jax, args in programs:
        for mapped in (sh.vmap(ours), sh.lift(jax.vmap(of_jax))):
            with pytest.raises(sh.ShardingTypeError, match=r"cannot be mapped|acts along dim"):
                mapped(*args)
    drawn = sh.implicit_comm(sh.vmap(lambda k: sh.random.normal(k, (3,))))(typed)
    np.testing.assert_array_equal(drawn.to_jax(), jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys))
    for impl in ("threefry2x32", "rbg"):
        key = jax.random.key(KEY, impl=impl)
        fold: Any = jax.vmap(lambda i, key=key: jax.random.fold_in(key, i))
        folded = sh.lift(fold)(data)
        assert folded.type.dims[0].axes == ("x",)
        np.testing.assert_array_equal(words(folded.to_jax()), words(fold(jnp.arange(4))))


def test_a_key_that_varies_samples_only_what_varies() -> None:
    mesh = sh.make_mesh({"x": 4})
    sh.set_mesh(mesh)
    key = sh.reinterpret(sh.random.key(0), x="V")
    assert sh.random.normal(key, (3,)).type == sh.ShType.parse("f32[3]{V:x}", sh.typeof(key).mesh)
    with pytest.raises(sh.ShardingTypeError, match="with a key that varies on mesh axis `x`"):
        sh.random.normal(key, "f32[3]")


@settings(max_examples=25)
@given(
    st.lists(st.integers(2, 2**21), min_size=1, max_size=3).flatmap(
        lambda shape: st.tuples(st.just(shape), st.tuples(*[st.integers(0, n - 2) for n in shape]))
    )
)
def test_flat_indices_are_those_of_the_global_array_beyond_32_bits(case: tuple[list[int], tuple[int, ...]]) -> None:
    shape, starts = case
    high, low = (np.asarray(w) for w in flat_indices((2,) * len(shape), shape, starts))
    for i in np.ndindex(high.shape):
        flat = 0
        for start, offset, size in zip(starts, i, shape, strict=True):
            flat = flat * size + start + offset
        assert int(high[i]) * 2**32 + int(low[i]) == flat


@pytest.mark.parametrize("mode", ["eager", "jit"])
def test_jax_gives_the_words_of_typed_keys(mode: str) -> None:
    """Libraries ask JAX for the words of whatever keys they find, one or many."""
    keys = jax.random.split(jax.random.key(3), 8)
    f: Any = jax.random.key_data if mode == "eager" else jax.jit(jax.random.key_data)
    with sh.use_mesh(sh.make_mesh({"x": 2, "y": 2})):
        words = f(sh.array(keys, "[8@x]"))
        assert sh.typeof(words) == "u32[8@x,2]"
        np.testing.assert_array_equal(np.asarray(words), jax.random.key_data(keys))
        np.testing.assert_array_equal(np.asarray(f(sh.array(keys[0]))), jax.random.key_data(keys[0]))
