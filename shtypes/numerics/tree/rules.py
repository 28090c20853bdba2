"""Rules for the leaves of a pytree: matches patterns with paths, and reports mismatches."""

from __future__ import annotations

import difflib
import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from shtypes.errors import ShardingTypeError
from shtypes.numerics.tree.leaves import Leaf
from shtypes.types import ShType
from shtypes.types.target import Spec, Target

#: A glob for the path of a leaf, or a regular expression for the full path.
Pattern: TypeAlias = "str | re.Pattern[str]"
#: Patterns, and the types of the leaves that they match.
Rules: TypeAlias = (
    "Mapping[str, Target | None] | Mapping[re.Pattern[str], Target | None] | Mapping[Pattern, Target | None]"
    " | Iterable[tuple[Pattern, Target | None]]"
)

#: The pattern that matches all leaves, and may match none.
REST: Final = "**"
#: The wildcards in a key of a glob.
_WILD: Final = frozenset("*?[")
#: The maximum number of paths or patterns in a message.
_MAX_LISTED: Final = 3


def read_rules(spec: Any) -> tuple[tuple[Pattern, Target | None], ...]:
    """The rules of a user's mapping or pairs, checked."""
    example = ['{"**/kernel": "[_, mlp@tp]", "**": "[...]"}']
    if isinstance(spec, (str, ShType)):
        what = f"rules are pairs of a pattern and a type, not `{spec}`"
        raise ShardingTypeError(what, hints=[f'{{"**": "{spec}"}}'])
    try:
        rules = tuple((p, t) for p, t in (spec.items() if isinstance(spec, Mapping) else spec))
    except (TypeError, ValueError):
        raise ShardingTypeError(f"rules are pairs of a pattern and a type, not {spec!r:.60}", hints=example) from None
    for pattern, target in rules:
        if not isinstance(pattern, str) and not (isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str)):
            what = f"the pattern of a rule is a text or a compiled regular expression, not {pattern!r:.60}"
            raise ShardingTypeError(what, hints=example)
        if target is not None and not isinstance(target, (str, ShType, Spec)):
            what = f"the rule `{pattern_text(pattern)}` has no type but {target!r:.60}"
            raise ShardingTypeError(what, hints=["a type's text, an sh.ShType, a jax.P, or None"])
    _check_order([pattern for pattern, _ in rules if isinstance(pattern, str)])
    return rules


def _check_order(globs: Sequence[str]) -> None:
    """Refuses a glob that is shadowed, on any pytree, by an earlier one."""
    for i, pattern in enumerate(globs):
        before = next((other for other in globs[:i] if covers(other, pattern)), None)
        if before is not None:
            raise ShardingTypeError(
                f"the rule `{pattern}` comes after `{before}`, which matches all that it matches",
                why="the first rule that matches counts, so this one never does",
                hints=[f"`{pattern}` before `{before}`"],
            )


def covers(pattern: str, other: str) -> bool:
    """Whether a glob matches every path that another one matches, as far as their keys show."""
    return _glob(tuple(pattern.split("/")), tuple(other.split("/")), _covers_key)


def _covers_key(other: str, part: str) -> bool:
    """Whether one key of a glob matches all that a key of another one matches."""
    if _WILD.isdisjoint(other):
        return fnmatch.fnmatchcase(other, part)
    return other != REST and part in ("*", other)


def pattern_text(pattern: Pattern) -> str:
    """The text of a pattern."""
    return pattern if isinstance(pattern, str) else pattern.pattern


def matches(pattern: Pattern, path: str) -> bool:
    """Whether a pattern matches a path: ``**`` is any number of keys; ``*``, ``?`` and ``[abc]`` apply within one."""
    if isinstance(pattern, re.Pattern):
        return pattern.fullmatch(path) is not None
    return _glob(tuple(pattern.split("/")), tuple(path.split("/")) if path else (), fnmatch.fnmatchcase)


@functools.lru_cache(maxsize=65536)
def _glob(parts: tuple[str, ...], keys: tuple[str, ...], matches_key: Callable[[str, str], bool]) -> bool:
    """Whether the parts of a glob match keys, each by ``matches_key(key, part)``."""
    if not parts:
        return not keys
    if parts[0] == REST:
        return _glob(parts[1:], keys, matches_key) or (bool(keys) and _glob(parts, keys[1:], matches_key))
    return bool(keys) and matches_key(keys[0], parts[0]) and _glob(parts[1:], keys[1:], matches_key)


def first_matches(rules: Sequence[tuple[Pattern, Any]], leaves: Sequence[Leaf]) -> list[int | None]:
    """The index of the first rule that matches each leaf, or None; an error if a rule matches no array."""
    paths = [leaf.path if leaf.is_array else None for leaf in leaves]
    indices = [
        next((i for i, (p, _) in enumerate(rules) if path is not None and matches(p, path)), None) for path in paths
    ]
    for i, (pattern, _) in enumerate(rules):
        used = pattern == REST or i in indices or any(path is not None and matches(pattern, path) for path in paths)
        if not used:
            raise _unused(pattern, leaves)
    return indices


def _unused(pattern: Pattern, leaves: Sequence[Leaf]) -> ShardingTypeError:
    paths = [leaf.path for leaf in leaves if leaf.is_array]
    others = [leaf for leaf in leaves if not leaf.is_array and matches(pattern, leaf.path)]
    why = "the tree has no arrays" if not paths else ""
    if others:
        why = f"`{others[0].path}` is no array, but of class `{type(others[0].value).__name__}`"
    closest = sorted(paths, key=lambda path: -_similarity(pattern, path))
    return ShardingTypeError(
        f"the rule `{pattern_text(pattern)}` matches no leaf",
        why=why,
        hints=[f"`{path}` is a leaf" for path in _one_per_layer(closest)],
    )


def unmatched(leaves: Sequence[Leaf], rules: Sequence[tuple[Pattern, Any]]) -> ShardingTypeError:
    """The error for leaves without a rule."""
    leaf, count = leaves[0], len(leaves)
    more = "" if count == 1 else f"; nor does one match {count - 1} more"
    closest = sorted((p for p, _ in rules), key=lambda pattern: -_similarity(pattern, leaf.path))[:_MAX_LISTED]
    others = [str(other) for other in leaves[1 : _MAX_LISTED + 1]] + ["…"] * (count > _MAX_LISTED + 1)
    return ShardingTypeError(
        f"no rule matches {leaf}{more}",
        where="\n".join(others),
        why="each array needs a type; without a rule, Flax's names for its dims give it, and it has none",
        hints=[
            *(f"`{pattern_text(p)}` is a rule" for p in closest),
            'a last rule ("**", "[...]") makes the others whole',
        ],
    )


def _similarity(pattern: Pattern, path: str) -> float:
    """A similarity of a pattern and a path, by the keys that the pattern has."""
    if isinstance(pattern, re.Pattern):
        return difflib.SequenceMatcher(None, pattern.pattern, path).ratio()
    parts = [part for part in pattern.split("/") if part != REST]
    keys = path.split("/")
    closest = keys[-len(parts) :] if pattern.startswith(REST) else keys[: len(parts)]
    return difflib.SequenceMatcher(None, "/".join(parts), "/".join(closest)).ratio()


def _one_per_layer(paths: Sequence[str]) -> list[str]:
    """The first paths, without those that differ from an earlier one only in numbers, as layers do."""
    by_form: dict[str, str] = {}
    for path in paths:
        by_form.setdefault(re.sub(r"\d+", "0", path), path)
        if len(by_form) == _MAX_LISTED:
            break
    return [*by_form.values()]
