from typing import Annotated as A

import shtypes as sh


# a gradient is no primal


def loss(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def step(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[h]"]:
    g = sh.grad(loss)(w, x)
    reveal_type(g)
    loss(g, x)
    reveal_type(sh.all_reduce(g))
    return w - 0.1 * sh.all_reduce(g)


# gradients


def loss_1(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


def g_1(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(sh.grad(loss_1)(v, y))
    reveal_type(sh.grad(loss_1, argnums=1)(v, y))
    reveal_type(sh.grad(loss_1, argnums=(0, 1))(v, y))
    reveal_type(sh.value_and_grad(loss_1)(v, y))
    sh.grad(loss_1)(y, v)


# gradients bound by modules


def early(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(both(v, y))


def loss_2(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
    return (x @ w).sum()


both = sh.grad(loss_2, argnums=(0, 1))
last = sh.grad(loss_2, -1)
valued = sh.value_and_grad(loss_2, (0, 1))


def late(v: A[sh.Array, "f32[k]"], y: A[sh.Array, "f32[batch@dp, k]"]) -> None:
    reveal_type(both(v, y))
    reveal_type(last(v, y))
    reveal_type(valued(v, y))
    both(y, v)


# gradients of local functions


def step_3(w: A[sh.Array, "f32[h]"], x: A[sh.Array, "f32[b@dp, h]"]) -> None:
    def loss(v: A[sh.Array, "f32[h]"]) -> A[sh.Array, "f32[]{U:dp}"]:
        return (x @ v).sum()

    reveal_type(sh.grad(loss)(w))
    reveal_type(sh.value_and_grad(loss)(w))


# policy scopes


def f_4(x: A[sh.Array, "f32[n@dp]"], i: A[sh.Array, "f32[n]{I:dp}"]) -> None:
    with sh.policy("jax"):
        reveal_type(sh.all_gather(x, "dp"))
    reveal_type(sh.all_gather(x, "dp"))
    reveal_type(i)


# einsum overlapped


def f_5(x: A[sh.Array, "f32[s@tp, 6]"], w: A[sh.Array, "f32[6, d@tp]"], up: A[sh.Array, "f32[8, f@tp]"]) -> None:
    down: A[sh.Array, "f32[f@tp, 12]"] = sh.zeros("f32[f@tp, 12]")
    reveal_type(sh.einsum("sh,hd->sd", x, w, out="[_, _@tp]", overlap=True))
    reveal_type(sh.matmul(up, down, out="[8@tp, 12]", overlap="bidirectional"))
    sh.matmul(up, down, out="[8, 12]", overlap=True)
    with sh.no_comm():
        sh.matmul(up, down, out="[8@tp, 12]", overlap=True)


# mypy says:
# 15:17: type f32[h]{U:(dp,tp)}
# 16:10: argument `w` of `loss` is f32[h]{U:(dp,tp)}, not f32[h]  [sharding]
# 16:10: mesh axis `dp` is unreduced, and the signature has it reduced, because it does not mention it
# 16:10: mesh axis `tp` is unreduced, and the signature has it reduced, because it does not mention it
# 16:10: fix: sh.reshard(g, "[h]")   [forward: all-reduce over `dp`, `tp`; backward: all-reduce over `dp`, `tp`]
# 17:17: type f32[h]
# 29:17: type f32[k]{U:(dp,tp)}
# 30:17: type f32[batch@dp, k]{U:tp}
# 31:17: type tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]
# 32:17: type tuple[f32[]{U:dp}, f32[k]{U:(dp,tp)}]
# 33:21: argument `w` of `sh.grad(loss_1)` is f32[batch@dp, k], not f32[h]  [sharding]
# 33:21: it has 2 dims, and the signature 1 dim
# 33:24: argument `x` of `sh.grad(loss_1)` is f32[k], not f32[b@dp, h]  [sharding]
# 33:24: it has 1 dim, and the signature 2 dims
# 40:17: type tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]
# 53:17: type tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]
# 54:17: type f32[batch@dp, k]{U:tp}
# 55:17: type tuple[f32[]{U:dp}, tuple[f32[k]{U:(dp,tp)}, f32[batch@dp, k]{U:tp}]]
# 56:10: argument `w` of `both` is f32[batch@dp, k], not f32[h]  [sharding]
# 56:10: it has 2 dims, and the signature 1 dim
# 56:13: argument `x` of `both` is f32[k], not f32[b@dp, h]  [sharding]
# 56:13: it has 1 dim, and the signature 2 dims
# 66:17: type f32[h]{U:(dp,tp)}
# 67:17: type tuple[f32[]{U:dp}, f32[h]{U:(dp,tp)}]
# 75:21: type f32[n]{I:dp}
# 76:17: type f32[n]
# 77:17: type f32[n]{I:dp}
# 85:17: type f32[s, d@tp]
# 86:17: type f32[8@tp,12]
# 87:5: `overlap` has nothing to overlap: `out` asks for no gathered operand and no scattered sum  [sharding]
# 87:5: the einsum gives f32[8,12]{U:tp}, and `out` is f32[8,12]: all-reduce over `tp`
# 87:5: fix: leave `overlap` out   [forward: all-reduce over `tp`; backward: all-reduce over `tp`]
# 89:9: `no_comm` forbids a ring of permutes over `tp` in the forward pass: `einsum[nk,km->nm]` takes f32[8,12]{U:tp} to f32[8@tp,12]  [sharding]
# 89:9: the scope is that of line 88
