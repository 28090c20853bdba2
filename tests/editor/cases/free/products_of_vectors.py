from typing import Annotated as A

import shtypes as sh


def f(
    x: A[sh.Array, "f32[n, k@dp]"],
    u: A[sh.Array, "f32[4, 3]{U:dp}"],
    v: A[sh.Array, "f32[4, 3]"],
    w: A[sh.Array, "f32[3@dp]"],
) -> None:
    reveal_type(sh.vecdot(x, x))
    reveal_type(sh.matvec(v, w))
    reveal_type(sh.kron(u, v))
    reveal_type(sh.kron(w, v[0]))
    reveal_type(sh.cross(u, v))
    reveal_type(sh.checkpoint_name(u, "kept"))
    reveal_type(sh.ldexp(v, 2))
    reveal_type(sh.random.bernoulli(sh.random.key(0), 0.5, "[8@dp]"))
    reveal_type(sh.fft.irfftn(sh.fft.rfftn(v[:, :2])))
    sh.cross(w, w)


# mypy says:
# 12:17: type f32[n]{U:dp}
# 13:17: type f32[4]{U:dp}
# 14:17: type f32[16,9]{U:dp}
# 15:17: type f32[9@dp]
# 16:17: type f32[4,3]{U:dp}
# 17:17: type f32[4,3]{U:dp}
# 18:17: type f32[4,3]
# 19:17: type bool[8@dp]
# 20:17: type f32[4,2]
# 21:5: `mul` cannot combine unreduced with unreduced on mesh axis `dp`  [sharding]
# 21:5: each device holds one term of lhs and one of rhs, and (a + b)(c + d) is not ac + bd: a term of one would meet only its own device's term of the other
# 21:5: in cross(f32[3@dp], f32[3@dp]), by mul(f32[]{U:dp}, f32[]{U:dp})
# 21:5: fix: sh.reshard(w, "[3]{I:dp}")   [forward: all-gather over `dp`; backward: none]
