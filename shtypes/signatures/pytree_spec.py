"""The requirements of signatures on values: pytrees of patterns, and the values that do not fit."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import jax

from shtypes.core.array import Array
from shtypes.core.jax_type import HiShType
from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import Bindings, Pattern, Structure, instance, structure, with_scoped_axes
from shtypes.types import ShType, State
from shtypes.types.mesh import Mesh
from shtypes.types.notation.dim_names import current_dim_axes


class Problem(NamedTuple):
    """A value that does not fit."""

    path: str  # such as ``x``, ``params['w']``, ``result[0]``
    expected: str  # the pattern
    got: str  # the value's type or description
    reasons: tuple[str, ...]
    actual: ShType | None = None  # its type, if it has one
    pattern: Pattern | None = None
    owner: tuple[type, str] | None = None  # the class and the field that have the pattern, if any


class Checking:
    """The state of one check of the values of a call.

    Attributes:
        bindings: The values of dim names.
        problems: The values that do not fit, in order.
        texts: The pattern of each checked value, by the value's id.
    """

    def __init__(self, bindings: Bindings, replicated: State) -> None:
        self.bindings, self.replicated = bindings, replicated
        self.problems: list[Problem] = []
        self.texts: dict[int, Pattern] = {}
        self._later: list[tuple[Structure, Problem]] = []

    def leaf(self, pattern: Pattern, value: Any, path: str, owner: tuple[type, str] | None) -> None:
        """Checks one value against a pattern."""
        t = type_of(value)
        self.texts[id(value)] = pattern
        if t is None:
            why = "it has no sharding type"
            self.problems.append(Problem(path, pattern.text, describe(value), (why,), pattern=pattern, owner=owner))
            return
        pattern = with_scoped_axes(pattern, t.mesh, current_dim_axes())
        fit = structure(pattern, t, self.replicated)
        reasons = fit.reasons
        if fit.claims:
            reasons = (*reasons, *self.bindings.add(fit.claims, f"`{path}`"))
        if reasons or fit.arithmetic:
            problem = Problem(path, pattern.text, str(t), tuple(reasons), t, pattern, owner)
            if reasons:
                self.problems.append(problem)
            else:
                self._later.append((fit, problem))

    def resolve(self) -> None:
        """Checks the arithmetic dims, now that more names have sizes."""
        for fit, problem in self._later:
            reasons = self.bindings.resolve(fit)
            if reasons:
                self.problems.append(problem._replace(reasons=tuple(reasons)))
        self._later = []

    def try_match(self, node: Node, value: Any, path: str, owner: tuple[type, str] | None) -> Checking:
        """Checks a value on a copy of the state, for `take` to accept."""
        trial = Checking(self.bindings.copy(), self.replicated)
        node.check(value, path, trial, owner)
        return trial

    def take(self, trial: Checking) -> None:
        """Accepts the state of a `try_match`."""
        self.bindings.values = trial.bindings.values
        self.problems += trial.problems
        self.texts |= trial.texts
        self._later += trial._later


class Node:
    """The requirement of an annotation on a value."""

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        """Checks a value, and records what does not fit."""
        raise NotImplementedError

    def example(self, settings: ExampleSettings) -> Any:
        """An abstract value that fits, if the patterns determine one."""
        raise settings.open(self)


@dataclasses.dataclass
class ExampleSettings:
    """Settings for building examples."""

    mesh: Mesh
    replicated: State
    sizes: dict[str, int]
    make: Callable[[ShType], Any]

    def open(self, node: Node) -> ShardingTypeError:
        """The error for an annotation that does not determine the number of values."""
        return ShardingTypeError(
            f"the annotation leaves the structure of a value open ({type(node).__name__.lower()})",
            hints=["give the types of the arguments"],
        )


@dataclasses.dataclass(frozen=True)
class Leaf(Node):
    """One typed value."""

    pattern: Pattern

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        into.leaf(self.pattern, value, path, owner)

    def example(self, settings: ExampleSettings) -> Any:
        return settings.make(instance(self.pattern, settings.mesh, settings.replicated, settings.sizes))


@dataclasses.dataclass(frozen=True)
class Typed(Node):
    """One value of any sharding type: the annotation is `Array` itself."""

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        if type_of(value) is None:
            why = ("it has no sharding type",)
            into.problems.append(Problem(path, "a typed value", describe(value), why, owner=owner))


@dataclasses.dataclass(frozen=True)
class AllOf(Node):
    """Every typed value in a pytree has one pattern."""

    pattern: Pattern

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        for keys, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if type_of(leaf) is not None or hasattr(leaf, "dtype"):
                into.leaf(self.pattern, leaf, path + jax.tree_util.keystr(keys), owner)


@dataclasses.dataclass(frozen=True)
class Sequence(Node):
    """A list, or a tuple of any length, of items with one annotation."""

    item: Node
    kind: ClassVar[tuple[type, str]] = (collections.abc.Sequence, "sequence")

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        kind, name = self.kind
        if not isinstance(value, kind):
            into.problems.append(Problem(path, f"a {name}", describe(value), (f"it is no {name}",), owner=owner))
            return
        for key, item in self.items_of(value):
            self.item.check(item, f"{path}[{key!r}]", into, owner)

    def items_of(self, value: Any) -> Iterable[tuple[Any, Any]]:
        return enumerate(value)


class MappingOf(Sequence):
    """A mapping of values with one annotation."""

    kind = (collections.abc.Mapping, "mapping")

    def items_of(self, value: Any) -> Iterable[tuple[Any, Any]]:
        items: Iterable[tuple[Any, Any]] = value.items()
        return items


@dataclasses.dataclass(frozen=True)
class Tuple(Node):
    """A tuple with an annotation for each item."""

    items: tuple[Node | None, ...]

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        count = len(value) if isinstance(value, collections.abc.Sequence) else None
        if count != len(self.items):
            why = "it is no tuple" if count is None else f"it has {count} items"
            expected = f"a tuple of {len(self.items)}"
            into.problems.append(Problem(path, expected, describe(value), (why,), owner=owner))
            return
        for i, (node, item) in enumerate(zip(self.items, value, strict=True)):
            if node is not None:
                node.check(item, f"{path}[{i}]", into, owner)

    def example(self, settings: ExampleSettings) -> Any:
        if None in self.items:
            raise settings.open(self)
        return tuple(node.example(settings) for node in self.items if node is not None)


@dataclasses.dataclass(frozen=True, eq=False)  # it may contain itself
class Fields(Node):
    """A dataclass, a named tuple or a typed dict, with the requirement on each field."""

    owner: type
    fields: dict[str, Node]

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        is_dict = typing.is_typeddict(self.owner)
        kind: type = collections.abc.Mapping if is_dict else self.owner
        if not isinstance(value, kind):
            expected = f"a `{self.owner.__name__}`"
            into.problems.append(Problem(path, expected, describe(value), ("it is none",), owner=owner))
            return
        for name, node in self.fields.items():
            if isinstance(value, collections.abc.Mapping):
                if name in value:
                    node.check(value[name], f"{path}[{name!r}]", into, (self.owner, name))
            elif hasattr(value, name):
                node.check(getattr(value, name), f"{path}.{name}", into, (self.owner, name))

    def example(self, settings: ExampleSettings) -> Any:
        values = {name: node.example(settings) for name, node in self.fields.items()}
        try:
            return self.owner(**values)
        except TypeError:
            raise settings.open(self) from None


@dataclasses.dataclass(frozen=True)
class Union(Node):
    """A union: the value must fit one of its members."""

    members: tuple[Node | None, ...]  # None for a member without sharding types
    plain: tuple[Any, ...]  # the classes of those
    none: bool

    def check(self, value: Any, path: str, into: Checking, owner: tuple[type, str] | None = None) -> None:
        if value is None and self.none:
            return
        if any(isinstance(value, c) for c in self.plain if isinstance(c, type)):
            return
        trials = [into.try_match(node, value, path, owner) for node in self.members if node is not None]
        fitting = next((trial for trial in trials if not trial.problems), None)
        if fitting is not None:
            into.take(fitting)
        elif len(trials) == 1:
            into.problems += trials[0].problems
        elif trials:
            expected = " or ".join(dict.fromkeys(p.expected for trial in trials for p in trial.problems[:1]))
            reasons = [f"{p.expected}: {r}" for trial in trials for p in trial.problems[:1] for r in p.reasons[:1]]
            t = type_of(value)
            into.problems.append(Problem(path, expected, str(t or describe(value)), tuple(reasons), owner=owner))

    def example(self, settings: ExampleSettings) -> Any:
        if self.none:
            return None
        for node in self.members:
            if node is not None:
                return node.example(settings)
        raise settings.open(self)


def type_of(value: Any) -> HiShType | None:
    """The sharding type of a value, or None."""
    if type(value) is Array:
        return value.type
    if isinstance(value, jax.core.Tracer):
        t = jax.typeof(value)
        return t if type(t) is HiShType else None
    return None


def describe(value: Any) -> str:
    """Describes a value for messages."""
    if isinstance(value, (jax.Array, jax.core.Tracer)):
        return f"a plain array, {jax.typeof(value)}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a numpy array of shape {tuple(value.shape)}"
    return "None" if value is None else f"of class `{type(value).__name__}`"
