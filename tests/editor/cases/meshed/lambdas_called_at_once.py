from typing import Annotated as A

import shtypes as sh

X = A[sh.Array, "f32[8@dp, 16]"]


def kept(x: X, y: A[sh.Array, "f32[16]"]) -> None:
    reveal_type(sh.checkpoint(lambda a: sh.tanh(a))(x))
    reveal_type(sh.jit(lambda a, b: sh.sum(a, 0) @ b)(x, y))
    reveal_type(sh.checkpoint(lambda a: sh.exp(sh.sum(a, 0)))(x))
    reveal_type(sh.checkpoint(lambda: sh.tanh(x))())


def derived(x: X) -> None:
    reveal_type(sh.grad(lambda a: sh.sum(a))(x))
    reveal_type(sh.value_and_grad(lambda a, b: sh.sum(a * b), argnums=1)(x, x))
    sh.grad(lambda a: sh.sum(a, 0))(x)


def mapped(x: X, keys: A[sh.Array, "f32[8@dp]{V:tp}"], n: A[sh.Array, "f32[n@dp]"]) -> None:
    reveal_type(sh.shard_map(lambda a: sh.tanh(a), out_specs="[_@dp, _]")(x))
    reveal_type(sh.shard_map(lambda a: sh.sum(a, 0), out_specs="[...]{U:dp}")(x))
    reveal_type(sh.shard_map(lambda a: sh.lax.psum(sh.sum(a), "dp"), out_specs="[]")(x))
    reveal_type(sh.shard_map(lambda a: a * 2, out_specs="[_@dp]")(keys))
    reveal_type(sh.shard_map(lambda a: sh.tanh(a), out_specs="[...]")(x))
    reveal_type(sh.shard_map(lambda a: sh.tanh(a), out_specs="[_@dp]")(n))


def chosen(x: X, flag: bool, choice: sh.Array) -> None:
    reveal_type(sh.cond(flag, lambda a: sh.tanh(a), lambda a: a, x))
    reveal_type(sh.cond(flag, lambda a: sh.sum(a), lambda a: sh.max(a), sh.all_gather(x, "dp")))
    reveal_type(sh.cond(choice, lambda a: sh.tanh(a), lambda a: a, x))
    reveal_type(sh.switch(2, [lambda a: sh.sum(a), lambda a: sh.mean(a)], x))
    reveal_type(sh.cond(flag, lambda: sh.sum(x, 1), lambda: sh.sum(x, 0)))


@sh.shard_map(out_specs="[_@dp, 16]")
def of_a_device(a: A[sh.Array, "f32[rows, 16]{V:dp}"]) -> A[sh.Array, "f32[rows, 16]{V:dp}"]:
    reveal_type(sh.tanh(a))
    return sh.tanh(a)


def called(x: X) -> sh.Array:
    reveal_type(of_a_device(x))
    return of_a_device(x)


# mypy says:
# 9:17: type f32[8@dp,16]
# 10:17: type f32[]{U:dp}
# 11:17: type ?
# 11:48: `exp` is nonlinear in the operand, which is unreduced on mesh axis `dp`  [sharding]
# 11:48: each device holds one term of the sum, and exp(a + b) is not exp(a) + exp(b)
# 11:48: in exp(f32[16]{U:dp})
# 11:48: fix: sh.reshard(..., "[16@dp]")   [forward: reduce-scatter over `dp`, 32 B/device; backward: all-gather over `dp`, 32 B/device]
# 12:17: type f32[8@dp,16]
# 16:17: type f32[8@dp,16]{U:tp}
# 17:17: type tuple[f32[]{U:dp}, f32[8@dp,16]{U:tp}]
# 18:13: a gradient needs a scalar loss, not f32[16]{U:dp}  [sharding]
# 18:13: a gradient is of one number
# 18:13: try: sh.sum(loss) or sh.mean(loss)
# 22:17: type f32[8@dp,16]
# 23:17: type f32[16]{U:dp}
# 24:17: type f32[]
# 25:17: type f32[8@dp]{V:tp}
# 26:17: type ?
# 26:30: the spec of a result leaves out mesh axis `dp`, and f32[4,16]{V:dp} varies over it  [sharding]
# 26:30: a spec that leaves out an axis promises one value on all its devices
# 26:30: fix: sh.lax.psum(x, "dp")   [forward: all-reduce over `dp`, 256 B/device; backward: all-reduce over `dp`, 256 B/device]
# 27:17: type ?
# 31:17: type f32[8@dp,16]
# 32:17: type f32[]
# 33:17: type Any
# 34:17: type f32[]{U:dp}
# 35:17: type Any
# 35:31: the results of the branches of `cond` need one type: f32[8@dp] and f32[16]{U:dp} differ  [sharding]
# 35:31: nothing that is inserted changes a shape
# 40:17: type f32[rows, 16]{V:dp}
# 45:17: type ?
