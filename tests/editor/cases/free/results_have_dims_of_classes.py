from dataclasses import dataclass
from typing import Annotated as A, NamedTuple, TypedDict

import shtypes as sh


@dataclass
class Weights:
    embedding: A[sh.Array, "f32[vocab, hidden@tp]"]


class Params(TypedDict):
    mean: A[sh.Array, "f32[hidden@tp, latent]"]


class Pair(NamedTuple):
    first: A[sh.Array, "f32[latent]"]


def embed(w: Weights, ids: A[sh.Array, "i32[b@dp]"]) -> A[sh.Array, "f32[b@dp, hidden@tp]"]:
    return sh.take(w.embedding, ids, axis=0, mode="clip")


def encode(p: Params, x: A[sh.Array, "f32[b@dp, hidden@tp]"]) -> A[sh.Array, "f32[b@dp, latent]"]:
    return sh.all_reduce(x @ p["mean"])


def shifted(p: Pair) -> A[sh.Array, "f32[latent]"]:
    return p.first + 1


def f(w: Weights, p: Params, pair: Pair, ids: A[sh.Array, "i32[batch@dp]"]) -> None:
    x = embed(w, ids)
    reveal_type(x)
    reveal_type(encode(p, x))
    reveal_type(shifted(pair))
    encode(p, sh.all_gather(x, "tp"))


# mypy says:
# 34:17: type f32[batch@dp, hidden@tp]
# 35:17: type f32[batch@dp, latent]
# 36:17: type f32[latent]
# 37:15: argument `x` of `encode` is f32[batch@dp, hidden], not f32[b@dp, hidden@tp]  [sharding]
# 37:15: dim 1 (`hidden`) is not sharded, and the signature has it sharded over `tp`
# 37:15: fix: sh.reshard(..., "[batch@dp, hidden@tp]")   [forward: none; backward: none]
