"""Stand-in sizes: a large number for each dim name, with which the runtime types a call of symbolic shapes.

Each is larger than the sizes that programs usually write, small enough for a host array of one dim, and a prime times a
factor that every mesh axis divides. So the result is valid for all sizes, and arithmetic in a size can be recovered:
``2*n + 1``. Large sizes that the program writes are recorded as actual.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Final

#: Smaller sizes are actual, as are larger ones that the program writes.
ACTUAL_BELOW: Final = 10**5
#: Stand-ins are this many times larger, so that a part of one, as of a strided slice, is no actual size.
LARGEST_DIVISOR: Final = 100
_NUMBER: Final = re.compile(r"\d{6,}")
_IN_TYPE: Final = re.compile(r"(?<=[\[,])\d{6,}")
#: Stand-ins are spread over this many multiples of the factor.
_SPREAD: Final = 10**7
#: The upper bound of coefficients and offsets in recovered arithmetic: in ``3*n + 4``, the 3 and the 4.
_SMALL: Final = 2000
_SMALL_PRIMES: Final = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
#: Without a configured mesh, fixes are priced on up to four mesh axes of two devices, which divide every stand-in.
_PRICED_DEVICES: Final = 16


class StandInSizes:
    """The sizes of dim names: configured ones, and a stand-in for each other name."""

    def __init__(self, configured: Mapping[str, int], factor: int) -> None:
        self.configured, self._factor = dict(configured), factor * _PRICED_DEVICES
        self._by_name: dict[str, int] = dict(configured)
        self._names: dict[int, str] = {}
        self._written = {n for n in configured.values() if n >= ACTUAL_BELOW}

    @property
    def names(self) -> list[str]:
        """The names that have stand-ins, sorted."""
        return sorted(self._names.values())

    def of(self, name: str) -> int:
        """The size of a name; creates a stand-in if necessary."""
        size = self._by_name.get(name)
        if size is None:
            taken = self._names.keys() | self._written
            size = next(n for n in _candidates(name, self._factor) if n not in taken)
            self._by_name[name], self._names[size] = size, name
        return size

    def add_written(self, size: int) -> None:
        """Records a size that the program writes as actual."""
        if size >= ACTUAL_BELOW and size not in self._names:
            self._written.add(size)

    def is_actual(self, size: int) -> bool:
        """Whether a size is actual, and not a stand-in or computed from one."""
        return size < ACTUAL_BELOW or size in self._written

    def text(self, size: int) -> str | None:
        """A size for a printed type: a number, a name, or ``3*n + 4``; None if it is none of these."""
        if self.is_actual(size):
            return str(size)
        if size in self._names:
            return self._names[size]
        forms = [form for base in (*self._names, *self._written) if (form := self._arithmetic(size, base))]
        if not forms:
            return None
        _, name, text = min(forms)
        return text if name else str(size)

    def _arithmetic(self, size: int, base: int) -> tuple[int, str, str] | None:
        """``size`` as ``count*base + rest``: ``(abs(rest), name, text)``; no name if ``base`` is an actual size."""
        count = (size + base // 2) // base
        rest = size - count * base
        if count <= 0 or abs(rest) >= (1 if _SMALL <= count < ACTUAL_BELOW else _SMALL):
            return None
        name = self._names.get(base, "")
        if count < ACTUAL_BELOW or not name:
            product = name if count == 1 else f"{count}*{name}"
        else:
            other = self.text(count)
            if other is None:
                return None
            product = f"{name}*({other})" if " " in other else f"{name}*{other}"
        return abs(rest), name, f"{product} {'+' if rest > 0 else '-'} {abs(rest)}" if rest else product

    def any_stand_in(self, text: str) -> bool:
        """Whether a text has a stand-in, or a number computed from one."""
        return not all(map(self.is_actual, map(int, _NUMBER.findall(text))))

    def with_names(self, text: str) -> str | None:
        """A text with names in place of stand-ins; None if a large number cannot be recovered."""
        numbers = {number: self.text(int(number)) for number in _NUMBER.findall(text)}
        if None in numbers.values():
            return None
        text = _IN_TYPE.sub(lambda match: numbers[match.group()] or "", text)

        def quoted(match: re.Match[str]) -> str:
            number = match.group()
            return number if numbers[number] == number else f"`{numbers[number]}`"

        return _NUMBER.sub(quoted, text)


def _candidates(name: str, factor: int) -> Iterable[int]:
    """Candidate stand-ins for a name, best first, by a hash: far from those of other names, and deterministic."""
    digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    least = LARGEST_DIVISOR * ACTUAL_BELOW // factor + 1
    odd = itertools.count(least + 2 * (digest % (max(_SPREAD // factor, 2000))) + 1 - least % 2, 2)
    return (n * factor for n in odd if _is_prime(n))


def _is_prime(n: int) -> bool:
    """Whether a number is probably prime: trial division by small primes, then Fermat's test."""
    return all(n % p for p in _SMALL_PRIMES) and pow(2, n - 1, n) == 1
