"""The static and the donated arguments of a jitted function, by position and by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shtypes.context.signature_errors import as_numbers

Indices = int | Sequence[int] | None
Names = str | Sequence[str] | None

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Roles:
    """The static and the donated arguments of one function.

    As in `jax.jit`, if only positions or only names are passed, the others are inferred from the signature.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnums: Indices = None,
        static_argnames: Names = None,
        donate_argnums: Indices = None,
        donate_argnames: Names = None,
    ) -> None:
        parameters = _parameter_names(f)
        self._static = _nums_and_names("static", parameters, static_argnums, static_argnames)
        self._donated = _nums_and_names("donate", parameters, donate_argnums, donate_argnames)
        self.any_static = any(self._static)
        self.any_donated = any(self._donated)

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, tuple[Any, ...]]:
        """Splits the arguments into dynamic ones, and a hashable tuple of (key, class, value) of the static ones."""
        places, names = self._places(self._static[0], len(args)), self._static[1]
        dynamic = tuple(x for i, x in enumerate(args) if i not in places)
        named = {k: x for k, x in kwargs.items() if k not in names}
        static_values = {i: args[i] for i in places} | {k: x for k, x in kwargs.items() if k in names}
        return (dynamic, named), tuple((k, type(x), x) for k, x in static_values.items())

    def join(self, call: Arguments, static: tuple[Any, ...]) -> Arguments:
        """The inverse of `split`."""
        args, kwargs = list(call[0]), dict(call[1])
        for key, _, value in sorted((s for s in static if isinstance(s[0], int)), key=lambda s: s[0]):
            args.insert(key, value)
        return tuple(args), kwargs | {k: x for k, _, x in static if isinstance(k, str)}

    def donated(self, call: Arguments, static: tuple[Any, ...]) -> list[bool]:
        """For each leaf of a call without static arguments, whether it is donated."""
        args, kwargs = self.join(call, static)
        places, names = self._places(self._donated[0], len(args)), self._donated[1]
        static_values = {key for key, _, _ in static}
        flags = [(i in places, x) for i, x in enumerate(args) if i not in static_values]
        flags += [(k in names, kwargs[k]) for k in sorted(kwargs) if k not in static_values]
        return [flag for flag, x in flags for _ in jax.tree.leaves(x)]

    @staticmethod
    def _places(indices: Sequence[int], count: int) -> list[int]:
        return sorted({i + count if i < 0 else i for i in indices if -count <= i < count})


def _parameter_names(f: Callable[..., Any]) -> list[str]:
    """The parameters' names by position, "" for a positional-only or keyword-only one; empty without a signature."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else "" for p in parameters]


def _nums_and_names(
    kind: str, parameters: Sequence[str], nums: Indices, names: Names
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names; if one is None, it is inferred from the other."""
    indices = None if nums is None else as_numbers("jit", f"{kind}_argnums", nums)
    keys = None if names is None else (names,) if isinstance(names, str) else tuple(names)
    if keys is None:
        places = {i % len(parameters) for i in indices or () if -len(parameters) <= i < len(parameters)}
        keys = tuple(name for i, name in enumerate(parameters) if name and i in places)
    elif indices is None:
        indices = tuple(i for i, name in enumerate(parameters) if name in keys)
    return indices or (), keys
