"""Rules on paths: what a pattern matches, which rule a leaf gets, and what is said of leaves and rules without one."""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shtypes as sh
from shtypes.numerics.tree.leaves import leaves_of, path_of
from shtypes.numerics.tree.rules import covers, first_matches, matches

ONE = np.ones((8, 8), np.float32)


class Pair(NamedTuple):
    mu: Any
    nu: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    b: Any


@jax.tree_util.register_pytree_node_class
class Unnamed:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def tree_flatten(self) -> Any:
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _: Any, parts: Any) -> Unnamed:
        return cls(*parts)


def test_paths_read_alike_whatever_the_tree_is_made_of() -> None:
    tree = {"layers": [Layer(ONE, ONE), Pair(ONE, (ONE,))], "u": Unnamed(ONE)}
    paths = ["layers/0/w", "layers/0/b", "layers/1/mu", "layers/1/nu/0", "u/0"]
    assert [leaf.path for leaf in leaves_of(tree)] == paths
    assert [leaf.path for leaf in leaves_of({"mlp/~/linear": {"w": ONE}})] == ["mlp/~/linear/w"]
    assert [leaf.path for leaf in leaves_of([{3: ONE}])] == ["0/3"]
    assert [leaf.path for leaf in leaves_of(ONE)] == [""]
    assert path_of(["a.b"]) == "a.b"


MATCHES = [
    *(("**", "", True), ("**", "a/b", True), ("*", "", False), ("*", "a", True), ("*", "a/b", False)),
    *(("**/kernel", "kernel", True), ("**/kernel", "a/b/kernel", True), ("**/kernel", "a/b/kernels", False)),
    *(("**/up/kernel", "layers/0/up/kernel", True), ("**/up/kernel", "layers/0/cup/kernel", False)),
    *(("layers/*/up/*", "layers/10/up/bias", True), ("layers/*/up/*", "layers/10/more/up/bias", False)),
    *(("layers/**/bias", "layers/bias", True), ("layers/**", "layers", True), ("layer_*/w", "layer_3/w", True)),
    *(("layer_*/w", "layer_3/x/w", False), ("w?", "w1", True), ("w[01]", "w2", False), ("**/a/**/a", "a/b/a", True)),
    *(("**/a/**/a", "a", False), ("KERNEL", "kernel", False)),
    (re.compile(r".*/(q|k)/kernel"), "att/q/kernel", True),
    (re.compile(r"(q|k)/kernel"), "att/q/kernel", False),
]


@pytest.mark.parametrize(("pattern", "path", "found"), MATCHES, ids=[f"{p} {q}" for p, q, _ in MATCHES])
def test_a_pattern_matches_whole_paths(pattern: Any, path: str, found: bool) -> None:
    assert matches(pattern, path) is found


def as_regex(glob: str) -> str:
    """A glob as a regular expression of the path with `/` after each key: another implementation."""
    inside = {"*": "[^/]*", "?": "[^/]"}

    def key(part: str) -> str:
        return "".join(inside.get(c, re.escape(c)) for c in part) + "/"

    return "".join("(?:[^/]*/)*" if part == "**" else key(part) for part in glob.split("/"))


keys = st.sampled_from(["a", "b", "ab", "kernel", "0", "1"])
trees = st.recursive(
    st.sampled_from([ONE, 3, None]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Layer, inner, inner)
    ),
    max_leaves=12,
)
globs = st.lists(
    st.sampled_from(["**", "*", "a", "b", "?", "a*", "*b", "mu", "w", "0", "kernel"]), min_size=1, max_size=4
)


@given(trees, st.lists(globs, max_size=5))
def test_each_array_gets_the_first_rule_that_matches(tree: Any, parts: list[list[str]]) -> None:
    rules = [("/".join(p), None) for p in parts]
    arrays = [leaf for leaf in leaves_of(tree) if isinstance(leaf.value, np.ndarray)]
    ends = [f"{leaf.path}/" if leaf.path else "" for leaf in arrays]
    idle = [p for p, _ in rules if p != "**" and not any(re.fullmatch(as_regex(p), end) for end in ends)]
    if idle:
        with pytest.raises(sh.ShardingTypeError) as raised:
            first_matches(rules, leaves_of(tree))
        assert raised.value.what == f"the rule `{idle[0]}` matches no leaf"
    used = [rule for rule in rules if rule[0] not in idle]
    wanted = [next((i for i, (p, _) in enumerate(used) if re.fullmatch(as_regex(p), end)), None) for end in ends]
    found = zip(first_matches(used, leaves_of(tree)), leaves_of(tree), strict=True)
    assert [i for i, leaf in found if isinstance(leaf.value, np.ndarray)] == wanted


