"""`Bound`: a JAX primitive as a function of shards, with the parameters of a shard.

Its derivatives, transposes and batching are JAX's. A transpose that is one primitive is a `Bound` again, so that
backward programs are as readable as forward ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from shtypes._compat.jaxprs import is_literal, jaxpr_of, wide_enough
from shtypes._compat.plain_programs import as_of_here, without_mesh
from shtypes._compat.tracing import trace_typed
from shtypes.caches import CACHE_SIZE, Static
from shtypes.core.elementwise_fns import IDENTITY, unbroadcast
from shtypes.core.shard_fn import DIFFERENTIABLE, Linear, ShardFn
from shtypes.types import ShType, dtypes


class Linearity(NamedTuple):
    """How a primitive is linear, and in which operands."""

    kind: Linear = Linear.NO
    nonlinear: slice = slice(0, 0)  # the other operands: indices, predicates, denominators

    def within(self, numbers: Sequence[Any], count: int) -> tuple[Linear, frozenset[int]]:
        """The linearity in the operands that are no numbers, and which of them it is nonlinear in."""
        places = [i for i, x in enumerate(numbers) if not _is_number(x)] if numbers else range(count)
        not_linear = range(max(count, len(numbers)))[self.nonlinear]
        nonlinear = frozenset(j for j, i in enumerate(places) if i in not_linear)
        if self.kind is not Linear.MULTILINEAR or len(places) == len(numbers or places):
            return self.kind, nonlinear
        if len(nonlinear) == len(places):
            return Linear.NO, nonlinear
        return Linear.MULTILINEAR if nonlinear else Linear.JOINTLY, nonlinear


_JOINTLY: Final = Linearity(Linear.JOINTLY)
_MULTILINEAR: Final = Linearity(Linear.MULTILINEAR)
_IN_FIRST: Final = Linearity(Linear.MULTILINEAR, slice(1, None))
_IN_OPERAND_AND_UPDATES: Final = Linearity(Linear.IN_DIFFERENTIABLE, slice(1, 2))
#: The linearity of JAX's primitives that are linear in some operand.
LINEAR: Final[Mapping[str, Linearity]] = {
    **dict.fromkeys(("add", "add_any", "sub", "complex", "concatenate", "pad", "stack"), _JOINTLY),
    **dict.fromkeys(("broadcast_in_dim", "reshape", "rev", "slice", "split", "squeeze", "transpose", "tile"), _JOINTLY),
    **dict.fromkeys(("conj", "convert_element_type", "copy", "imag", "neg", "real"), _JOINTLY),
    **dict.fromkeys(("cumsum", "fft", "optimization_barrier", "reduce_sum", "reduce_window_sum", "unstack"), _JOINTLY),
    **dict.fromkeys(("mul", "dot_general", "conv_general_dilated"), _MULTILINEAR),
    **dict.fromkeys(("div", "dynamic_slice", "scatter-mul", "select_and_scatter_add"), _IN_FIRST),
    "gather": Linearity(Linear.IN_DIFFERENTIABLE, slice(1, 2)),
    "ragged_dot_general": Linearity(Linear.MULTILINEAR, slice(2, None)),
    "triangular_solve": Linearity(Linear.MULTILINEAR, slice(0, 1)),
    "tridiagonal_solve": Linearity(Linear.MULTILINEAR, slice(0, 3)),
    "select_n": Linearity(Linear.IN_DIFFERENTIABLE, slice(0, 1)),
    "dynamic_update_slice": Linearity(Linear.IN_DIFFERENTIABLE, slice(2, None)),
    "scatter-add": _IN_OPERAND_AND_UPDATES,
    "scatter-sub": _IN_OPERAND_AND_UPDATES,
}
#: The signs of the operands of a sum.
_SIGNS: Final = {"add": (1, 1), "add_any": (1, 1), "sub": (1, -1)}
#: The names of primitives in listings and messages, where they differ from JAX's.
NAMES: Final = {
    "add_any": "add",
    "broadcast_in_dim": "broadcast",
    "conv_general_dilated": "conv",
    "convert_element_type": "astype",
    **{f"reduce_{name}": name for name in ("sum", "max", "min", "prod")},
}
#: The parameters that listings show.
_LISTED_PARAMS: Final = {
    "convert_element_type": ("new_dtype",),
    "transpose": ("permutation",),
    "cumsum": ("axis",),
    "cumprod": ("axis",),
    "dynamic_slice": ("slice_sizes",),
    "gather": ("slice_sizes",),
    "reduce_sum": ("axes",),
}


class _Operand:
    """In ``numbers``, an operand of the function by its index, where operands are permuted."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Bound(ShardFn):
    """A primitive with the parameters of a shard, and operands that are constant numbers.

    Two are equal if primitive and parameters are; jaxprs and arrays are compared by identity. ``numbers`` has, for each
    operand of the primitive, a number as a 0-d array, or None; it is empty without numbers.
    """

    def __init__(
        self,
        primitive: Any,
        params: Mapping[str, Any],
        numbers: Sequence[Any] = (),
        linearity: Linearity | None = None,
        *,
        per_element: bool = False,
    ) -> None:
        self.primitive, self.params, self.numbers = primitive, dict(params), tuple(numbers)
        self.linearity = linearity or LINEAR.get(primitive.name, Linearity())
        self.per_element = per_element
        # by bytes, since 1 is not 1.0, and 0.0 is not -0.0, and a NaN equals itself
        constants = tuple(
            x.index if isinstance(x, _Operand) else None if x is None else (str(x.dtype), x.tobytes())
            for x in self.numbers
        )
        parts = (primitive, *sorted(self.params.items(), key=itemgetter(0)))
        self._key = (Static(parts), constants, self.linearity.kind)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Bound) and self._hash == other._hash and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        name = self.primitive.name
        texts = [_param_text(self.params[key]) for key in _LISTED_PARAMS.get(name, ()) if key in self.params]
        if any(x is not None and not isinstance(x, _Operand) for x in self.numbers):
            texts += ["_" if x is None or isinstance(x, _Operand) else f"{x}" for x in self.numbers]
        return f"{NAMES.get(name, name)}[{','.join(texts)}]" if texts else NAMES.get(name, name)

    __repr__ = __str__

    def __call__(self, *shards: Any) -> Any:
        """Binds the primitive; returns a tuple if it has several results."""
        operands = shards
        if self.numbers:
            rest = iter(shards)
            operands = tuple(
                next(rest) if x is None else shards[x.index] if isinstance(x, _Operand) else x for x in self.numbers
            )
        outs = self.primitive.bind(*operands, **self.primitive.get_bind_params(as_of_here(self.params)))
        return tuple(outs) if self.primitive.multiple_results else outs

    # linearity

    @functools.cached_property
    def linear(self) -> Linear:  # type: ignore[override]  # a class attribute elsewhere: here it depends on the primitive
        """Its linearity in the operands that are no numbers."""
        kind, _ = self.linearity.within(self.numbers, 1)
        if kind not in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE) or kind is not self.linearity.kind:
            return kind
        nonlinear = range(len(self.numbers))[self.linearity.nonlinear]
        has_nonzero_number = any(_is_number(x) and i not in nonlinear and x.any() for i, x in enumerate(self.numbers))
        return Linear.NO if has_nonzero_number or self._fills else kind

    @property
    def _fills(self) -> bool:
        """Whether it is a gather with a nonzero fill value."""
        fills = self.primitive.name == "gather" and self.params["mode"] is jax.lax.GatherScatterMode.FILL_OR_DROP
        return fills and not (self.params["fill_value"] is not None and self.params["fill_value"] == 0)

    def linear_in(self, index: int) -> bool:
        count = max(len(self.numbers), index + 1)
        places = {x.index: i for i, x in enumerate(self.numbers) if isinstance(x, _Operand)}
        if places:
            return places[index] not in range(count)[self.linearity.nonlinear]
        return index not in self.linearity.within(self.numbers, count)[1]

    @property
    def stops_gradient(self) -> bool:
        return bool(self.primitive.name == "stop_gradient")

    @property
    def is_differentiable(self) -> bool:
        return self.primitive.name in DIFFERENTIABLE and "jaxpr" not in self.params

    @property
    def linear_part(self) -> ShardFn | None:
        if self.linear is not Linear.NO:
            return super().linear_part
        if self.linearity.kind not in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE):
            return None
        signs = _SIGNS.get(self.primitive.name)
        if signs is not None:
            return _signed(signs[self.numbers.index(None)])
        params = {**self.params, "fill_value": 0} if self._fills else self.params
        zeros = [np.zeros_like(x) if _is_number(x) else x for x in self.numbers]
        return Bound(self.primitive, params, zeros, self.linearity, per_element=self.per_element)

    def restricted(self, nonzero: Sequence[bool], operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        signs = _SIGNS.get(self.primitive.name)
        at = list(nonzero).index(True)
        same = operands[at].local_shape == result.local_shape
        return _signed(signs[at]) if signs is not None and not self.numbers and same else None

    # derivatives

    def adjoint(self, index: int, operands: Sequence[ShType], result: ShType) -> ShardFn | None:
        t = operands[index]
        if self.primitive.name in _SIGNS and not self.numbers:
            return unbroadcast(_signed(_SIGNS[self.primitive.name][index]), t.local_shape, result.local_shape)
        shapes = tuple((t.local_shape, t.dtype_name) for t in operands)
        return _transposed(self, index, shapes, (result.local_shape, result.dtype_name))

    def number_apart(self, operands: Sequence[ShType]) -> tuple[ShardFn, Any] | None:
        numbers = [i for i, x in enumerate(self.numbers) if _is_number(x)]
        if len(numbers) != 1 or not self.per_element:
            return None
        (at,) = numbers
        rest = iter(range(len(operands)))
        places = [_Operand(len(operands)) if i == at else _Operand(next(rest)) for i in range(len(self.numbers))]
        return Bound(self.primitive, self.params, places, Linearity(), per_element=True), self.numbers[at]


def _is_number(x: Any) -> bool:
    return x is not None and not isinstance(x, _Operand)


def _param_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    return dtypes.from_numpy(value) if isinstance(value, np.dtype) else str(value)


def _signed(sign: int) -> ShardFn:
    return IDENTITY if sign > 0 else _NEG


_NEG: Final = Bound(jax.lax.neg_p, {}, per_element=True)


@functools.lru_cache(maxsize=CACHE_SIZE)
def _transposed(
    fn: Bound, index: int, operands: tuple[tuple[tuple[int, ...], str], ...], result: tuple[tuple[int, ...], str]
) -> ShardFn | None:
    """The transpose in one operand, with the operands of `ShardFn.adjoint`, if JAX's is one primitive; else None."""
    if fn.primitive.multiple_results:
        return None
    jointly = fn.linear is not Linear.MULTILINEAR
    structs = [jax.ShapeDtypeStruct(shape, dtypes.to_numpy(dtype)) for shape, dtype in operands]
    ct = jax.ShapeDtypeStruct(result[0], dtypes.to_numpy(result[1]))
    nonlinear = (
        [i for i, t in enumerate(operands) if not dtypes.differentiable(t[1])]
        if fn.linear is Linear.IN_DIFFERENTIABLE
        else []
    )

    def transpose(*args: Any) -> Any:
        if fn.linear is Linear.MULTILINEAR:
            others = list(args)
            others[index], cotangent = None, args[index]
        else:
            others = [np.broadcast_to(np.zeros((), s.dtype), s.shape) for s in structs]  # without allocating
            for i, x in zip(nonlinear, args, strict=False):
                others[i] = x
            cotangent = args[-1]

        def in_operand(x: Any) -> Any:
            return fn(*others[:index], x, *others[index + 1 :])

        return jax.linear_transpose(in_operand, structs[index])(cotangent)[0]

    args = [*(structs[i] for i in nonlinear), ct] if jointly else [*structs[:index], ct, *structs[index + 1 :]]
    with wide_enough(*(s.dtype for s in (*structs, ct))), without_mesh():
        return _as_one(transpose, args)


def _as_one(f: Callable[..., Any], args: Sequence[Any]) -> ShardFn | None:
    """Converts a function of arrays to a `Bound` if its jaxpr is one primitive of operands and numbers; else None."""
    try:
        closed = trace_typed(f, [jax.core.ShapedArray(x.shape, x.dtype) for x in args])
    except (NotImplementedError, TypeError, ValueError):
        return None
    jaxpr = jaxpr_of(closed)
    (out,) = jaxpr.outvars
    if len(jaxpr.eqns) != 1:
        return IDENTITY if not jaxpr.eqns and len(args) == 1 and out is jaxpr.invars[0] else None
    (eqn,) = jaxpr.eqns
    places: list[Any] = []
    for x in eqn.invars:
        if is_literal(x):
            places.append(np.asarray(x.val, x.aval.dtype))
        elif x in jaxpr.invars:
            places.append(_Operand(jaxpr.invars.index(x)))
        else:
            return None
    if eqn.outvars != [out] or any(np.ndim(x) for x in places if _is_number(x)):
        return None
    order = [x.index for x in places if not _is_number(x)]
    if order != list(range(len(args))):
        return None if sorted(order) != list(range(len(args))) else Bound(eqn.primitive, eqn.params, places)
    if not any(map(_is_number, places)):
        return Bound(eqn.primitive, eqn.params)
    return Bound(eqn.primitive, eqn.params, [x if _is_number(x) else None for x in places])
