"""Which types the text of a signature allows, and what it says of the others."""

from __future__ import annotations

import pytest

from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import DTYPE_CLASSES, Bindings, instance, pattern, structure
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy, replicated

MESH = Mesh({"dp": 2, "tp": 4})


def reasons(text: str, *types: str, name: str = "partial") -> list[str]:
    """Why some types, one after the other, do not fit a text."""
    bindings, found = Bindings(), []
    with policy(name):
        for i, t in enumerate(types):
            fit = structure(pattern(text), ShType.parse(t, MESH), replicated())
            found += [*fit.reasons, *bindings.add(fit.claims, f"`x{i}`"), *bindings.resolve(fit)]
    return found


FITS = [
    *(("f32[s, b@dp, h]", "f32[4,8@dp,16]"), ("f32[4, b=8@dp, 16]", "f32[4,8@dp,16]"), ("[s, b@dp]", "bf16[4,8@dp]")),
    *(("f32[_, _@dp]", "f32[4,8@dp]"), ("f32[...]", "f32[4@tp,8@dp]"), ("f32[..., h]", "f32[4@tp,8@dp,16]")),
    *(("f32[*b, h]", "f32[4@tp,8@dp,16]"), ("f32[*_, h]", "f32[16]"), ("{U:tp}", "f32[4@dp]{U:tp}")),
    *(("f32[b@(dp,tp)]", "f32[8@(dp,tp)]"), ("f32[b, b*2, (b + 2)//2, b/2, b - 1]", "f32[4,8,3,2,3]")),
    *(("f32[2*b, b]", "f32[8,4]"), ("f32[b]{...}", "f32[8]{U:dp, I:tp}")),
    *(("f32[b]{U:dp, ...}", "f32[8]{U:dp, I:tp}"), ("f32[b]{..., U:dp}", "f32[8]{U:dp}"), ("i32[b]{I:dp}", "i32[8]")),
    *(("f32[]", "f32[]"), ("key<fry>[n]", "key<fry>[4]")),
]


@pytest.mark.parametrize(("text", "t"), FITS)
def test_a_text_allows(text: str, t: str) -> None:
    assert reasons(text, t) == []


REFUSED = [
    ("f32[s, b@dp]", "bf16[4,8@dp]", "its dtype is `bf16`"),
    ("f32[s, b@dp]", "f32[4,8]", "dim 1 (`b`) is not sharded, and the signature has it sharded over `dp`"),
    ("f32[s, b]", "f32[4,8@dp]", "dim 1 (`b`) is sharded over `dp`, and the signature has it not sharded"),
    (
        "f32[b@(dp,tp)]",
        "f32[8@(tp,dp)]",
        "dim 0 (`b`) is sharded over `(tp,dp)`, and the signature has it sharded over ",
    ),
    ("f32[_, 8@dp]", "f32[4,16@dp]", "dim 1 has size 16, not 8"),
    ("f32[_, b=8@dp]", "f32[4,16@dp]", "dim 1 has size 16, not 8"),
    ("f32[b, b]", "f32[4,8]", "dim 1 has size 8, and `b` is 4 by `x0`"),
    ("f32[a, b]", "f32[4]", "it has 1 dim, and the signature 2 dims"),
    ("f32[a, ..., b]", "f32[4]", "it has 1 dim, and the signature 2 dims or more"),
    ("f32[a]{U:tp}", "f32[4]", "mesh axis `tp` is reduced, and the signature has it unreduced"),
    (
        "f32[a]",
        "f32[4]{U:tp}",
        "mesh axis `tp` is unreduced, and the signature has it reduced, because it does not mention it",
    ),
    ("f32[...]", "f32[4]{I:dp}", "mesh axis `dp` is invariant, and the signature has it reduced, because"),
    ("f32[b, 2*b]", "f32[4,4]", "dim 1 has size 4, and `2*b` is 8"),
    ("f32[b, c/3]", "f32[4,4]", "nothing says what `c` in `c/3` is"),
    ("f32[b, b/3]", "f32[4,4]", "`b/3` is no whole number: 4 / 3"),
    ("f32[b, 4//(b - 4)]", "f32[4,4]", "`4//(b - 4)` divides by zero"),
]


@pytest.mark.parametrize(("text", "t", "why"), REFUSED)
def test_a_text_refuses(text: str, t: str, why: str) -> None:
    (found,) = reasons(text, t)
    assert found.startswith(why)


