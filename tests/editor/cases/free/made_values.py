import shtypes as sh


def f() -> None:
    reveal_type(sh.zeros("f32[4, 8@dp]"))
    reveal_type(sh.ones("f32[n, m@tp]{U:dp}"))
    reveal_type(sh.zeros((4, 8)))
    reveal_type(sh.full("i32[n]", 3))
    reveal_type(sh.zeros_like(sh.zeros("f32[n@dp]")))
    reveal_type(sh.array([1.0, 2.0], "f32[2@dp]"))
    reveal_type(sh.array([1.0, 2.0]))


# mypy says:
# 5:17: type f32[4,8@dp]
# 6:17: type f32[n, m@tp]{U:dp}
# 7:17: type f32[4,8]
# 8:17: type i32[n]
# 9:17: type f32[n@dp]
# 10:17: type f32[2@dp]
# 11:17: type f32[2]
