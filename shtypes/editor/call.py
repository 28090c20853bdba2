"""A call of an op as its typing reads it: operands, what is known of the other arguments, and the mesh. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from shtypes.editor.space import Space, Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.typing import Typing
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.policy import current_policy


class Number(NamedTuple):
    """A Python number among the operands; ``value`` is None where it is not known."""

    kind: str  # bool, int, float or complex
    value: Any = None


Operand = ShType | Number
Rule = Callable[[tuple[ShType, ...]], Typing]


class Argument(Protocol):
    """One argument of a call."""

    def operand(self, mesh: Mesh) -> Operand:
        """The type that it has over a mesh, or the number that it is.

        Raises:
            Unknown: it has no type that is known.
        """

    def operands(self, mesh: Mesh) -> list[Operand]:
        """The same of each item of a tuple or list."""

    def static(self) -> Any:
        """Its value.

        Raises:
            Unknown: it is not written out.
        """

    def function(self) -> str:
        """The name of the function of JAX or of this library that it is."""

    def entries(self) -> list[Any]:
        """Of what stands between brackets: the value of each part, and arguments in place of arrays."""


class Move(NamedTuple):
    """A value in another type."""

    name: str  # what moves it, as messages call it
    src: ShType
    dst: ShType
    inserted: bool = False  # whether a rule inserted it


class Refused(NamedTuple):
    """What a rule refused, for the fixes."""

    name: str
    rule: Rule
    types: tuple[ShType, ...]


REQUIRED: Final[Any] = object()


class Call:
    """A call of an op.

    Args:
        name: The op: a name in `OPS`.
        given: The arguments by the names of the parameters; of ``*xs`` and ``**xs`` several.
        mesh: The mesh.
        space: What texts mean.
        keywords: The arguments that ``**xs`` takes, by name.
        receiver: Of a method, the array: the operand that no parameter has.

    Attributes:
        moves: The reshards of the call, and the casts that rules insert: the name, and the types before and after.
        refused: What a rule refused.
    """

    def __init__(
        self,
        name: str,
        given: Mapping[str, Sequence[Argument]],
        mesh: Mesh,
        space: Space,
        keywords: Mapping[str, Argument],
        receiver: Argument | None = None,
    ) -> None:
        self.name, self.given, self.mesh, self.space, self.keywords = name, given, mesh, space, keywords
        self._receiver = receiver
        self.read: list[tuple[Argument, Operand]] = []
        self.moves: list[Move] = []
        self.refused: Refused | None = None

    # arguments

    def has(self, name: str) -> bool:
        """Whether an argument is given."""
        return bool(self.given.get(name)) or name in self.keywords

    def given_as_value(self, name: str) -> bool:
        """Whether an argument is given that is not None."""
        if not self.has(name):
            return False
        try:
            return self.static(name) is not None
        except Unknown:
            return True

    def _first(self, name: str) -> Argument:
        """What is given for a parameter, or by its name for one of ``**xs``."""
        return self.given[name][0] if self.given.get(name) else self.keywords[name]

    def operand(self, *names: str) -> Operand:
        """The operand that the first of some parameters has."""
        for name in names:
            if self.has(name):
                return self.read_operand(self._first(name))
        if self._receiver is None:
            raise Unknown
        return self.read_operand(self._receiver)

    def read_operand(self, argument: Argument) -> Operand:
        """An argument as an operand."""
        found = argument.operand(self.mesh)
        self.read.append((argument, found))
        return found

    def array(self, *names: str) -> ShType:
        """The same; it is an array."""
        found = self.operand(*names)
        if isinstance(found, Number):
            raise Unknown
        return found

    def several(self, name: str) -> list[Operand]:
        """The operands of ``*name``, or those in a tuple or list."""
        arguments = self.given.get(name, ())
        if not arguments:
            raise Unknown
        return [self.read_operand(a) for a in arguments]

    def listed(self, *names: str) -> list[Operand]:
        """The operands in a tuple or list."""
        for name in names:
            if self.has(name):
                return self._first(name).operands(self.mesh)
        raise Unknown

    def static(self, name: str, default: Any = REQUIRED) -> Any:
        """The value of a parameter."""
        if self.has(name):
            return self._first(name).static()
        if default is REQUIRED:
            raise Unknown
        return default

    def statics(self, name: str) -> list[Any]:
        """The values of ``*name``."""
        return [a.static() for a in self.given.get(name, ())]

    def only(self, *names: str) -> None:
        """Nothing is known of calls that give any other parameter than these, but for None."""
        for name, arguments in self.given.items():
            if name not in names and any(a.static() is not None for a in arguments):
                raise Unknown

    def has_pending(self) -> bool:
        """Whether an operand is a pending sum."""
        return any(isinstance(t, ShType) and State.UNREDUCED in t.states for _, t in self.read)

    # typing

    def typed(self, name: str, rule: Rule, *types: ShType) -> ShType:
        """The type that a rule gives the one result of an op of some operands."""
        return self.typed_all(name, rule, types)[0]

    def typed_all(self, name: str, rule: Rule, types: Sequence[ShType]) -> tuple[ShType, ...]:
        """The types that a rule gives the results."""
        try:
            found = rule(tuple(types))
        except ShardingTypeError:
            self.refused = self.refused or Refused(name, rule, tuple(types))
            raise
        casts = zip(types, found.operands, strict=True)
        self.moves += [Move(name, src, dst, inserted=True) for src, dst in casts if src != dst]
        return found.results

    # texts

    def closed(self, text: str) -> ShType:
        """The one type that a text names."""
        return self.space.closed(text, self.mesh, current_policy())

    def knows(self, axes: Iterable[str]) -> bool:
        """Whether the sizes of mesh axes are known."""
        return self.space.knows(axes)


def constant(mesh: Mesh, dtype: str, shape: Iterable[int] = ()) -> ShType:
    """The type of an array without a gradient that is not typed: reduced, which casts freely."""
    return ShType(mesh, dtype, list(shape), dict.fromkeys(mesh.axis_names, State.REDUCED))


def arrays(values: Iterable[Operand]) -> tuple[ShType, ...]:
    """The arrays among some operands."""
    return tuple(v for v in values if isinstance(v, ShType))


def held(values: Sequence[ShType]) -> frozenset[int]:
    """Which operands have no gradient."""
    return frozenset(i for i, t in enumerate(values) if not t.differentiable)
