from dataclasses import dataclass
from typing import Annotated as A, NamedTuple, TypedDict

import shtypes as sh


# methods


class Layer:
    w: A[sh.Array, "f32[hidden, inter@tp]"]

    def __call__(self, x: A[sh.Array, "f32[n, hidden]"]) -> A[sh.Array, "f32[n, inter@tp]"]:
        reveal_type(x @ self.w)
        return x @ self.w

    def twice(self, x: A[sh.Array, "f32[n, hidden]"]) -> A[sh.Array, "f32[n, inter@tp]"]:
        return self(x) * 2


def g_0(layer: Layer, x: A[sh.Array, "f32[batch, hidden]"], y: A[sh.Array, "f32[batch, d]"]) -> None:
    reveal_type(layer(x))
    reveal_type(layer.twice(x))
    layer(y)


# properties and static methods


class Model:
    @property
    def weight(self) -> A[sh.Array, "f32[h, h]"]:
        raise NotImplementedError

    @staticmethod
    def scaled(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
        return x * 2

    @classmethod
    def made(cls, x: A[sh.Array, "f32[n]"]) -> A[sh.Array, "f32[n]"]:
        return x


def f_1(m: Model, x: A[sh.Array, "f32[k@dp]"]) -> None:
    reveal_type(m.weight)
    reveal_type(Model.scaled(x))
    reveal_type(Model.made(sh.zeros("f32[3]")))
    Model.made(x)


# dataclasses have fixed dims


@dataclass
class Weights:
    up: A[sh.Array, "f32[hidden, inter@tp]"]
    down: A[sh.Array, "f32[inter@tp, hidden]"]


def mlp(p: Weights, x: A[sh.Array, "f32[n, hidden]"]) -> A[sh.Array, "f32[n, hidden]{U:tp}"]:
    return sh.silu(x @ p.up) @ p.down


def g_2(up: A[sh.Array, "f32[hidden, inter@tp]"], down: A[sh.Array, "f32[inter@tp, hidden]"]) -> None:
    p = Weights(up, down)
    reveal_type(p.up)
    Weights(down, up)
    reveal_type(Weights(sh.zeros("f32[4, 8@tp]"), sh.zeros("f32[8@tp, 4]")).down)


# named tuples and typed dicts


class Pair(NamedTuple):
    x: A[sh.Array, "f32[n@dp]"]
    total: A[sh.Array, "f32[]{U:dp}"]


class Params(TypedDict):
    w: A[sh.Array, "f32[n@dp]"]


def f_3(p: Pair, q: Params) -> None:
    reveal_type(p.x)
    sh.exp(p.total)
    reveal_type(q["w"] * 2)


# results have dims of classes


@dataclass
class Weights_4:
    embedding: A[sh.Array, "f32[vocab, hidden@tp]"]


class Params_4(TypedDict):
    mean: A[sh.Array, "f32[hidden@tp, latent]"]


class Pair_4(NamedTuple):
    first: A[sh.Array, "f32[latent]"]


def embed(w: Weights_4, ids: A[sh.Array, "i32[b@dp]"]) -> A[sh.Array, "f32[b@dp, hidden@tp]"]:
    return sh.take(w.embedding, ids, axis=0, mode="clip")


def encode(p: Params_4, x: A[sh.Array, "f32[b@dp, hidden@tp]"]) -> A[sh.Array, "f32[b@dp, latent]"]:
    return sh.all_reduce(x @ p["mean"])


def shifted(p: Pair_4) -> A[sh.Array, "f32[latent]"]:
    return p.first + 1


def f_4(w: Weights_4, p: Params_4, pair: Pair_4, ids: A[sh.Array, "i32[batch@dp]"]) -> None:
    x = embed(w, ids)
    reveal_type(x)
    reveal_type(encode(p, x))
    reveal_type(shifted(pair))
    encode(p, sh.all_gather(x, "tp"))


# mypy says:
# 14:21: type f32[n, inter@tp]
# 22:17: type f32[batch, inter@tp]
# 23:17: type f32[batch, inter@tp]
# 24:11: argument `x` of `layer` is f32[batch, d], not f32[n, hidden]  [sharding]
# 24:11: dim 1 has size `d`, not `hidden`
# 45:17: type f32[h, h]
# 46:17: type f32[k@dp]
# 47:17: type f32[n=3]
# 48:16: argument `x` of `Model.made` is f32[k@dp], not f32[n]  [sharding]
# 48:16: dim 0 (`n`) is sharded over `dp`, and the signature has it not sharded
# 48:16: fix: sh.reshard(x, "[k]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
# 66:17: type f32[hidden, inter@tp]
# 67:13: argument `up` of `Weights` is f32[inter@tp, hidden], not f32[hidden, inter@tp]  [sharding]
# 67:13: dim 0 (`hidden`) is sharded over `tp`, and the signature has it not sharded
# 67:13: dim 1 (`inter`) is not sharded, and the signature has it sharded over `tp`
# 67:13: dim 0 has size `inter`, not `hidden`
# 67:13: dim 1 has size `hidden`, not `inter`
# 67:19: argument `down` of `Weights` is f32[hidden, inter@tp], not f32[inter@tp, hidden]  [sharding]
# 67:19: dim 0 (`inter`) is not sharded, and the signature has it sharded over `tp`
# 67:19: dim 1 (`hidden`) is sharded over `tp`, and the signature has it not sharded
# 67:19: dim 0 has size `hidden`, not `inter`
# 67:19: dim 1 has size `inter`, not `hidden`
# 68:17: type f32[inter@tp, hidden]
# 84:17: type f32[n@dp]
# 85:12: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 85:12: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 85:12: in exp(f32[]{U:dp})
# 85:12: fix: sh.reshard(p.total, "[]{I:dp}")   [forward: all-reduce over `dp`; backward: none; later: all-reduce over `dp`]
# 86:17: type f32[n@dp]
# 119:17: type f32[batch@dp, hidden@tp]
# 120:17: type f32[batch@dp, latent]
# 121:17: type f32[latent]
# 122:15: argument `x` of `encode` is f32[batch@dp, hidden], not f32[b@dp, hidden@tp]  [sharding]
# 122:15: dim 1 (`hidden`) is not sharded, and the signature has it sharded over `tp`
# 122:15: fix: sh.reshard(..., "[batch@dp, hidden@tp]")   [forward: none; backward: none]
