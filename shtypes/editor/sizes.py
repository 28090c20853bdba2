"""Sizes that stand for dim names.

The rules compute with numbers, and a function that is annotated holds for any. So each name stands for a number of its
own, far larger than any size that is written, and prime but for a factor that every mesh axis divides: what the rules
find for such numbers they find for all sizes, and what comes out of their arithmetic can be read back. Pure.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Final

#: Every size that is written is smaller, and every number that stands for a name is not.
LEAST: Final = 10**12
_NUMBER: Final = re.compile(r"\d{13,}")
_IN_TYPE: Final = re.compile(r"(?<=[\[,])\d{13,}")
#: What arithmetic has besides names is smaller.
_SMALL: Final = 10**6
_SPREAD: Final = 10**14
_SMALL_PRIMES: Final = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)


class Sizes:
    """The sizes of dim names: those that are configured, and for the others numbers that stand for them.

    Args:
        known: The sizes that are configured.
        factor: What each number is a multiple of: the number of devices, as far as it is known.
    """

    def __init__(self, known: Mapping[str, int], factor: int) -> None:
        self.known, self._factor = dict(known), factor
        self._of: dict[str, int] = dict(known)
        self._names: dict[int, str] = {}

    @property
    def names(self) -> list[str]:
        """The names that numbers stand for."""
        return sorted(self._names.values())

    def of(self, name: str) -> int:
        """The size of a name."""
        found = self._of.get(name)
        if found is None:
            found = self._of[name] = _prime_of(name) * self._factor
            self._names[found] = name
        return found

    def is_known(self, size: int) -> bool:
        """Whether a size is a number of elements, and none that stands for a name."""
        return size < LEAST

    def text(self, size: int, names: Iterable[str] = ()) -> str | None:
        """A size as a text writes it: a number, a name, or arithmetic of some names; None where it is neither."""
        if size < LEAST:
            return str(size)
        if size in self._names:
            return self._names[size]
        return next(filter(None, (self._arithmetic(size, name, names) for name in names)), None)

    def _arithmetic(self, size: int, name: str, names: Iterable[str]) -> str | None:
        one = self._of.get(name, 0)
        if one < LEAST:
            return None
        count, rest = divmod(size, one)
        rest = rest if rest < one // 2 else rest - one
        count = (size - rest) // one
        if count <= 0 or abs(rest) >= _SMALL or _SMALL <= count < LEAST:
            return None
        times = self._product(count, name, names)
        return times if not rest or times is None else f"{times} {'+' if rest > 0 else '-'} {abs(rest)}"

    def _product(self, count: int, name: str, names: Iterable[str]) -> str | None:
        """So many times a name, where the number may stand for another one."""
        if count < LEAST:
            return name if count == 1 else f"{count}*{name}"
        other = self.text(count, names)
        return None if other is None else f"{name}*({other})" if " " in other else f"{name}*{other}"

    def in_words(self, text: str) -> str | None:
        """A text with names in place of the numbers that stand for them; None where one stands for no name."""
        numbers = {number: self.text(int(number)) for number in _NUMBER.findall(text)}
        if None in numbers.values():
            return None
        text = _IN_TYPE.sub(lambda found: numbers[found.group()] or "", text)
        return _NUMBER.sub(lambda found: f"`{numbers[found.group()]}`", text)


def stands_for_a_name(size: int) -> bool:
    """Whether a size is that of a name, or comes from one."""
    return size >= LEAST


def _prime_of(name: str) -> int:
    """The prime number of a name: far from those of the others, and the same in every run."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return next(n for n in itertools.count(LEAST + 2 * (digest % _SPREAD) + 1, 2) if _is_prime(n))


def _is_prime(n: int) -> bool:
    """Whether a number is prime, as nearly as it matters: by small factors, and by Fermat's test."""
    return all(n % p for p in _SMALL_PRIMES) and pow(2, n - 1, n) == 1
