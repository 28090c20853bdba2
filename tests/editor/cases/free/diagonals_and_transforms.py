from typing import Annotated as A

import shtypes as sh


def f(m: A[sh.Array, "f32[n@dp, n]"], v: A[sh.Array, "f32[k@dp]"], x: A[sh.Array, "f32[b@dp, 8]"]) -> None:
    reveal_type(sh.diag(v))
    reveal_type(sh.diag(m))
    reveal_type(sh.trace(m))
    reveal_type(sh.fft.fft(x))
    reveal_type(sh.fft.rfft(x))
    sh.fft.fft(x, axis=0)
    sh.diag(v, 1)


# mypy says:
# 7:17: type f32[k@dp, k]
# 8:17: type f32[n@dp]
# 9:17: type f32[]{U:dp}
# 10:17: type c64[b@dp, 8]
# 11:17: type c64[b@dp, 5]
# 12:5: `fft` acts along dim 1 (`b`), which is sharded on mesh axis `dp`  [sharding]
# 12:5: each device holds only its slice of that dim, and the result needs all of it
# 12:5: in fft.fft(f32[b@dp, 8]), by fft(c64[8, b@dp])
# 12:5: fix: sh.reshard(x, "[b, 8]{U:dp}")   [free, but each device holds all of it]
# 13:5: `pad` acts along dim 0 (`k`), which is sharded on mesh axis `dp`  [sharding]
# 13:5: each device holds only its slice of that dim, and the result needs all of it
# 13:5: in diag(f32[k@dp]), by pad(f32[k@dp])
# 13:5: fix: sh.reshard(v, "[k]{U:dp}")   [free, but each device holds all of it]
