from typing import Annotated as A

import shtypes as sh


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


def f(m: Model, x: A[sh.Array, "f32[k@dp]"]) -> None:
    reveal_type(m.weight)
    reveal_type(Model.scaled(x))
    reveal_type(Model.made(sh.zeros("f32[3]")))
    Model.made(x)


# mypy says:
# 21:17: type f32[h, h]
# 22:17: type f32[k@dp]
# 23:17: type f32[n=3]
# 24:16: argument `x` of `Model.made` is f32[k@dp], not f32[n]  [sharding]
# 24:16: dim 0 (`n`) is sharded over `dp`, and the signature has it not sharded
# 24:16: fix: sh.reshard(x, "[k]")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
