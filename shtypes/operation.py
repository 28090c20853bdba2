"""What our primitives apply: an `Operation` is the parameter of a JAX primitive that is there once for each kind.

So JAX's tables have a few entries, whatever programs do; an operation lives as long as the programs that hold it. It
prints in jaxprs as a primitive of its own would, knows the types of its operands, and refuses any others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from shtypes._compat import HiPrimitive, print_as
from shtypes.errors import ShardingTypeError
from shtypes.types import ShType


class Operation:
    """A primitive operation on typed values, with everything that it depends on; subclasses are frozen dataclasses.

    Attributes:
        primitive: The primitive of its kind.
        operands: The types of its operands.
        results: The types of its results.
    """

    primitive: OperationPrimitive
    operands: tuple[Any, ...]
    results: tuple[Any, ...]

    @property
    def name(self) -> str:
        """What jaxprs and messages call it."""
        return str(self)

    # Equal by value, and by the names of dims too: JAX keeps the results of `abstract_eval`, and they print.

    @functools.cached_property
    def _key(self) -> tuple[Any, ...]:
        return tuple(_exact(getattr(self, f.name)) for f in dataclasses.fields(self))  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    def bind(self, *operands: Any) -> list[Any]:
        """The results, in whatever JAX does with them."""
        found: list[Any] = self.primitive.bind(*operands, operation=self)
        return found

    def abstract_eval(self, *given: Any) -> tuple[list[Any], set[Any]]:
        """The results' types; JAX asks when it traces, and when it checks a jaxpr again.

        Raises:
            ShardingTypeError: the operands have other types.
        """
        if given != self.operands:
            raise ShardingTypeError(
                f"`{self}` was given {_listed(given)} instead of {_listed(self.operands)}",
                why="it is typed for these operands, and for others it would be another operation",
                hints=["apply the function of shtypes again, which finds the types of the results"],
            )
        return list(self.results), set()

    # The rules that JAX asks for; what they take and return is that of JAX's primitives with several results.

    def to_lojax(self, *operands: Any) -> list[Any]:
        """The results where JAX runs or lowers it alone."""
        raise NotImplementedError

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents."""
        raise NotImplementedError

    def transpose(self, cts: Sequence[Any], *operands: Any) -> list[Any]:
        """The cotangents of the linear operands; None for the others."""
        raise NotImplementedError

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results mapped over a dim of the operands, and where each has that dim."""
        raise NotImplementedError


def _exact(value: Any) -> Any:
    """What tells a field apart: of a type its dims' names too."""
    if isinstance(value, ShType):
        return value.exact
    return tuple(map(_exact, value)) if type(value) is tuple else value


def _listed(types: Sequence[Any]) -> str:
    return " and ".join(map(str, types)) or "nothing"


class OperationPrimitive(HiPrimitive):
    """The primitive of one kind of operation."""

    multiple_results = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        print_as(self, lambda params: params["operation"].name)

    def abstract_eval(self, *given: Any, operation: Operation) -> tuple[list[Any], set[Any]]:
        return operation.abstract_eval(*given)

    def to_lojax(self, *operands: Any, operation: Operation) -> list[Any]:
        return operation.to_lojax(*operands)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any], operation: Operation) -> tuple[list[Any], list[Any]]:
        return operation.jvp(primals, tangents)

    def transpose(self, cts: Sequence[Any], *operands: Any, operation: Operation) -> list[Any]:
        return operation.transpose(cts, *operands)

    def batch(
        self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any], operation: Operation
    ) -> tuple[list[Any], list[Any]]:
        return operation.batch(axis_data, operands, dims)


class LinearizedPrimitive(OperationPrimitive):
    """One whose operations say themselves how they are linearized; of the others JAX traces the jvp."""

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], **params: Any) -> Any:
        return params["operation"].linearize(primals, nonzero)


def applied_by(eqn: Any) -> Any:
    """What an equation applies: an operation of ours, else JAX's primitive."""
    return eqn.params["operation"] if isinstance(eqn.primitive, OperationPrimitive) else eqn.primitive


__all__ = ["LinearizedPrimitive", "Operation", "OperationPrimitive", "applied_by"]
