"""Sizes that stand for dim names.

The runtime computes with numbers, and an annotated function holds for any. So each name stands for a number of its own:
larger than the sizes that programs usually write, small enough for a host array of one dim, and prime but for a factor
that every mesh axis divides. What the runtime says of such numbers it says of all sizes, and what comes out of
arithmetic can be read back. A larger size that is written is remembered, so that it is not taken for a name. Pure.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Final

#: Numbers that stand for names are larger. A size that is written is taken for a number, whatever it is.
LEAST: Final = 10**5
_NUMBER: Final = re.compile(r"\d{6,}")
_IN_TYPE: Final = re.compile(r"(?<=[\[,])\d{6,}")
#: The numbers are spread over so many multiples of the factor.
_SPREAD: Final = 10**6
#: What arithmetic adds to names is smaller, and so is what multiplies them.
_SMALL: Final = 2000
_SMALL_PRIMES: Final = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
#: Four mesh axes of two devices: what fixes are priced on where no mesh is configured.
AXES: Final = 16


class Sizes:
    """The sizes of dim names: those that are configured, and for the others numbers that stand for them."""

    def __init__(self, known: Mapping[str, int], factor: int) -> None:
        self.known, self._factor = dict(known), factor * AXES
        self._of: dict[str, int] = dict(known)
        self._names: dict[int, str] = {}
        self._written = {n for n in known.values() if n >= LEAST}

    @property
    def names(self) -> list[str]:
        """The names that numbers stand for."""
        return sorted(self._names.values())

    def of(self, name: str) -> int:
        """The size of a name."""
        size = self._of.get(name)
        if size is None:
            taken = self._names.keys() | self._written
            size = next(n for n in _candidates(name, self._factor) if n not in taken)
            self._of[name], self._names[size] = size, name
        return size

    def write(self, size: int) -> None:
        """Remembers a size that the program writes."""
        if size >= LEAST and size not in self._names:
            self._written.add(size)

    def is_known(self, size: int) -> bool:
        """Whether a size is a number of elements, and none that stands for a name."""
        return size < LEAST or size in self._written

    def text(self, size: int) -> str | None:
        """A size as a text writes it: a number, a name, or arithmetic of a name; None where it is none of them."""
        if self.is_known(size):
            return str(size)
        if size in self._names:
            return self._names[size]
        forms = [form for one in (*self._names, *self._written) if (form := self._arithmetic(size, one))]
        if not forms:
            return None
        _, name, text = min(forms)
        return text if name else str(size)

    def _arithmetic(self, size: int, one: int) -> tuple[int, str, str] | None:
        """``3*n + 4`` of ``n``: how much it adds, the name, and the text; no name of a number that is written."""
        count = (size + one // 2) // one
        rest = size - count * one
        if count <= 0 or abs(rest) >= (1 if _SMALL <= count < LEAST else _SMALL):
            return None
        name = self._names.get(one, "")
        if count < LEAST or not name:
            product = name if count == 1 else f"{count}*{name}"
        else:
            other = self.text(count)
            if other is None:
                return None
            product = f"{name}*({other})" if " " in other else f"{name}*{other}"
        return abs(rest), name, f"{product} {'+' if rest > 0 else '-'} {abs(rest)}" if rest else product

    def any_in(self, text: str) -> bool:
        """Whether a number in a text stands for a name, or comes from one."""
        return not all(map(self.is_known, map(int, _NUMBER.findall(text))))

    def in_words(self, text: str) -> str | None:
        """A text with names in place of the numbers that stand for them; None where one stands for no name."""
        numbers = {number: self.text(int(number)) for number in _NUMBER.findall(text)}
        if None in numbers.values():
            return None
        text = _IN_TYPE.sub(lambda match: numbers[match.group()] or "", text)

        def quoted(match: re.Match[str]) -> str:
            number = match.group()
            return number if numbers[number] == number else f"`{numbers[number]}`"

        return _NUMBER.sub(quoted, text)


def _candidates(name: str, factor: int) -> Iterable[int]:
    """The numbers for a name, best first: far from those of other names, and the same in every run."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    least = max(LEAST // factor, 100)
    odd = itertools.count(least + 2 * (digest % (max(_SPREAD // factor, 2000))) + 1 - least % 2, 2)
    return (n * factor for n in odd if n * factor >= LEAST and _is_prime(n))


def _is_prime(n: int) -> bool:
    """Whether a number is prime, as nearly as it matters: by small factors, and by Fermat's test."""
    return all(n % p for p in _SMALL_PRIMES) and pow(2, n - 1, n) == 1
