"""Parses annotations, such as ``Annotated[Array, "f32[...]"]`` and pytrees of it, into checks of values."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from shtypes.core.array import Array
from shtypes.errors import ShardingTypeError
from shtypes.signatures import pytree_spec
from shtypes.signatures.matching import pattern


class Reader:
    """Parses annotations.

    Args:
        names: Names for string annotations, besides those of a class's module.
        skip_undefined: Whether a string annotation with an undefined name is skipped, unless it mentions a type or
            `Array`: a class may be imported for type checkers only. Otherwise it is an error.
    """

    def __init__(self, names: Mapping[str, Any], *, skip_undefined: bool = True) -> None:
        self._names, self._skip_undefined = names, skip_undefined
        self._records: dict[type, pytree_spec.Fields] = {}

    def read(self, annotation: Any, names: Mapping[str, Any] | None = None) -> pytree_spec.Node | None:
        """The check of an annotation, evaluated first if it is a string; None if it has no sharding types.

        A `NameError` if it has an undefined name. Words that are no expression ask nothing.
        """

        def one() -> None: ...

        one.__annotations__ = {"it": annotation}
        scope = dict(self._names if names is None else {**names, **self._names})
        try:
            hint = typing.get_type_hints(one, globalns=scope, include_extras=True)["it"]
        except (NameError, SyntaxError) as error:
            text = str(getattr(annotation, "__forward_arg__", annotation))
            _refuse_bare_type(text)
            if isinstance(error, SyntaxError):
                if any(mark in text for mark in ("A[", "Array[", "Annotated[")):
                    raise ShardingTypeError(f"{text!r} is not a Python expression") from None
                return None
            if not self._skip_undefined or any(mark in text for mark in ("'", '"', "Array", "Annotated")):
                raise
            return None
        return self.node(hint)

    def node(self, hint: Any, text: str | None = None) -> pytree_spec.Node | None:
        """The check of an evaluated annotation; ``text`` is the type of an enclosing ``Annotated``."""
        hint = getattr(hint, "__value__", hint) if type(hint).__name__ == "TypeAliasType" else hint
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self.node(args[0], next((m for m in hint.__metadata__ if isinstance(m, str)), text))
        if hint is Array:
            return pytree_spec.Typed() if text is None else pytree_spec.Leaf(pattern(text))
        if hint is typing.Any or hint is jax.Array:
            return None if text is None else pytree_spec.Leaf(pattern(text))
        if origin in (typing.Union, types.UnionType):
            return self._union(args, text)
        if text is not None:  # one type for all leaves of a pytree
            return pytree_spec.AllOf(pattern(text)) if self._may_have_arrays(hint) else None
        if origin is tuple:
            if len(args) == 2 and args[1] is Ellipsis:
                return self._of_items(pytree_spec.Sequence, args[0])
            nodes = tuple(self.node(a) for a in args)
            return pytree_spec.Tuple(nodes) if any(n is not None for n in nodes) else None
        if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping) and len(args) == 2:
            return self._of_items(pytree_spec.MappingOf, args[1])
        if isinstance(origin, type) and issubclass(origin, collections.abc.Sequence) and len(args) == 1:
            return self._of_items(pytree_spec.Sequence, args[0])
        if origin is not None and origin in (typing.Required, typing.NotRequired, _READ_ONLY):
            return self.node(args[0])
        record = hint if origin is None else origin  # the class of a generic alias
        return self._record(record) if _is_record(record) else None

    def _of_items(self, kind: Callable[[pytree_spec.Node], pytree_spec.Node], item: Any) -> pytree_spec.Node | None:
        node = self.node(item)
        return None if node is None else kind(node)

    def _union(self, args: tuple[Any, ...], text: str | None) -> pytree_spec.Node | None:
        members = {a: self.node(a, text) for a in args if a is not types.NoneType}
        if all(node is None for node in members.values()):
            return None
        plain = tuple(typing.get_origin(a) or a for a, node in members.items() if node is None)
        return pytree_spec.Union(tuple(members.values()), plain, types.NoneType in args)

    def _record(self, owner: type) -> pytree_spec.Node | None:
        existing = self._records.get(owner)
        if existing is not None:  # a recursive class
            return existing
        record = self._records[owner] = pytree_spec.Fields(owner, {})
        for base in reversed(owner.__mro__):
            module = vars(sys.modules.get(base.__module__, types)) if base.__module__ != "builtins" else {}
            for name, annotation in inspect.get_annotations(base).items():
                node = self.read(annotation, {**module, owner.__name__: owner})
                if node is not None:
                    record.fields[name] = node
        return record if record.fields else None

    def _may_have_arrays(self, hint: Any) -> bool:
        """Whether a value with this annotation may have typed leaves."""
        if hint is Array or _is_record(hint) or _is_record(typing.get_origin(hint)):
            return True
        return any(self._may_have_arrays(a) for a in typing.get_args(hint))


def _refuse_bare_type(text: str) -> None:
    """Raises if a string annotation is a type alone, which Python takes for an expression: nothing would be checked."""
    text = text.strip().strip("'\"")
    try:
        read = pattern(text)
    except ShardingTypeError:
        return
    if read.dims is not None:
        raise ShardingTypeError(
            f'"{text}" is a type, and not an annotation',
            why="Python reads a string annotation as an expression; a type stands in that of an array",
            hints=[f'Annotated[sh.Array, "{text}"]', f'sh.Array["{text}"]'],
        )


_READ_ONLY = getattr(typing, "ReadOnly", None)  # Python 3.13


def _is_record(hint: Any) -> bool:
    if not isinstance(hint, type):
        return False
    is_named_tuple = issubclass(hint, tuple) and hasattr(hint, "_fields")
    return dataclasses.is_dataclass(hint) or is_named_tuple or typing.is_typeddict(hint)


# annotations of functions


class Annotations(NamedTuple):
    """The checks of a function's annotations."""

    signature: inspect.Signature
    #: The check of each annotated parameter; for ``*args`` and ``**kwargs``, of each item.
    nodes: Mapping[str, pytree_spec.Node]
    result: pytree_spec.Node | None

    @property
    def any_checks(self) -> bool:
        """Whether a parameter or the result has a check."""
        return bool(self.nodes) or self.result is not None

    def check(self, into: pytree_spec.Checking, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Checks the arguments of a call and returns them by parameter; empty if they do not bind to the signature."""
        try:
            bound = self.signature.bind(*args, **kwargs).arguments
        except TypeError:
            return {}  # the call itself raises
        for name, value in bound.items():
            node, parameter = self.nodes.get(name), self.signature.parameters[name]
            if node is None or value is parameter.default:
                continue
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                for i, item in enumerate(value):
                    node.check(item, f"{name}[{i}]", into)
            elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
                for key, item in value.items():
                    node.check(item, key, into)
            else:
                node.check(value, name, into)
        into.resolve()
        return bound


def annotations_of(
    f: Callable[..., Any], local: Mapping[str, Any] | None = None, *, skip_undefined: bool = True
) -> Annotations:
    """The checks of a function's annotations; for a wrapper, of the function that it wraps.

    ``local``: names for string annotations, besides those of its module; ``skip_undefined`` as for `Reader`.
    """
    inner = unwrapped(f)
    reader = Reader(
        {**getattr(inner, "__globals__", {}), **(local or {}), **_closure(inner)}, skip_undefined=skip_undefined
    )
    nodes: dict[str, pytree_spec.Node] = {}
    result = None
    for name, annotation in inspect.get_annotations(inner).items():
        try:
            node = reader.read(annotation)
        except ShardingTypeError as error:
            what = "the result" if name == "return" else f"argument `{name}`"
            error.what = f"the signature of {what} of `{getattr(inner, '__name__', 'f')}` cannot be read: {error.what}"
            raise
        if name == "return":
            result = node
        elif node is not None:
            nodes[name] = node
    return Annotations(inspect.signature(f), nodes, result)


def unwrapped(f: Any) -> Any:
    """The annotated function inside wrappers, partials, methods and callable objects."""
    while not isinstance(f, types.FunctionType) or hasattr(f, "__wrapped__"):
        if hasattr(f, "__wrapped__"):
            f = f.__wrapped__
        elif isinstance(f, functools.partial):
            f = f.func
        elif hasattr(f, "__func__"):
            f = f.__func__
        elif isinstance(getattr(type(f), "__call__", None), types.FunctionType):  # noqa: B004
            f = type(f).__call__
        else:
            return _no_annotations
    return f


def _no_annotations() -> Any: ...


def _closure(f: Any) -> dict[str, Any]:
    """The closure variables of a function by name, for string annotations."""
    names = getattr(getattr(f, "__code__", None), "co_freevars", ())
    captured = {}
    for name, cell in zip(names, getattr(f, "__closure__", None) or (), strict=True):
        try:
            captured[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return captured
