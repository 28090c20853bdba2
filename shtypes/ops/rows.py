"""Rows of the table of ops, and functions that write them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from shtypes.context.signature_errors import signature_of


class Op(NamedTuple):
    """A public function of arrays.

    Attributes:
        name: Its name after ``sh.``: ``"exp"``, ``"linalg.norm"``.
        module: The module that defines it.
        attr: Its name there.
        jax: The function of JAX whose typed form it is; empty if JAX has none.
        rule: The function of `shtypes.rules` that types it; empty if it calls other ops, or not typed by its
            operands.
        linear: The operands in which it is linear, which may be pending sums: ``"x*y"`` in each, ``"x+y"`` in both
            together; ``"*operands"`` in each of many, ``"+arrays"`` in all together. Empty if in none.
        out: Whether it has ``out=``, the type of its result.
        operands: Of an elementwise function: its operands, as in a signature.
        params: Of an elementwise function: its other parameters, with their defaults.
    """

    name: str
    module: str
    attr: str
    jax: str
    rule: str = ""
    linear: str = ""
    out: bool = False
    operands: str = ""
    params: str = ""

    @property
    def arity(self) -> int:
        """The number of operands of an elementwise function."""
        return sum(1 for operand in self.operands.split(", ") if operand != "/")

    @property
    def per_element(self) -> bool:
        """Whether it is an elementwise function."""
        return bool(self.operands) or self.module == "shtypes.ops.arithmetic"

    @property
    def signature(self) -> inspect.Signature:
        """The signature of an elementwise function: its operands, then its parameters."""
        return signature_of(", ".join(filter(None, (self.operands, self.params))), operands=self.arity)

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.attr)
        return function

    @property
    def space(self) -> str:
        """Its namespace: ``"linalg"``; empty for ``sh`` itself."""
        return self.name.rpartition(".")[0]


def elementwise(jax: str, signature: str, names: str, *, linear: bool = False) -> Iterator[Op]:
    """Rows of elementwise functions of JAX; ``signature``: the operands, then, after a semicolon, other parameters."""
    operands, _, params = signature.partition("; ")
    rule = "linear_unary" if linear else "nonlinear"
    for name in names.split():
        first = operands.split(",")[0] if linear else ""
        yield Op(name, "shtypes.ops.elementwise", name, f"{jax}.{name}", rule, first, False, operands, params)


def of_jax(names: str, *, jax: str = "jax.numpy", space: str = "", rule: str = "", linear: str = "") -> Iterator[Op]:
    """Rows of functions of JAX, whose equations the table of primitives types."""
    for name in names.split():
        public = f"{space}.{name}" if space else name
        attr = public.replace(".", "_")
        yield Op(public, "shtypes.ops.functions", attr, f"{jax}.{name}", rule, linear, out=True)


def written(
    module: str,
    names: str,
    *,
    jax: str = "jax.numpy",
    space: str = "",
    rule: str = "",
    linear: str = "",
    out: bool = False,
) -> Iterator[Op]:
    """Rows of functions that a module defines; ``a=b`` if its name there is ``b``."""
    for name, attr in named(names):
        public = f"{space}.{name}" if space else name
        yield Op(public, f"shtypes.{module}", attr, f"{jax}.{name}" if jax else "", rule, linear, out)


def named(names: str) -> Iterator[tuple[str, str]]:
    """The public names of a listing, and their names in the module: ``"a b=c"`` is ``a`` as ``a``, ``b`` as ``c``."""
    for entry in names.split():
        name, _, attr = entry.partition("=")
        yield name, attr or name
