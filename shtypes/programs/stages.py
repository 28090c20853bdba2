"""The stages of `jit`: traced, lowered and compiled programs, wrapping JAX's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.tree_util import tree_flatten, tree_map, tree_unflatten

from shtypes._compat.jaxprs import jaxpr_of
from shtypes.core.array import Array, wrap
from shtypes.core.jax_type import HiShType
from shtypes.core.region_plan import UnsupportedError
from shtypes.errors import ShardingTypeError
from shtypes.programs.program import Arguments, Program, typed
from shtypes.traced.comm_tracker import counted
from shtypes.traced.merging import merged


class _Stage:
    """A wrapper of one of JAX's stages, with typed results; other attributes are the wrapped stage's."""

    def __init__(self, inner: Any, typed: Any, program: Program, arguments: Any) -> None:
        self._inner, self._typed, self._program, self._arguments = inner, typed, program, arguments

    @functools.cached_property
    def jaxpr(self) -> Any:
        """The typed program, with its reshards merged as in the compiled one."""
        return self._typed.jaxpr if self._program.left_to_jax else merged(self._typed.jaxpr)

    @property
    def out_info(self) -> Any:
        """The results as typed values without data, and JAX's shapes for plain arrays."""
        avals = iter([v.aval for v in jaxpr_of(self._typed.jaxpr).outvars])

        def info(plain: Any) -> Any:
            t = next(avals)
            return wrap(t, None) if type(t) is HiShType else plain

        return tree_map(info, self._typed.out_info)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"<sh.jit {type(self).__name__.lower()} {self._typed.fun_name}>"


class OnDevices(NamedTuple):
    """A program that devices run, and the leaves of the call that are its operands."""

    program: Any  # a closed jaxpr: of plain arrays, or of typed values if it is lowered op by op
    leaves: tuple[int | None, ...]  # for each operand the index of a leaf; None for captured arrays
    donated: frozenset[int]  # the donated leaves


class Traced(_Stage):
    """A traced program, before lowering."""

    def __init__(self, program: Program, typed: Any, data: list[Any]) -> None:
        super().__init__(typed, typed, program, None)
        self._data = data

    def on_devices(self) -> OnDevices:
        """Traces the program that is lowered; needs no devices."""
        program, count = self._program, len(self._data)
        if not program.left_to_jax:
            try:
                traced, _ = program.trace(self._data)
            except UnsupportedError as why:
                program.leave_to_jax(why)
            else:
                captured = len(jaxpr_of(traced.jaxpr).invars) - count
                return OnDevices(traced.jaxpr, (*(None,) * captured, *range(count)), program.donated)
        return OnDevices(self._typed.jaxpr, tuple(range(count)), program.donated)

    def arguments(self, leaves: Sequence[Any]) -> Arguments:
        """The arguments of the function with these leaves."""
        return self._program.call(leaves)

    def lower(self, **options: Any) -> Lowered:
        """Lowers the program, with the options of JAX's method."""
        if not self._program.left_to_jax:
            try:
                traced, arguments = self._program.trace(self._data)
                return Lowered(traced.lower(**options), self._typed, self._program, arguments)
            except UnsupportedError as why:
                self._program.leave_to_jax(why)
        return Lowered(self._typed.lower(**options), self._typed, self._program, None)


class Lowered(_Stage):
    """A lowered program; ``as_text()`` and ``cost_analysis()`` are JAX's."""

    def compile(self, *args: Any, **options: Any) -> Compiled:
        """Compiles the program, with the options of JAX's method."""
        return Compiled(self._inner.compile(*args, **options), self._typed, self._program, self._arguments)


class Compiled(_Stage):
    """A compiled program, to call with values of the types that it was lowered for, without static arguments."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program."""
        leaves, tree = tree_flatten((args, kwargs))
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            raise ShardingTypeError(
                "a compiled program cannot be transformed or called while tracing", hints=["call the jitted function"]
            )
        self._check(leaves, tree)
        with counted() as count:
            count(self._typed.jaxpr)
            if self._arguments is None:
                args, kwargs = tree_unflatten(tree, self._placed(leaves))
                return self._inner(*args, **kwargs)
            return typed(self._inner(*self._arguments([x.data if type(x) is Array else x for x in leaves])))

    def _placed(self, leaves: list[Any]) -> list[Any]:
        """The arguments moved to the program's input shardings, which XLA chooses freely for unused arguments."""
        placed = list(leaves)
        shardings = self._program.tree.flatten_up_to(self._inner.input_shardings)
        for i, (x, places) in enumerate(zip(leaves, map(jax.tree.leaves, shardings), strict=True)):
            if type(x) is Array and places and not x.data.sharding.is_equivalent_to(places[0], x.data.ndim):
                placed[i] = wrap(x.type, jax.device_put(x.data, places[0]))
        return placed

    def _check(self, leaves: list[Any], tree: Any) -> None:
        if tree != self._program.tree:
            raise ShardingTypeError(
                f"the compiled program takes arguments of the structure {self._program.tree}, not {tree}"
            )
        types = [x.type if type(x) is Array else None for x in leaves]
        for i, (t, expected) in enumerate(zip(types, self._program.leaf_types, strict=True)):
            if t != expected:
                on_other_mesh = t is not None and expected is not None and t.mesh is not expected.mesh
                is_, is_not = (
                    "a plain array" if s is None else f"{s} on ({s.mesh})" if on_other_mesh else str(s)
                    for s in (expected, t)
                )
                what = f"leaf {i} of the compiled program is {is_}, not {is_not}"
                raise ShardingTypeError(what, hints=["compile it again for these arguments"])
