"""Evaluates types as strings in the checker: with the configured mesh, policy and sizes, or else stand-ins.

A stand-in is a large number for a dim name, with which the runtime types a call of symbolic shapes. Each is larger than
the sizes that programs usually write, small enough for a host array of one dim, and a prime times a factor that every
mesh axis divides. So the result is valid for all sizes, and arithmetic in a size can be recovered: ``2*n + 1``. Large
sizes that the program writes are recorded as actual.

Calls that differ only in dim names share a cached answer, by the template of a type: rules only compare names for
equality, so ``f32[a,b@x]`` has the template ``f32[%s,%s@x]``. A name of configured size stays in the template.
Arithmetic of dims has none, since its result may depend on other names.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from shtypes.caches import Bounded
from shtypes.editor.config import Config
from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import Pattern, instance, names_in_arithmetic, pattern
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.notation.printing import show
from shtypes.types.policy import REPLICATED_STATE

_AXES: Final = r"@\s*(?:\w+|\([\w\s,]+\))"
_DIM: Final = rf"\s*(?:\d+|(?!_\b)[^\W\d]\w*)\s*(?:{_AXES}\s*)?"
#: Matches a type whose dims are sizes and names, with axes.
_PLAIN: Final = re.compile(rf"[^\[\]%]*\[(?:{_DIM}(?:,{_DIM})*)?\][^%]*")
_AXES_OR_NAME: Final = re.compile(rf"{_AXES}|([^\W\d]\w*)")
_WORD: Final = re.compile(r"[^\W\d]\w*")


class NumberedTemplate(NamedTuple):
    """A template, with the index in a `NameNumbers` of the name for each ``%s``."""

    text: str
    names: tuple[int, ...]


class Templates:
    """The cached templates of texts."""

    def __init__(self, configured: Container[str]) -> None:
        self._configured = configured
        self._read: Bounded[tuple[str, tuple[str, ...]] | None] = Bounded()

    def of(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        """The template of a type, and its dim names in order, or None."""
        return self._read[text] if text in self._read else self._read.put(text, self._template(text))

    def _template(self, text: str) -> tuple[str, tuple[str, ...]] | None:
        if _PLAIN.fullmatch(text) is None:
            return None
        names: list[str] = []

        def placeholder(match: re.Match[str]) -> str:
            name = match[1]
            if name is None or name in self._configured:
                return match[0]
            names.append(name)
            return "%s"

        start, end = text.index("["), text.index("]")
        return text[:start] + _AXES_OR_NAME.sub(placeholder, text[start:end]) + text[end:], tuple(names)


class NameNumbers:
    """Numbers the dim names of the texts of one call, in order of first appearance."""

    def __init__(self, templates: Templates) -> None:
        self._templates = templates
        self._numbers: dict[str, int] = {}

    def of(self, text: str, *, new: bool = True) -> NumberedTemplate | None:
        """The template of a type with its names numbered; None if it has none, or a name that ``new=False`` forbids."""
        pair = self._templates.of(text)
        if pair is None or not (new or self._numbers.keys() >= set(pair[1])):
            return None
        template, names = pair
        return NumberedTemplate(template, tuple([self._numbers.setdefault(n, len(self._numbers)) for n in names]))

    def mentions(self, text: str) -> bool:
        """Whether one of the numbered names is a word of a text."""
        return not self._numbers.keys().isdisjoint(_WORD.findall(text))

    def text(self, numbered: NumberedTemplate) -> str:
        """The string of a numbered template, with these names."""
        names = list(self._numbers)
        return numbered.text % tuple([names[n] for n in numbered.names])


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


#: The only axis of a mesh without mentioned axes, since the runtime takes no empty mesh.
_NO_AXIS: Final = "devices"


class Undetermined(Exception):  # noqa: N818  # not an error: nothing is reported
    """Raised if the answer depends on values, or on unknown types."""


class TextEvaluator:
    """The context in which the checker evaluates types: mesh, policy, sizes of dim names.

    Without a configured mesh, it has the axes that the types mention, of size 1, because rules use the size of an axis
    only to divide by it.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.sizes = StandInSizes(config.dims, Mesh(config.mesh).size)
        self.templates = Templates(config.dims)
        self._type_of = functools.lru_cache(maxsize=8192)(self._read)
        self._texts: dict[object, str | None] = {}
        self._meshes: dict[frozenset[str], Mesh] = {}
        self._of_texts: dict[tuple[str, Mesh], ShType] = {}  # types by their printed strings

    def mesh(self, axes: Iterable[str]) -> Mesh:
        """The mesh of values whose types mention some axes."""
        key = frozenset() if self.config.mesh else frozenset(axes)
        mesh = self._meshes.get(key)
        if mesh is None:
            mesh = self._meshes[key] = Mesh(self.config.mesh or dict.fromkeys(sorted(key) or [_NO_AXIS], 1))
        return mesh

    def knows(self, axes: Iterable[str]) -> bool:
        """Whether the sizes of mesh axes are configured."""
        return all(axis in self.config.mesh for axis in axes)

    def type_of(self, text: str, mesh: Mesh, policy: str = "") -> ShType:
        """The type of a string that is not a pattern, under the project's policy or another; or raises."""
        if policy in ("", self.config.policy):
            cached = self._of_texts.get((text, mesh))
            if cached is not None:
                return cached
        t = self._type_of(text, mesh, policy or self.config.policy)
        if t is None:
            raise Undetermined
        return t

    def _read(self, text: str, mesh: Mesh, policy: str) -> ShType | None:
        read = pattern(text)
        if is_open(read):
            return None
        for d in read.dims or ():
            self.sizes.add_written(d.size or 0)
        sizes = {d.head: d.size for d in read.dims or () if d.head and d.size is not None}
        for name in names_of(read):
            sizes.setdefault(name, self.sizes.of(name))
        return instance(read, mesh, REPLICATED_STATE[policy], sizes)

    def number(self, number: int, *of: int) -> int:
        """A number that the program writes, or computes from others; actual if all of these are.

        `Undetermined` if it is computed from stand-ins and may be an actual size.
        """
        if all(self.sizes.is_actual(abs(n)) for n in of):
            self.sizes.add_written(number)
        elif self.sizes.is_actual(abs(number)):
            raise Undetermined
        return number

    def text(self, t: ShType) -> str:
        """A printed type under the project's policy; raises if a size cannot be recovered."""
        if t.exact not in self._texts:
            self._texts[t.exact] = self._written(t)
        text = self._texts[t.exact]
        if text is None:
            raise Undetermined
        reads_back = all(self.sizes.is_actual(d.size) or d.name == self.sizes.text(d.size) for d in t.dims)
        if reads_back:  # else a dim is called otherwise
            self._of_texts.setdefault((text, t.mesh), t)
        return text

    def _written(self, t: ShType) -> str | None:
        names: list[str | None] = []
        for d in t.dims:
            if self.sizes.is_actual(d.size):
                plain = d.name is None or self.config.dims.get(d.name) == d.size
                names.append(d.name if plain else f"{d.name}={d.size}")
                continue
            text = self.sizes.text(d.size)
            if text is None:
                return None
            names.append(text)
        return show(t.named(names), self.config.policy)

    def named(self, t: ShType) -> ShType:
        """The type with dim names for stand-ins, for messages."""
        names = (d.name if self.sizes.is_actual(d.size) else self.sizes.text(d.size) for d in t.dims)
        return t.named(names)

    def words(self, error: ShardingTypeError) -> list[str]:
        """The message and reason of an error, with dim names for stand-ins."""
        texts = [self.sizes.with_names(text) for text in (error.what, error.why)]
        if None in texts:
            raise Undetermined
        return [text for text in texts if text]


def is_open(read: Pattern) -> bool:
    """Whether a pattern allows more than one type."""
    if read.dtypes is None or len(read.dtypes) != 1 or read.dims is None or read.any_state:
        return True
    return any(d.open_ended or d.head == "_" or d.keeps_axes for d in read.dims)


@functools.lru_cache(maxsize=8192)
def axes_of(text: str) -> tuple[str, ...]:
    """The mesh axes in a type."""
    return tuple(pattern(text).axes)


def names_of(read: Pattern) -> list[str]:
    """The dim names in a pattern."""
    names: list[str] = []
    for d in read.dims or ():
        if d.form == "=":
            names += names_in_arithmetic(d.head)
        elif d.head and not d.open_ended and d.head != "_":
            names.append(d.head)
    return names