def test_what_a_text_does_not_mention_follows_the_policy() -> None:
    assert reasons("f32[a]", "f32[4]{I:(dp,tp)}", name="jax") == []
    assert reasons("f32[a]", "f32[4]{R:dp}", name="jax")
    assert reasons("f32[a]", "f32[4]{R:(dp,tp)}", name="partial") == []


def test_the_dims_of_a_variadic_name_are_the_same_everywhere_sharding_included() -> None:
    assert reasons("f32[*b, h]", "f32[4,8@dp,16]", "f32[4,8@dp,16]") == []
    (found,) = reasons("f32[*b, h]", "f32[4,8@dp,16]", "f32[4,8,16]")
    assert found == "`b` stands for [4, 8] here, and for [4, 8@dp] by `x0`"
    assert reasons("f32[..., h]", "f32[4,8@dp,16]", "f32[8,16]") == []


@pytest.mark.parametrize("word", DTYPE_CLASSES)
def test_a_word_allows_its_dtypes(word: str) -> None:
    for t in ("f32", "bf16", "f8_e4m3fn", "i32", "u8", "c64", "bool", "key<fry>"):
        assert (not reasons(f"{word}[...]", f"{t}[4]")) == (t in DTYPE_CLASSES[word])


@pytest.mark.parametrize(
    ("text", "what", "column"),
    [
        *(("f33[a]", "there is no dtype `f33`", 0), ("f32[a,", "cannot read the type: expected a size", 6)),
        ("f32[a b]", "cannot read `a b` as arithmetic of dims", 4),
        ("f32[2**a]", "cannot read `2**a` as arithmetic of dims", 4),
        ("f32[f(a)]", "cannot read `f(a)` as arithmetic of dims", 4),
        ("f32[2.5*a]", "cannot read `2.5*a` as arithmetic of dims", 4),
        ("f32[*]", "expected the name of any number of dims", 5),
        ("f32[..., *a]", "a type has `...` or a dim like `*batch` at most once", 9),
        ("f32[..., ...]", "a type has `...` at most once", 9),
        *(("f32[a@x, b@x]", "mesh axis `x` is written twice", 11), ("f32[a]{W:x}", "there is no state `W`", 7)),
    ],
)
def test_a_text_that_is_none_is_refused_at_its_column(text: str, what: str, column: int) -> None:
    with pytest.raises(ShardingTypeError) as error:
        pattern(text)
    assert what in error.value.what
    assert error.value.where == f"{text}\n{' ' * column}^"


def test_an_axis_that_the_mesh_has_not_is_named() -> None:
    with pytest.raises(ShardingTypeError, match="the mesh has no axis `pt`; it has `dp`, `tp`") as error:
        structure(pattern("f32[a@pt]"), ShType.parse("f32[4]", MESH), replicated())
    assert error.value.where == "f32[a@pt]\n      ^"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        *(("f32[s, b@dp]", "f32[4,8@dp]"), ("f32[s, b]{U:tp}", "f32[4,8]{U:tp}"), ("f32[*any]", "f32[4,8]")),
        *(("f32[4, 9]", None), ("i32[s, b]", None), ("f32[s, b@(dp,tp)]", "f32[4,8@(dp,tp)]")),
        ("f32[s@(dp,tp), b]", None),
    ],
)
def test_the_type_that_a_text_asks_for_keeps_shape_and_dtype(text: str, wanted: str | None) -> None:
    found = structure(
        pattern(text), ShType.parse("f32[4,8@tp]" if "any" not in text else "f32[4,8]{I:tp}", MESH), replicated()
    )
    assert (found.goal and str(found.goal)) == wanted


def test_a_text_that_leaves_nothing_open_is_one_type() -> None:
    sizes = {"b": 8}
    found = instance(pattern("f32[seq=4, b@dp, 2*b]{U:tp}"), MESH, replicated(), sizes)
    assert str(found) == "f32[seq, b@dp, 16]{U:tp}"
    assert found.shape == (4, 8, 16)
    assert sizes == {"b": 8, "seq": 4}


@pytest.mark.parametrize(
    ("text", "named"),
    [("[4]", "the dtype"), ("float[4]", "the dtype"), ("f32[_]", "`_`"), ("f32[...]", "`...`"), ("f32[*a]", "`*a`"),
     ("f32[a]", "the size of `a`"), ("f32[2*a]", "the size of `a`"), ("f32{U:tp}", "`...`")],
)  # fmt: skip
def test_a_text_that_leaves_something_open_is_no_type(text: str, named: str) -> None:
    with pytest.raises(ShardingTypeError) as error:
        instance(pattern(text), MESH, replicated(), {})
    assert error.value.what == f"the signature leaves {named} open"
