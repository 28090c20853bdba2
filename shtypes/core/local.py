"""The `local` primitive: a function that each device applies to its shards. It never communicates.

The function is in its parameter ``operation``, so that jaxprs print as ``einsum[sbh,hi->sbi] a b``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat import Accumulator, Zero, instantiate_zeros, no_trace_is_running
from shtypes._compat.tracing import fn_of
from shtypes.caches import CACHE_SIZE
from shtypes.core.array import Array
from shtypes.core.derived_fns import Jvp, Transpose, Vmap
from shtypes.core.dim_fns import Broadcast
from shtypes.core.elementwise_fns import IDENTITY, Add, Full, Permute
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.key_batches import check_mapped_keys
from shtypes.core.operation import LinearizedPrimitive, Operation
from shtypes.core.run_op import run
from shtypes.core.shard_fn import (
    Linear,
    ShardFn,
    check_derivative,
    check_transpose,
    with_derivative,
    without_derivative,
)
from shtypes.types import ShType, dtypes


class LocalPrimitive(LinearizedPrimitive):
    """The primitive `local`."""

    def accumulate(self, cts: Sequence[Any], *operands: Any, **params: Any) -> None:
        params["operation"].accumulate(cts, operands)


local_p = LocalPrimitive("local", communicates=False)


class Steps(NamedTuple):
    """Shard functions in sequence. Values are numbered: the inputs, then each result.

    With two inputs, ``((sin, (0,)), (mul, (2, 1)))`` is ``mul(sin(x0), x1)``, whose number is 3.
    """

    steps: tuple[tuple[Local, tuple[int, ...]], ...]  # operations, with the numbers of their operands
    results: tuple[int, ...]

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """The results for inputs of the types that it was built for."""
        values = list(inputs)
        for operation, places in self.steps:
            values += operation.applied(*[values[i] for i in places])
        return [values[i] for i in self.results]

    def renumbered(self, places: Sequence[int], count: int) -> Steps:
        """The steps with input i at ``places[i]`` of ``count`` inputs."""
        new = [*places, *range(count, count + len(self.steps))]
        steps = tuple((operation, tuple(new[i] for i in operands)) for operation, operands in self.steps)
        return Steps(steps, tuple(new[i] for i in self.results))


class Tangents(NamedTuple):
    """How to compute the tangents of an operation's results from those of its operands."""

    nonzero: tuple[bool, ...]  # whether each result has a tangent that may be nonzero
    zeros: tuple[Any, ...]  # the tangents of the others
    instantiated: tuple[int, ...]  # the operands whose zero tangents are instantiated
    steps: Steps  # from the operands and their tangents to the tangents of the nonzero results

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The tangents of all results."""
        if self.instantiated:
            tangents = [instantiate_zeros(t) if i in self.instantiated else t for i, t in enumerate(tangents)]
        moved = iter(self.steps.run((*primals, *tangents)))
        return [next(moved) if n else zero for n, zero in zip(self.nonzero, self.zeros, strict=True)]


@dataclass(frozen=True, eq=False)
class Local(Operation):
    """A shard function applied to shards; the result types come from the typing rules."""

    primitive = local_p
    fn: ShardFn
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]

    def __str__(self) -> str:
        return str(self.fn)

    def run(self, *operands: Any) -> list[Any]:
        return run(self.fn, operands, self.results)

    to_lojax = run

    # derivatives, cached for operands of the same types

    @functools.cached_property
    def _pushforwards(self) -> dict[Any, Tangents]:
        return {}

    @functools.cached_property
    def _pullbacks(self) -> dict[Any, list[tuple[tuple[int, ...], Steps]]]:
        return {}

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool) -> tuple[Any, Any, Any]:
        outs = self.bind(*primals)
        key = (*nonzero, for_vjp)
        tangents = self._pushforwards.get(key)
        if tangents is None:
            tangents = self._pushforwards[key] = self._tangents(nonzero, for_vjp)
        return outs, tangents.nonzero, functools.partial(tangents.push, primals)

    def _tangents(self, nonzero: Sequence[bool], for_vjp: bool) -> Tangents:
        active = tuple(n and t.differentiable for t, n in zip(self.operands, nonzero, strict=True))
        any_nonzero = any(active) and not self.fn.stops_gradient
        out_nonzero = tuple(any_nonzero and t.differentiable for t in self.results)
        zeros = tuple(Zero(t.to_tangent_aval()) for t in self.results)
        if not any(out_nonzero):
            return Tangents(out_nonzero, zeros, (), Steps((), ()))
        n, types, all_nonzero = len(active), self.operands, all(out_nonzero)
        places = tuple(n + i for i, a in enumerate(active) if a)
        tangent_types = [types[i - n] for i in places]

        def rule(steps: Steps, instantiated: tuple[int, ...] = ()) -> Tangents:
            return Tangents(out_nonzero, zeros, instantiated, steps)

        linear_part = self.fn.linear_part
        if linear_part is not None and linear_part.linear is Linear.IN_DIFFERENTIABLE and all_nonzero:
            # tangents in place of the differentiable operands
            inputs = tuple(n + i if t.differentiable else i for i, t in enumerate(types))
            zero = tuple(i for i, t in enumerate(types) if t.differentiable and not active[i])
            return rule(_single_step(linear_part, types, self.results, inputs, 2 * n), zero)
        if linear_part is not None and all(t.differentiable for t in types) and all_nonzero:
            fn = linear_part if all(active) else linear_part.restricted(active, types, self.results[0])
            if fn == IDENTITY and tangent_types[0] == self.results[0]:
                return rule(Steps((), places[:1]))
            if fn is not None:
                return rule(_single_step(fn, tangent_types, self.results, places, 2 * n))
            zero = tuple(i for i, a in enumerate(active) if not a)
            return rule(_single_step(linear_part, types, self.results, tuple(range(n, 2 * n)), 2 * n), zero)
        linear = _is_linear_in(self.fn, active)
        if all_nonzero and linear and not (for_vjp and sum(active) > 1):
            return rule(self._product_rule(places))
        if not linear and self.fn.primal(types)[0] is self.fn:  # its program is traced for the check anyway
            has_derivative = with_derivative(self.fn, active, types, len(self.results))
            out_nonzero = tuple(n and d for n, d in zip(out_nonzero, has_derivative, strict=True))
            if not any(out_nonzero):
                return rule(Steps((), ()))
            constant_in = without_derivative(self.fn, types, len(self.results))
            active = tuple(a and i not in constant_in for i, a in enumerate(active))
            places = tuple(n + i for i, a in enumerate(active) if a)
            tangent_types = [types[i - n] for i in places]
        jvp = Jvp(self.fn, active, out_nonzero)
        if not linear:
            check_derivative(self.fn, active, jvp, types, tangent_types)
        results = tuple(t for t, c in zip(self.results, out_nonzero, strict=True) if c)
        return rule(_single_step(jvp, (*types, *tangent_types), results, (*range(n), *places), 2 * n))

    def _product_rule(self, tangents: Sequence[int]) -> Steps:
        """The sum of the function applied to each tangent in place of its operand."""
        n, result = len(self.operands), self.results[:1]
        add = _local(ADD, result * 2, result)
        terms = [(self, (*range(i - n), i, *range(i - n + 1, n))) for i in tangents]
        sums = [(add, (2 * n + (len(terms) + i - 1 if i else 0), 2 * n + i + 1)) for i in range(len(terms) - 1)]
        return Steps((*terms, *sums), (2 * n + len(terms) + len(sums) - 1,))

    def accumulate(self, cts: Sequence[Any], operands: Sequence[Any]) -> None:
        """Adds the cotangents of the linear operands, each an `Accumulator`."""
        if all(type(ct) is Zero for ct in cts):
            return
        self.fn.check_transposed()
        key = (
            *[~x.aval.serial if isinstance(x, Accumulator) else x.type.serial for x in operands],
            *[None if type(ct) is Zero else ct.type.serial for ct in cts],
        )
        pullback = self._pullbacks.get(key)
        if pullback is None:
            linear = [isinstance(x, Accumulator) for x in operands]
            # an Accumulator's aval is the cotangent type, which has the operand's local shape
            types = [x.aval if u else x.type for x, u in zip(operands, linear, strict=True)]
            ct_types = [None if type(ct) is Zero else ct.type for ct in cts]
            pullback = self._pullbacks[key] = self._cotangents(types, linear, ct_types)
        for into, steps in pullback:
            for i, ct in zip(into, steps.run((*operands, *cts)), strict=True):
                operands[i].accum(ct)

    def _cotangents(
        self, types: Sequence[HiShType], linear: Sequence[bool], cts: Sequence[HiShType | None]
    ) -> list[tuple[tuple[int, ...], Steps]]:
        """The steps that compute cotangents of groups of linear operands, in the order in which they are added."""
        n = len(types)
        into = tuple(i for i, u in enumerate(linear) if u)
        if isinstance(self.fn, Jvp) and _is_linear_in(self.fn.fn, self.fn.active) and into[0] >= len(self.fn.active):
            return self._cotangents_of_terms(types, into, cts)
        inputs: list[Any] = [*types, *cts]  # None for a zero cotangent
        by_operand = self._adjoints(types, linear) if len(cts) == 1 else None
        if by_operand is None:
            transposed = Transpose(
                self.fn,
                tuple((t.local_shape, t.dtype_name) if u else None for t, u in zip(types, linear, strict=True)),
                tuple(t is not None for t in cts),
                tuple((t.local_shape, t.dtype_name) for t in self.results),
            )
            places = tuple(i for i, t in enumerate(inputs) if t is not None and not (i < n and linear[i]))
            ins = [inputs[i] for i in places]
            check_transpose(self.fn, types, transposed, ins)
            return [(into, _single_step(transposed, ins, [types[i] for i in into], places, len(inputs)))]
        if self.fn.linear is Linear.JOINTLY:
            places = (n,)
        elif self.fn.linear is Linear.IN_DIFFERENTIABLE:
            places = (*(j for j, t in enumerate(types) if not linear[j] and not t.differentiable), n)
        else:
            places = tuple(n if u else j for j, u in enumerate(linear))
        steps, results = list[tuple[Local, tuple[int, ...]]](), list[int]()
        for i, fn in zip(into, by_operand, strict=True):
            if fn == IDENTITY and cts[0] == types[i]:
                results.append(n)
                continue
            results.append(n + 1 + len(steps))
            steps.append((_local(fn, [inputs[j] for j in places], (types[i],)), places))
        return [(into, Steps(tuple(steps), tuple(results)))]

    def _cotangents_of_terms(
        self, types: Sequence[HiShType], into: Sequence[int], cts: Sequence[HiShType | None]
    ) -> list[tuple[tuple[int, ...], Steps]]:
        """Like `_cotangents`, for the tangent of a product, which is a sum: term by term, the last first."""
        assert isinstance(self.fn, Jvp)
        n, pullback = len(self.fn.active), list[tuple[tuple[int, ...], Steps]]()
        replaced = [i for i, a in enumerate(self.fn.active) if a]
        for index in reversed(into):
            at = replaced[index - n]  # the operand that this tangent replaces
            places = [*range(at), index, *range(at + 1, n), *range(len(types), len(types) + len(cts))]
            term = _local(self.fn.fn, [self.operands[i] for i in places[:n]], self.results)
            ((_, steps),) = term._cotangents([types[i] for i in places[:n]], [i == at for i in range(n)], cts)
            pullback.append(((index,), steps.renumbered(places, len(types) + len(cts))))
        return pullback

    def _adjoints(self, types: Sequence[ShType], linear: Sequence[bool]) -> list[ShardFn] | None:
        """The adjoint for each linear operand, or None if JAX must transpose."""
        if self.fn.linear not in (Linear.JOINTLY, Linear.IN_DIFFERENTIABLE) and sum(linear) != 1:
            return None
        adjoints = [self.fn.adjoint(i, types, self.results[0]) for i, u in enumerate(linear) if u]
        return None if None in adjoints else adjoints  # type: ignore[return-value]

    @functools.cached_property
    def _has_keys(self) -> bool:
        return any(dtypes.is_key(t.dtype_name) for t in (*self.operands, *self.results))

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        if all(d is None for d in dims):
            return self.bind(*operands), [None] * len(self.results)
        if self._has_keys:
            check_mapped_keys(self.fn, [jax.typeof(x) for x in operands], dims, self.results)
        results = tuple(t.inc_rank(axis_data.size, 0) for t in self.results)
        fn = self.fn.batched(dims, [jax.typeof(x).ndim for x in operands]) or Vmap(self.fn, tuple(dims))
        return local_all(fn, *operands, out=results), [0] * len(results)


def _is_linear_in(fn: ShardFn, active: Sequence[bool]) -> bool:
    """Whether a function is linear in each active operand, with the others constant."""
    return fn.linear is Linear.MULTILINEAR and all(fn.linear_in(i) for i, a in enumerate(active) if a)


def _single_step(
    fn: ShardFn, operands: Sequence[ShType], results: Sequence[ShType], places: tuple[int, ...], count: int
) -> Steps:
    """The steps that apply one function to the inputs at some of ``count`` places."""
    return Steps(((_local(fn, operands, results), places),), tuple(range(count, count + len(results))))


ADD: Final = Add()
#: By function and serial numbers of the types, because layers and their backward passes repeat.
_locals: Final[dict[Any, Local]] = {}


def _local(fn: ShardFn, operands: Sequence[ShType], out: Sequence[ShType]) -> Local:
    """The cached operation for operands and results of these types."""
    key = (fn, tuple([t.serial for t in operands]), tuple([t.serial for t in out]))
    operation = _locals.get(key)
    if operation is None:
        if len(_locals) >= CACHE_SIZE:
            _locals.clear()
        operation = _locals[key] = Local(fn, tuple(map(as_jax_type, operands)), tuple(map(as_jax_type, out)))
    return operation


def local_all(fn: ShardFn, *operands: Any, out: Sequence[ShType]) -> list[Array]:
    """Applies a shard function with several results, of types ``out``."""
    if all(type(x) is Array for x in operands) and no_trace_is_running():
        return run(fn, operands, tuple(map(as_jax_type, out)))
    return _local(fn, [x.type for x in operands], out).bind(*operands)


def local(fn: ShardFn, *operands: Any, out: ShType) -> Array:
    """Applies a shard function with one result, of type ``out``."""
    return local_all(fn, *operands, out=(out,))[0]


def zeros_of(t: ShType) -> Array:
    """Zeros of a type, in any state, without communication."""
    return local(Full(False if t.dtype_name == "bool" else 0, t.local_shape, t.dtype_name), out=t)


def is_zeros(x: Array) -> bool:
    """Whether a traced value is all zeros by construction, as the gradient of an unused argument."""
    fn = fn_of(x)
    return isinstance(fn, Full) and isinstance(fn.value, (int, float)) and not fn.value


def moved_to_front(x: Array, dim: int) -> Array:
    """A typed value with one dim moved to the front."""
    if dim == 0:
        return x
    t = jax.typeof(x)
    perm = (dim, *(d for d in range(t.ndim) if d != dim))
    return local(Permute(perm), x, out=t.replace(dims=[t.dims[d] for d in perm]))


def repeated(x: Array, size: int, dim: int = 0) -> Array:
    """A typed value repeated along a new dim."""
    t = jax.typeof(x)
    out = t.inc_rank(size, dim)
    return local(Broadcast(out.local_shape, tuple(d + (d >= dim) for d in range(t.ndim))), x, out=out)
