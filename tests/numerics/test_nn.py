"""`sh.nn` against JAX on one device: values and gradients in every layout that types, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shtypes as sh
from tests import tolerance
from tests.end_to_end import Case, check, host, sampled
from tests.tolerance import assert_close, assert_within, eps

pytestmark = pytest.mark.one_in(9)

MESH = {"dp": 2, "tp": 2}
BATCH, SEQ, HEADS, SIZE, VOCAB = 4, 4, 4, 4, 8
_rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray[Any, Any]:
    return np.asarray(_rng.standard_normal(shape), np.float32)


X, SCALE, BIAS = normal(BATCH, SEQ, VOCAB), normal(VOCAB), normal(VOCAB)
SMALL = X / 300  # so that the epsilons of norms count
LABELS = _rng.integers(0, VOCAB, (BATCH, SEQ)).astype(np.int32)
SOFT = np.exp(normal(BATCH, SEQ, VOCAB))
SOFT /= SOFT.sum(-1, keepdims=True)
Q = normal(BATCH, SEQ, HEADS, SIZE)
WHICH = _rng.random((BATCH, SEQ, VOCAB)) > 0.3


def either(typed: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """The typed function on types, and its reference on one device."""
    return lambda m, *args: (typed if m is sh else plain)(*args)


def rms_norm(x: Any, scale: Any = 1.0) -> Any:
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale


def layer_norm(x: Any, scale: Any = 1.0, bias: Any = 0.0) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias


def cross_entropy(logits: Any, labels: Any) -> Any:
    if jnp.issubdtype(labels.dtype, jnp.floating):
        return -(labels * jax.nn.log_softmax(logits)).sum(-1)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]


def rotary(x: Any, at: Any = None, base: float = 10_000.0) -> Any:
    """Pairs as complex numbers, turned."""
    at = np.arange(x.shape[-3]) if at is None else at
    half = x.shape[-1] // 2
    turns = jnp.exp(1j * at[..., None, None] * base ** (-np.arange(half) / half))
    y = (x[..., :half] + 1j * x[..., half:]) * turns
    return jnp.concatenate([y.real, y.imag], -1).astype(x.dtype)


def shared(typed: Callable[..., Any]) -> Callable[..., Any]:
    """The function where communication is allowed."""

    def run(*args: Any) -> Any:
        with sh.implicit_comm():
            return typed(*args)

    return run


OPS: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "shared softmax": (shared(sh.nn.softmax), jax.nn.softmax, (X,)),
    "rms_norm": (sh.nn.rms_norm, rms_norm, (SMALL, SCALE)),
    "shared rms_norm": (shared(sh.nn.rms_norm), rms_norm, (SMALL, SCALE)),
    "layer_norm": (sh.nn.layer_norm, layer_norm, (SMALL, SCALE, BIAS)),
    "shared layer_norm": (shared(sh.nn.layer_norm), layer_norm, (SMALL, SCALE, BIAS)),
    "cross_entropy": (sh.nn.cross_entropy, cross_entropy, (X, LABELS)),
    "shared cross_entropy": (shared(sh.nn.cross_entropy), cross_entropy, (X, LABELS)),
    "shared dense cross_entropy": (shared(sh.nn.cross_entropy), cross_entropy, (X, SOFT)),
    "linear": (sh.nn.linear, lambda x, w, b: x @ w + b, (X, normal(VOCAB, 4), normal(4))),
    "linear over two dims": (
        functools.partial(sh.nn.linear, dims=2),
        lambda x, w: jnp.einsum("bsnh,nhd->bsd", x, w),
        (Q, normal(HEADS, SIZE, 4)),
    ),
    "glu": (sh.nn.glu, jax.nn.glu, (X,)),
    "swiglu": (sh.nn.swiglu, lambda a, b: jax.nn.silu(a) * b, (X, SCALE)),
    "geglu": (sh.nn.geglu, lambda a, b: jax.nn.gelu(a) * b, (X, SCALE)),
    "rotary_embedding": (sh.nn.rotary_embedding, rotary, (Q,)),
    "rotary_embedding at positions": (sh.nn.rotary_embedding, rotary, (Q, _rng.integers(0, 50, (BATCH, SEQ)))),
}


def layout(name: str, operands: tuple[Any, ...]) -> tuple[str, ...]:
    """Types in which rows are on many devices, and along ``tp`` in pieces where that is shared."""
    if name.startswith("shared"):
        return tuple("[_@dp,_,_@tp]" if x.ndim == 3 else "[_@dp,_]" if x.ndim == 2 else "[_@tp]" for x in operands)
    if name == "linear over two dims":
        return "[_@dp,_,_@tp,_]", "[_@tp,_,_]"
    return tuple(f"[{','.join(('_@dp', '_@tp', '_', '_')[: x.ndim])}]" if x.ndim > 1 else "[_]" for x in operands)


def test_values_and_gradients_are_those_of_one_device() -> None:
    cases = [Case(either(f, g), xs, layout(name, xs), id=name) for name, (f, g, xs) in OPS.items()]
    cases = [replace(c, types=("[_@dp,_@tp,_]", "[_,_]", "[_]")) if c.id == "linear" else c for c in cases]
    check(sh.make_mesh(MESH), cases)


@pytest.mark.nightly
@pytest.mark.parametrize("name", OPS)
def test_they_are_in_every_layout(name: str) -> None:
    typed, plain, operands = OPS[name]
    mesh = sh.make_mesh(MESH)
    check(mesh, sampled(mesh, either(typed, plain), *operands, id=name, count=30))


CAUSAL = (
    functools.partial(sh.nn.dot_product_attention, is_causal=True),
    functools.partial(jax.nn.dot_product_attention, is_causal=True),
)
WINDOW = (
    functools.partial(sh.nn.dot_product_attention, local_window_size=(2, 1)),
    functools.partial(jax.nn.dot_product_attention, local_window_size=(2, 1)),
)
PLAIN = sh.nn.dot_product_attention, jax.nn.dot_product_attention
LENGTHS: dict[str, Any] = {
    "query_seq_lengths": np.asarray([4, 2, 3, 1]),
    "key_value_seq_lengths": np.asarray([1, 4, 2, 3]),
}
SHORT = (
    functools.partial(sh.nn.dot_product_attention, **LENGTHS),
    functools.partial(jax.nn.dot_product_attention, **LENGTHS),
)
ACROSS = shared(CAUSAL[0]), CAUSAL[1]
K4, V4, K2, V2, K1, V1 = (normal(BATCH, SEQ, n, SIZE) for n in (4, 4, 2, 2, 1, 1))
PER_HEAD = normal(BATCH, HEADS, SEQ, SEQ)
SEEN = _rng.random((BATCH, 1, SEQ, SEQ)) > 0.3
ROWS = "[_@dp,_,_,_]"
HEADS_TOO = "[_@dp,_,_@tp,_]"
ATTENTION: dict[str, tuple[Any, Any, Any]] = {
    "causal, heads and batch sharded": (CAUSAL, (Q, K4, V4), (HEADS_TOO,) * 3),
    "causal, queries sharded": (CAUSAL, (Q, K4, V4), ("[_@dp,_@tp,_,_]", ROWS, ROWS)),
    "causal, invariant on one axis": (CAUSAL, (Q, K4, V4), ("[_,_,_@tp,_]{I:dp}",) * 3),
    "causal, keys replicated and sliced": (CAUSAL, (Q, K4, V4), (HEADS_TOO, ROWS, "[_@dp,_,_,_]{I:tp}")),
    "grouped heads": (CAUSAL, (Q, K2, V2), (HEADS_TOO,) * 3),
    "fewer heads of keys than devices": (CAUSAL, (Q, K2, V2), ("[_,_,_@(dp,tp),_]", "[_,_,_,_]", "[_,_,_,_]{I:dp}")),
    "fewer heads of sharded keys": (CAUSAL, (Q, K2, V2), ("[_,_,_@(dp,tp),_]", "[_,_,_@dp,_]", "[_,_,_,_]")),
    "one head of keys": (PLAIN, (Q, K1, V1), (HEADS_TOO, ROWS, ROWS)),
    "bias and mask": (PLAIN, (Q, K4, V4, PER_HEAD, SEEN), (*(HEADS_TOO,) * 3, "[_,_@tp,_,_]", "[_@dp,_,_,_]")),
    "bias of grouped heads": (PLAIN, (Q, K2, V2, PER_HEAD), (*(HEADS_TOO,) * 3, "[_@dp,_@tp,_,_]")),
    "a window": (WINDOW, (Q, K4, V4), ("[_@dp,_@tp,_,_]", ROWS, ROWS)),
    "rows of other lengths": (SHORT, (Q, K2, V2), ("[_@dp,_@tp,_,_]", ROWS, ROWS)),
    "keys sharded by position": (ACROSS, (Q, K4, V4), (ROWS, "[_@dp,_@tp,_,_]", "[_@dp,_@tp,_,_]")),
    "values unreduced": (PLAIN, (Q, K4, V4), ("[_@dp,_,_,_]", "[_@dp,_,_,_]", "[_@dp,_,_,_]{U:tp}")),
}


#: What the quick test covers.
QUICK = (
    "causal, queries sharded",
    "grouped heads",
    "fewer heads of sharded keys",
    "bias of grouped heads",
    "a window",
    "keys sharded by position",
)


def attention_cases(names: Any) -> list[Case]:
    return [
        Case(either(typed, plain), operands, types, id=name)
        for name in names
        for (typed, plain), operands, types in [ATTENTION[name]]
    ]


@pytest.mark.nightly
def test_attention_is_that_of_jax() -> None:
    check(sh.make_mesh(MESH), attention_cases(QUICK))


@pytest.mark.nightly
def test_attention_is_that_of_jax_in_every_layout() -> None:
    check(sh.make_mesh(MESH), attention_cases(ATTENTION))


@pytest.mark.nightly
@pytest.mark.core
def test_norms_and_losses_run_eagerly_and_under_the_other_policy() -> None:
    mesh = sh.make_mesh(MESH)
    with sh.policy("jax"):
        check(
            mesh,
            [
                Case(either(sh.nn.rms_norm, rms_norm), (X, SCALE), ("[_@dp,_,_]", "[_]"), id="rms_norm"),
                Case(
                    either(functools.partial(sh.nn.cross_entropy, out="[_@dp,_]{I:tp}"), cross_entropy),
                    (X, LABELS),
                    ("[_@dp,_,_@tp]", "i32[_@dp,_]"),
                    out="[_@dp,_]{I:tp}",
                    id="cross_entropy",
                ),
            ],
            eager=True,
        )


@pytest.mark.one_in(9)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "cross_entropy", "attention"])
def test_narrow_floats_are_computed_wide(name: str) -> None:
    sh.set_mesh(sh.make_mesh(MESH))
    narrow = jnp.bfloat16
    if name == "attention":
        found = sh.nn.dot_product_attention(*(sh.array(x.astype(narrow), HEADS_TOO) for x in (Q, K4, V4)))
        wanted = jax.nn.dot_product_attention(*(jnp.asarray(x, narrow) for x in (Q, K4, V4)))
        most = 2 * eps(narrow)  # of the operands and of the result
    else:
        typed, plain, operands = OPS[f"shared {name}"]
        x = sh.array(X.astype(narrow), "bf16[_@dp,_,_@tp]")
        rest = operands[1:] if name == "cross_entropy" else ()
        found, wanted = typed(x, *rest), plain(X.astype(narrow).astype(np.float32), *rest)
        most = tolerance.SHORT * eps(np.float32) if name == "cross_entropy" else eps(narrow)  # of the result
    assert found.type.dtype_name == ("f32" if name == "cross_entropy" else "bf16")
    assert_within(host(found), wanted, most, name)


# what is communicated


def communicated(f: Callable[..., Any], *types: str) -> list[tuple[str, str, int]]:
    with sh.use_mesh(sh.abstract_mesh(MESH)):
        entries = sh.ledger(f, *[sh.abstract_array(t) for t in types]).entries
    return [(e.kind, e.direction, e.bytes) for e in entries]


def test_a_sharded_vocabulary_sends_three_numbers_for_each_row_and_nothing_backward() -> None:
    def loss(logits: Any, labels: Any) -> Any:
        return sh.mean(sh.nn.cross_entropy(logits, labels, out="[_@dp,_]{I:tp}"))

    rows = BATCH // 2 * SEQ
    found = communicated(sh.value_and_grad(loss), f"f32[{BATCH}@dp,{SEQ},{VOCAB}@tp]", f"i32[{BATCH}@dp,{SEQ}]")
    assert sorted(found) == [("all-reduce", "forward", rows * 4), ("all-reduce", "forward", 2 * rows * 4)]


def test_a_whole_vocabulary_sends_nothing() -> None:
    def loss(logits: Any, labels: Any) -> Any:
        return sh.mean(sh.nn.cross_entropy(logits, labels))

    assert not communicated(sh.value_and_grad(loss), f"f32[{BATCH}@(dp,tp),{SEQ},{VOCAB}]", f"i32[{BATCH},{SEQ}]")


GOLDEN = """\
`cross_entropy` acts along dim 2 (`vocab`), which is sharded on mesh axis `tp`
  where: HERE: cross_entropy(f32[4@dp, 4, vocab@tp], i32[4@dp,4])
  why:   each device holds only its slice of that dim, and the result needs all of it
  fix:   sh.nn.cross_entropy(..., out="[4@dp,4]{I:tp}")   [forward: 2 times all-reduce over `tp`, 96 B/device; \
backward: none; later: all-reduce over `tp`, 32 B/device]
  fix:   sh.nn.cross_entropy(..., out="[4@dp,4]")   [forward: 2 times all-reduce over `tp`, 96 B/device; \
backward: all-reduce over `tp`, 32 B/device]"""


def refusal(f: Callable[..., Any], *types: str, **options: Any) -> str:
    with sh.use_mesh(sh.abstract_mesh(MESH)), pytest.raises(sh.ShardingTypeError) as caught:
        f(*[sh.abstract_array(t) for t in types], **options)
    return str(caught.value)


def test_fixes_of_several_operands_count_equal_steps() -> None:
    said = refusal(sh.nn.dot_product_attention, *["f32[2,64@tp,4,8]"] * 3)
    assert "[forward: 3 times all-to-all over `tp`, " in said


def test_a_sharded_vocabulary_is_an_error_that_prices_what_may_be_allowed() -> None:
    message = refusal(sh.nn.cross_entropy, "f32[4@dp,4,vocab=512@tp]", "i32[4@dp,4]")
    first, where, *rest = message.split("\n")
    assert "test_nn.py" in where
    found = "\n".join([first, "  where: HERE: " + where.split(": ", 2)[2], *rest])
    assert found.startswith(GOLDEN)


@pytest.mark.parametrize(
    ("f", "types", "options", "match"),
    [
        (sh.nn.softmax, ["f32[80@tp]"], {}, 'sh.nn.softmax(..., out="[80@tp]")'),
        (sh.nn.rms_norm, ["f32[80@(dp,tp)]"], {}, 'sh.nn.rms_norm(..., out="[80@(dp,tp)]")'),
        (sh.nn.layer_norm, ["f32[80@tp]"], {"out": "[80@pp]"}, "mesh has no axis `pp`"),
        (sh.nn.softmax, ["f32[8]{U:tp}"], {}, "is nonlinear in the operand, which is unreduced on mesh axis `tp`"),
        (sh.nn.rms_norm, ["f32[8]{U:tp}"], {}, "unreduced on mesh axis `tp`"),
        (sh.nn.rms_norm, ["f32[80@tp]", "f32[80]"], {}, "`nn.rms_norm` acts along dim 0, which is sharded"),
        (sh.nn.cross_entropy, ["f32[4,8]{U:tp}", "i32[4]"], {}, "unreduced on mesh axis `tp`"),
        (sh.nn.cross_entropy, ["f32[4,8]", "i32[8]"], {}, "cannot take labels i32[8]"),
        (sh.nn.cross_entropy, ["f32[4,8]", "bool[4]"], {}, "cannot take labels bool[4]"),
        (
            sh.nn.dot_product_attention,
            ["f32[2,4,3,8]", "f32[2,4,2,8]", "f32[2,4,2,8]"],
            {},
            "number of query heads must be a multiple",
        ),
        (
            sh.nn.dot_product_attention,
            ["f32[4,2,8]", "f32[4@tp,2,8]", "f32[4@tp,2,8]"],
            {},
            'sh.nn.dot_product_attention(..., out="[4,2,8]{U:tp}")',
        ),
        (sh.nn.rotary_embedding, ["f32[4,2,8@tp]"], {}, "`nn.rotary_embedding` acts along dim 2"),
        (
            sh.nn.rotary_embedding,
            ["f32[4,2,8]", "i32[4]{U:tp}"],
            {},
            "`cos` is nonlinear in the operand, which is unreduced",
        ),
        (sh.nn.rotary_embedding, ["f32[4,2,7]"], {}, "an even size"),
        (sh.nn.rotary_embedding, ["f32[4,2,8]", "f32[4]"], {}, "positions are integers"),
        (sh.nn.linear, ["f32[4,8]", "f32[8,4]"], {"dims": 3}, "`linear` over 3 dims does not fit"),
        (sh.nn.glu, ["f32[8@tp]"], {}, "sharded on mesh axis `tp`"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_does_not_type_says_so(f: Any, types: list[str], options: dict[str, Any], match: str) -> None:
    assert match in refusal(f, *types, **options)


# dropout


def test_dropout_drops_the_same_elements_on_every_mesh() -> None:
    kept = np.asarray(jax.random.bernoulli(jax.random.key(3), 0.75, X.shape))
    assert 0.6 < kept.mean() < 0.9
    first: list[Any] = []
    for mesh in ({"dp": 1, "tp": 1}, {"dp": 2, "tp": 1}, {"dp": 2, "tp": 4}):
        sh.set_mesh(sh.make_mesh(mesh))
        key = sh.random.key(3)
        drop = lambda x, key=key: sh.nn.dropout(x, 0.25, key)  # noqa: E731
        slope = sh.grad(lambda x, drop=drop: sh.sum(drop(x) * SCALE))
        run = sh.jit(lambda x, y, z, drop=drop, slope=slope: (drop(x), drop(y), drop(z), slope(y)))
        operands = [sh.array(X, t) for t in ("[_@dp,_,_@tp]", "[_,_,_@(tp,dp)]", "[_,_,_]{U:dp}")]
        found = [host(x) for x in jax.block_until_ready(run(*operands))]
        first = first or found
        for one, other in zip(found, first, strict=True):
            np.testing.assert_array_equal(one, other)
        assert_close(found[0], np.where(kept, X / 0.75, 0))
        assert_close(found[3], np.where(kept, SCALE / 0.75, 0))


def test_dropout_can_share_its_mask_along_a_dim_and_be_switched_off() -> None:
    sh.set_mesh(sh.make_mesh(MESH))
    x, key = sh.array(np.ones_like(X), "[_@dp,_@tp,_]"), sh.random.key(3)
    shared = host(sh.nn.dropout(x, 0.5, key, broadcast_dims=1))
    np.testing.assert_array_equal(shared, np.broadcast_to(shared[:, :1], X.shape))
    assert sh.nn.dropout(x, 0.5, key, deterministic=True) is x
    assert sh.nn.dropout(x, 0, key) is x
    assert not host(sh.nn.dropout(x, 1, key)).any()
    with pytest.raises(sh.ShardingTypeError, match="the rate of `dropout` is a number from 0 to 1"):
        sh.nn.dropout(x, 2, key)
