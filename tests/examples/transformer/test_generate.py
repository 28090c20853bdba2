"""Text from the language model: the tokens that it makes one by one are those of whole sequences, in every layout."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

import shtypes as sh
from examples.transformer import generate, model
from examples.transformer.costs import ring
from examples.transformer.layouts import read

SIZES = model.Sizes(vocab=32, layers=2, hidden=16, heads=8, key_heads=4, head=4, inner=16, dtype="f32")
PROMPTS = np.random.default_rng(0).integers(0, SIZES.vocab, (8, 8)).astype(np.int32)
LENGTHS = np.array([3, 8, 5, 1, 2, 8, 4, 6], np.int32)
NEW = 8
LAYOUTS = {name: layout for name, layout in read().items() if not layout.schedule}


def weights(name: str) -> Any:
    """Weights of which scores differ enough that no rounding changes their order."""
    with LAYOUTS[name].as_weights():
        return jax.tree.map(lambda w: 3 * w, model.init(sh.random.key(0), SIZES))


def continued(name: str, temperature: float) -> np.ndarray[Any, Any]:
    with LAYOUTS[name].use(), LAYOUTS[name].for_tokens():
        run = functools.partial(generate.generate, sizes=SIZES, new=NEW, temperature=temperature)
        given = sh.array(PROMPTS, "i32[batch, seq]"), sh.array(LENGTHS, "i32[batch]")
        return np.asarray(sh.jit(run)(weights(name), *given, sh.random.key(1)))


one_device = functools.cache(functools.partial(continued, "one"))


@pytest.mark.nightly
def test_a_token_at_a_time_is_as_good_as_whole_sequences() -> None:
    found = one_device(0.0)
    with LAYOUTS["one"].use():
        w = weights("one")
        for prompt, length, new in zip(PROMPTS[:3], LENGTHS, found, strict=False):
            whole = np.concatenate([prompt[:length], new])[None]
            x, _ = model.layers(model.embed(w, sh.array(whole, "i32[batch, seq]")), w["layers"], SIZES)
            scores = np.asarray(model.scores(w, x, SIZES))[0, length - 1 : -1]
            best = np.sort(scores, -1)
            assert (best[:, -1] - best[:, -2] > 1e-3).all(), "two tokens are too near to tell"
            assert (scores.argmax(-1) == new).all()


@pytest.mark.parametrize(
    "name", ["dp_cp_tp", *(pytest.param(n, marks=pytest.mark.nightly) for n in LAYOUTS if n not in ("one", "dp_cp_tp"))]
)
@pytest.mark.parametrize(
    "temperature", [pytest.param(0.0, marks=pytest.mark.nightly), 1.0], ids=["likeliest", "sampled"]
)
@pytest.mark.nightly
def test_every_layout_makes_the_tokens_of_one_device(name: str, temperature: float) -> None:
    assert (continued(name, temperature) == one_device(temperature)).all()


def a_token(name: str) -> sh.Ledger:
    """What one token of each row sends."""
    with LAYOUTS[name].use(abstract=True), LAYOUTS[name].for_tokens():
        with LAYOUTS[name].as_weights():
            w = jax.tree.map(sh.abstract_array, model.types(SIZES))
        kept = jax.tree.map(sh.abstract_array, jax.eval_shape(lambda: generate.cache(SIZES, 8, 64)))
        row, key = sh.abstract_array("i32[batch=8]"), jax.eval_shape(lambda: sh.random.key(0))
        return sh.ledger(functools.partial(generate.decode, sizes=SIZES), w, kept, row, row, sh.abstract_array(key))


@pytest.mark.nightly
def test_nothing_is_sent_where_only_the_batch_is_sharded() -> None:
    assert a_token("dp").bytes == 0
    with LAYOUTS["dp"].use(), LAYOUTS["dp"].for_tokens(), sh.no_comm():
        row = sh.array(LENGTHS, "i32[batch]")
        decode = sh.jit(functools.partial(generate.decode, sizes=SIZES))
        decode(weights("dp"), generate.cache(SIZES, 8, 16), row, row, sh.random.key(0))


def test_a_token_sends_two_all_reduces_of_its_features_a_layer() -> None:
    features, row = 4 * SIZES.hidden, 8 / 2  # of dp=2, tp=4
    blocks = (2 * SIZES.layers + 1) * 2 * ring(features * row, 4)
    choice = 2 * 2 * ring(4 * row, 4)  # the best score, and whose it is
    found = a_token("dp_tp")
    assert {e.kind for e in found.entries} == {"all-reduce"}
    assert found.bytes == blocks + choice


def test_keys_sharded_by_position_send_two_numbers_a_head_and_what_was_mixed() -> None:
    heads = 4 * 8 * SIZES.heads
    one_layer = 2 * 2 * ring(heads, 8) + 2 * ring(4 * 8 * SIZES.hidden, 8)
    assert a_token("cp").bytes == SIZES.layers * one_layer


def test_prompts_are_padded_to_one_length_and_whole_rows() -> None:
    rows, lengths = generate.padded([b"ab", b"", b"abcd"], 4)
    assert rows.tolist() == [[97, 98, 0, 0], [10, 0, 0, 0], [97, 98, 99, 100], [10, 0, 0, 0]]
    assert lengths.tolist() == [2, 1, 4, 1]
