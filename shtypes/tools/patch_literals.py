"""Arguments as expressions of the user's file: literals, and calls of the file's classes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from shtypes.errors import ShardingTypeError
from shtypes.types import ShType


class Literals:
    """Arguments as expressions of a file, with types as strings."""

    def __init__(self, path: Path, names: Mapping[str, Any]) -> None:
        self._file, self._names = path.name, names

    def literal(self, x: Any) -> Any:
        """An object that prints as the expression of an argument; an error if the file has none."""
        if isinstance(x, ShType):
            return str(x)
        if type(x) is dict and all(isinstance(k, (str, int)) for k in x):
            return {k: self.literal(v) for k, v in x.items()}
        if type(x) in (list, tuple):
            return type(x)(map(self.literal, x))
        if x is None or isinstance(x, (bool, int, float, complex, str)):
            return x
        if (name := self._name(x)) is not None:
            return _call(name, None)
        if (maker := self._name(type(x))) is not None:
            if dataclasses.is_dataclass(x):
                return self._made_by(maker, {f.name: getattr(x, f.name) for f in dataclasses.fields(x) if f.init})
            if isinstance(x, tuple) and hasattr(x, "_fields"):
                return self._made_by(maker, dict(zip(x._fields, x, strict=True)))
            if hasattr(x, "tree_flatten") and hasattr(x, "tree_unflatten"):
                children, static = x.tree_flatten()
                return self._made_by(
                    f"{maker}.tree_unflatten",
                    dict(zip(inspect.signature(x.tree_unflatten).parameters, (static, children), strict=True)),
                )
        why = f"the arguments have a `{type(x).__name__}` in them, which no expression of `{self._file}` makes"
        raise ShardingTypeError("the plan cannot be written into its file", why=why)

    def _made_by(self, maker: str, fields: Mapping[str, Any]) -> Any:
        return _call(maker, {name: self.literal(x) for name, x in fields.items()})

    def _name(self, x: Any) -> str | None:
        """The name of a class or function in the file, or in a module that it imports."""
        inner = getattr(x, "__qualname__", "") if callable(x) else ""
        if not inner or "<" in inner:
            return None
        places: dict[int, tuple[str, Any]] = {0: ("", SimpleNamespace(**self._names))}
        for _ in range(3):  # `Layer`, `layers.Layer`, `jax.nn.gelu`
            for prefix, place in places.values():
                for name in (inner, *(n for n, value in vars(place).items() if value is x)):
                    with contextlib.suppress(AttributeError):
                        if functools.reduce(getattr, name.split("."), place) is x:
                            return f"{prefix}{name}"
            places = {
                id(m): (f"{prefix}{name}.", m)
                for prefix, place in places.values()
                for name, m in vars(place).items()
                if isinstance(m, ModuleType) and not name.startswith("_")
            }
        return None


def _call(name: str, arguments: Mapping[str, Any] | None) -> Any:
    """An object that `pprint` prints as a call with keywords; or as a name, without arguments."""
    if arguments is None:
        return type(name, (), {"__repr__": lambda _: name})()
    call = dataclasses.make_dataclass(name, list(arguments))(**arguments)  # printed over several lines
    type(call).__qualname__ = name
    return call
