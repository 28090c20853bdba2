"""Text from the model: a prompt at once, then a token at a time, with the keys and values of all layers kept.

The cache is typed by the same file of dims and axes (`Layout.for_tokens`): ``batch`` over data, ``key_heads`` over
tensor, and ``keys`` over context, so that each device keeps a part of the positions of a long text. A new key is
written by comparing positions: each device writes what it has, and nothing is sent. What a token sends is then what a
layer sends, and no more: nothing where only ``batch`` is sharded; over tensor parallel devices two all-reduces a layer
of one position's features.

Rows may be prompts of different lengths: each has its own position, and what lies beyond it is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import shtypes as sh
from examples.transformer import model

Tree = Any
#: The parts of a layer's cache.
CACHE = "[batch, keys, key_heads, head]"


def cache(sizes: model.Sizes, batch: int, length: int) -> Tree:
    """Room for the keys and values of ``length`` positions, in all layers."""
    with sh.dims(**sizes.dims(), batch=batch, keys=length):
        room = sh.ShType.parse(f"{sizes.dtype}[layer, {CACHE[1:]}")
    return {"key": sh.zeros(room), "value": sh.zeros(room)}


def padded(texts: Sequence[bytes], rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Prompts as rows of one length, with a token at least, to a multiple of ``rows``; and their lengths."""
    count = -(-len(texts) // rows) * rows
    filled = [text or b"\n" for text in texts] + [b"\n"] * (count - len(texts))
    longest = max(len(text) for text in filled)
    tokens = np.frombuffer(b"".join(text.ljust(longest, b"\0") for text in filled), np.uint8)
    return tokens.reshape(count, longest).astype(np.int32), np.array([len(text) for text in filled], np.int32)


def read(weights: Tree, kept: Tree, tokens: Any, at: Any, sizes: model.Sizes) -> tuple[Any, Tree]:
    """Reads some tokens of each row, from position ``at`` of the row on.

    Args:
        weights: The weights, as they are trained.
        kept: The cache.
        tokens: i32[batch, seq], some of which may be padding, as long as those that follow are written over it.
        at: i32[batch], the position of the first of them.
        sizes: The model.

    Returns:
        What is likely to come after each token, [batch, seq, vocab], and the cache with these tokens in it.
    """
    seq = tokens.shape[1]
    at = at[:, None] + sh.arange(seq)
    length = kept["key"].shape[2]
    places = model.moved(sh.broadcast_to(sh.arange(length), (tokens.shape[0], length)), "[batch, keys]")

    def written(old: Any, new: Any) -> Any:
        """The cache of a layer with new positions in it: by comparison, so that no device needs another's part."""
        if seq == 1:
            return sh.where((places == at)[:, :, None, None], new, old)
        here = (places[:, :, None] == at[:, None, :]).astype(new.dtype)
        return sh.where(sh.any(here > 0, -1)[:, :, None, None], sh.einsum("bps,bskh->bpkh", here, new), old)

    def layer(x: Any, both: Any) -> Any:
        w, old = both
        found: dict[str, Any] = {}

        def mix(query: Any, key: Any, value: Any) -> Any:
            query, key = sh.nn.rotary_embedding(query, at), sh.nn.rotary_embedding(key, at)
            found.update(key=written(old["key"], key), value=written(old["value"], value))
            seen = places[:, None, None, :] <= at[:, None, :, None]
            with sh.implicit_comm():  # keys sharded by position: two numbers for each row of scores
                return sh.nn.dot_product_attention(query, found["key"], found["value"], mask=seen)

        return model.layer(x, w, sizes, mix)[0], found

    ends = {name: model.gathered(weights[name], model.WEIGHTS[name], sizes) for name in ("embedding", "norm")}
    x, kept = sh.scan(layer, model.embed(ends, tokens), (weights["layers"], kept))
    return model.scores(ends, x, sizes), kept


def decode(
    weights: Tree, kept: Tree, token: Any, at: Any, key: Any, sizes: model.Sizes, temperature: float = 1.0
) -> Any:
    """One token of each row: reads ``token``, i32[batch], at ``at`` and samples the next one.

    Returns:
        The next tokens and the cache.
    """
    scores, kept = read(weights, kept, token[:, None], at, sizes)
    return sampled(scores[:, 0], key, temperature), kept


def sampled(scores: Any, key: Any, temperature: float) -> Any:
    """A token for each row of scores; the likeliest if ``temperature`` is 0. Sharded scores tell their best one."""
    with sh.implicit_comm():
        if temperature == 0:
            return model.moved(sh.argmax(scores, -1).astype("i32"), "[batch]")
        return model.moved(sh.random.categorical(key, scores.astype("f32") / temperature).astype("i32"), "[batch]")


def generate(
    weights: Tree, prompts: Any, lengths: Any, key: Any, sizes: model.Sizes, new: int, temperature: float = 1.0
) -> Any:
    """Continues prompts.

    Args:
        weights: The weights.
        prompts: i32[batch, seq], each row padded at its end.
        lengths: i32[batch], how many tokens each row has.
        key: A random key.
        sizes: The model.
        new: How many tokens to sample.
        temperature: How much the scores are flattened; 0 takes the likeliest.

    Returns:
        i32[batch, new].
    """
    batch, seq = prompts.shape
    scores, kept = read(weights, cache(sizes, batch, seq + new), prompts, sh.zeros_like(lengths), sizes)
    last = (sh.arange(seq) == (lengths - 1)[:, None])[:, :, None]
    keys = sh.random.split(key, new)
    token = sampled(sh.sum(sh.where(last, scores, 0), 1), keys[0], temperature)

    def step(carry: Any, key: Any) -> Any:
        token, at, kept = carry
        following, kept = decode(weights, kept, token, at, key, sizes, temperature)
        return (following, at + 1, kept), token

    (last_token, _, _), tokens = sh.scan(step, (token, lengths, kept), keys[1:])
    return sh.concatenate([sh.moveaxis(tokens, 0, 1), last_token[:, None]], 1)
