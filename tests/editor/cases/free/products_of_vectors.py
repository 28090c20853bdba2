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
# 21:5: `cross` acts along dim 0, which is sharded on mesh axis `dp`  [sharding]
# 21:5: each device holds only its slice of that dim, and the result needs all of it
# 21:5: in cross(f32[3@dp], f32[3@dp])
# 21:5: fix: sh.reshard(w, "[3]"); sh.reshard(w, "[3]{U:dp}")   [forward: all-gather over `dp`; backward: reduce-scatter over `dp`]