@given(globs, globs)
def test_a_glob_that_covers_another_matches_all_that_it_matches(first: list[str], second: list[str]) -> None:
    before, after = "/".join(first), "/".join(second)
    assert covers(before, before)
    assert covers("**", after)
    if covers(before, after):
        paths = ("/".join(keys) for n in range(4) for keys in itertools.product(("a", "b", "ab", "mu"), repeat=n))
        assert [path for path in paths if matches(after, path) and not matches(before, path)] == []


# what is said

MODEL = {
    "layers": [{"up": {"kernel": ONE, "bias": ONE[0]}, "act": len}, {"up": {"kernel": ONE, "bias": ONE[0]}}],
    "head": ONE,
}
WRONG: dict[str, tuple[Any, str]] = {
    "a leaf without a rule": (
        {"**/kernel": "[_, _@tp]", "head": "[...]"},
        """\
no rule matches leaf `layers/0/up/bias`, f32[8]; nor does one match 1 more
  where: WHERE
         leaf `layers/1/up/bias`, f32[8]
  why:   each array needs a type; without a rule, Flax's names for its dims give it, and it has none
  try:   `head` is a rule
  try:   `**/kernel` is a rule
  try:   a last rule ("**", "[...]") makes the others whole""",
    ),
    "a rule without a leaf": (
        {"**/up/kernl": "[_, _@tp]", "**": "[...]"},
        """\
the rule `**/up/kernl` matches no leaf
  where: WHERE
  try:   `layers/0/up/kernel` is a leaf
  try:   `layers/0/up/bias` is a leaf
  try:   `head` is a leaf""",
    ),
    "a rule that an earlier one hides": (
        {"**/kern?l": "[...]", "**/up/kernel": "[_, _@tp]", "**": "[...]"},
        """\
the rule `**/up/kernel` comes after `**/kern?l`, which matches all that it matches
  where: WHERE
  why:   the first rule that matches counts, so this one never does
  try:   `**/up/kernel` before `**/kern?l`""",
    ),
    "a regular expression without a leaf": (
        [(re.compile("layers/up/kernel"), "[...]")],
        "the rule `layers/up/kernel` matches no leaf",
    ),
    "a rule for a function": (
        {"**/act": "[...]", "**": "[...]"},
        """\
the rule `**/act` matches no leaf
  where: WHERE
  why:   `layers/0/act` is no array, but of class `builtin_function_or_method`""",
    ),
    "a type that does not fit": (
        {"**/bias": "[_, _@tp]", "**": "[...]"},
        """\
leaf `layers/0/up/bias` (rule `**/bias`): the type has 2 dims, and the array has 1
  where: WHERE
         [_, _@tp]
          ^
  why:   the array has shape (8,)""",
    ),
    "an axis that there is not": ({"**": "[_@tpp, ...]"}, "leaf `head` (rule `**`): the mesh has no axis `tpp`"),
    "a text for rules": ("[...]", "rules are pairs of a pattern and a type, not `[...]`"),
    "a number for rules": (3, "rules are pairs of a pattern and a type, not 3"),
    "numbers for pairs": ([3], "rules are pairs of a pattern and a type, not [3]"),
    "a number for a pattern": ({3: "[...]"}, "the pattern of a rule is a text or a compiled regular expression, not 3"),
    "a number for a type": ({"**": 3}, "the rule `**` has no type but 3"),
}


@pytest.mark.parametrize(("rules", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_rules_is_said_in_words(rules: Any, said: str) -> None:
    for call in (sh.tree.array, sh.tree.types):
        with sh.use_mesh(sh.make_mesh({"dp": 2, "tp": 4})), pytest.raises(sh.ShardingTypeError) as raised:
            call(MODEL, rules)
        text = re.sub(r"where: test_rules.py:\d+.*", "where: WHERE", str(raised.value))
        assert text.startswith(said)
