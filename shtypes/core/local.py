"""The `local` primitive: a function that each device applies to its shards. It never communicates.

What it applies is a parameter (`operation`), so that jaxprs read ``einsum[sbh,hi->sbi] a b``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import jax

from shtypes._compat import Accumulator, Zero, instantiate_zeros, no_trace_is_running
from shtypes.caches import MOST
from shtypes.core.array import Array
from shtypes.core.dim_fns import Broadcast
from shtypes.core.elementwise_fns import IDENTITY, Add, Full, Permute
from shtypes.core.jax_type import HiShType, hi
from shtypes.core.operation import LinearizedPrimitive, Operation
from shtypes.core.run_op import run
from shtypes.core.shard_fn import Jvp, Linear, LocalFn, Transpose, Vmap, check_derivative, check_transpose
from shtypes.rules.cotangent import check_tangent
from shtypes.types import ShType


class LocalPrimitive(LinearizedPrimitive):
    """The primitive `local`."""

    def accumulate(self, cts: Sequence[Any], *operands: Any, **params: Any) -> None:
        params["operation"].accumulate(cts, operands)


local_p = LocalPrimitive("local", communicates=False)


#: An operation, and the places of its operands.
Step: TypeAlias = "tuple[Local, tuple[int, ...]]"


class Steps(NamedTuple):
    """Local functions to apply one after another. Values are known by their places: those given, then each result.

    Attributes:
        steps: The operations, and the places of their operands.
        results: The places of the results.
    """

    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def run(self, given: Sequence[Any]) -> list[Any]:
        """The results for values of the types that it was made for."""
        values = list(given)
        for operation, places in self.steps:
            values += operation.applied(*[values[i] for i in places])
        return [values[i] for i in self.results]

    def renumbered(self, places: Sequence[int], count: int) -> Steps:
        """The same where the values given are at other places, among ``count``."""
        new = [*places, *range(count, count + len(self.steps))]
        steps = tuple((operation, tuple(new[i] for i in operands)) for operation, operands in self.steps)
        return Steps(steps, tuple(new[i] for i in self.results))


@dataclass(frozen=True)
class Tangents:
    """How the tangents of the results of an operation follow from those of its operands.

    Attributes:
        carried: Which results have a tangent that may differ from zero.
        zeros: The tangents of the other results, and of these that stand for nothing.
        instantiated: The operands whose tangents of zero are written out.
        steps: From the operands and their tangents to the tangents that are carried.
    """

    carried: tuple[bool, ...]
    zeros: tuple[Any, ...]
    instantiated: tuple[int, ...]
    steps: Steps

    def push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The tangents of all results."""
        if self.instantiated:
            tangents = [instantiate_zeros(t) if i in self.instantiated else t for i, t in enumerate(tangents)]
        moved = iter(self.steps.run((*primals, *tangents)))
        return [next(moved) if c else zero for c, zero in zip(self.carried, self.zeros, strict=True)]


@dataclass(frozen=True, eq=False)
class Local(Operation):
    """A local function applied to shards; the result types come from the typing rules."""

    primitive = local_p
    fn: LocalFn
    operands: tuple[HiShType, ...]
    results: tuple[HiShType, ...]

    def __str__(self) -> str:
        return str(self.fn)

    def run(self, *operands: Any) -> list[Any]:
        return run(self.fn, operands, self.results)

    def to_lojax(self, *operands: Any) -> list[Any]:
        return run(self.fn, operands, self.results)

    # derivatives: what is bound for them is found once for operands of the same kinds

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        check_tangents(primals, tangents)
        outs, _, push = self.linearize(primals, [not isinstance(t, Zero) for t in tangents], False)
        return outs, push(tangents)

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], for_vjp: bool) -> tuple[Any, Any, Any]:
        outs = self.bind(*primals)
        key = (*nonzero, for_vjp)
        found = self._pushed.get(key)
        if found is None:
            found = self._pushed[key] = self._tangents(nonzero, for_vjp)
        return outs, found.carried, functools.partial(found.push, primals)

    @functools.cached_property
    def _pushed(self) -> dict[Any, Tangents]:
        return {}

    def _tangents(self, nonzero: Sequence[bool], for_vjp: bool) -> Tangents:
        active = tuple(n and t.differentiable for t, n in zip(self.operands, nonzero, strict=True))
        moves = any(active) and not self.fn.stops_gradient
        carried = tuple(moves and t.differentiable for t in self.results)
        zeros = tuple(Zero(t.to_tangent_aval()) for t in self.results)
        if not any(carried):
            return Tangents(carried, zeros, (), Steps((), ()))
        n, types, every = len(active), self.operands, all(carried)
        given = tuple(n + i for i, a in enumerate(active) if a)
        tangent_types = [types[i - n] for i in given]
        linear_part = self.fn.linear_part
        if linear_part is not None and linear_part.linear is Linear.BESIDE and every:
            places = tuple(n + i if t.differentiable else i for i, t in enumerate(types))
            zero = tuple(i for i, t in enumerate(types) if t.differentiable and not active[i])
            return Tangents(carried, zeros, zero, _one(linear_part, types, self.results, places, 2 * n))
        if linear_part is not None and all(t.differentiable for t in types) and every:
            fn = linear_part if all(active) else linear_part.restricted(active, types, self.results[0])
            if fn == IDENTITY and tangent_types[0] == self.results[0]:
                return Tangents(carried, zeros, (), Steps((), given[:1]))
            if fn is not None:
                return Tangents(carried, zeros, (), _one(fn, tangent_types, self.results, given, 2 * n))
            zero = tuple(i for i, a in enumerate(active) if not a)
            places = tuple(range(n, 2 * n))
            return Tangents(carried, zeros, zero, _one(linear_part, types, self.results, places, 2 * n))
        if every and _is_linear_in(self.fn, active) and not (for_vjp and sum(active) > 1):
            return Tangents(carried, zeros, (), self._product_rule(given))
        results = tuple(t for t, c in zip(self.results, carried, strict=True) if c)
        fn = Jvp(self.fn, active, carried)
        if not _is_linear_in(self.fn, active):
            check_derivative(self.fn, active, fn, types, tangent_types)
        steps = _one(fn, (*types, *tangent_types), results, (*range(n), *given), 2 * n)
        return Tangents(carried, zeros, (), steps)

    def _product_rule(self, given: Sequence[int]) -> Steps:
        """The sum of what it gives with each of some tangents in the place of its operand."""
        n, result = len(self.operands), self.results[:1]
        add = _applied(ADD, result * 2, result)
        terms = [(self, (*range(i - n), i, *range(i - n + 1, n))) for i in given]
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
        found = self._pulled.get(key)
        if found is None:
            linear = [isinstance(x, Accumulator) for x in operands]
            # JAX gives a linear operand's cotangent type here, not its own; they have one local shape.
            types = [x.aval if u else x.type for x, u in zip(operands, linear, strict=True)]
            known = [None if type(ct) is Zero else ct.type for ct in cts]
            found = self._pulled[key] = self._cotangents(types, linear, known)
        for into, steps in found:
            for i, ct in zip(into, steps.run((*operands, *cts)), strict=True):
                operands[i].accum(ct)

    @functools.cached_property
    def _pulled(self) -> dict[Any, list[tuple[tuple[int, ...], Steps]]]:
        return {}

    def _cotangents(
        self, types: Sequence[HiShType], linear: Sequence[bool], cts: Sequence[HiShType | None]
    ) -> list[tuple[tuple[int, ...], Steps]]:
        """What gives the cotangents of some of the linear operands, in the order in which they are added up."""
        n = len(types)
        into = tuple(i for i, u in enumerate(linear) if u)
        if isinstance(self.fn, Jvp) and _is_linear_in(self.fn.fn, self.fn.active) and into[0] >= len(self.fn.active):
            return self._cotangents_of_terms(types, into, cts)
        known: list[Any] = [*types, *cts]  # None stands for a cotangent of zero
        by_operand = self._adjoints(types, linear) if len(cts) == 1 else None
        if by_operand is None:
            transposed = Transpose(
                self.fn,
                tuple((t.local_shape, t.dtype_name) if u else None for t, u in zip(types, linear, strict=True)),
                tuple(t is not None for t in cts),
                tuple((t.local_shape, t.dtype_name) for t in self.results),
            )
            places = tuple(i for i, t in enumerate(known) if t is not None and not (i < n and linear[i]))
            check_transpose(self.fn, transposed, [known[i] for i in places])
            return [(into, _one(transposed, [known[i] for i in places], [types[i] for i in into], places, len(known)))]
        steps, results = list[Step](), list[int]()
        for i, fn in zip(into, by_operand, strict=True):
            if fn == IDENTITY and cts[0] == types[i]:
                results.append(n)
                continue
            if self.fn.linear is Linear.JOINTLY:
                places = (n,)
            elif self.fn.linear is Linear.BESIDE:
                places = (*(j for j, t in enumerate(types) if not linear[j] and not t.differentiable), n)
            else:
                places = tuple(n if u else j for j, u in enumerate(linear))
            results.append(n + 1 + len(steps))
            steps.append((_applied(fn, [known[j] for j in places], (types[i],)), places))
        return [(into, Steps(tuple(steps), tuple(results)))]

    def _cotangents_of_terms(
        self, types: Sequence[HiShType], into: Sequence[int], cts: Sequence[HiShType | None]
    ) -> list[tuple[tuple[int, ...], Steps]]:
        """The same for the sum that is the tangent of a product: term by term, the last first."""
        assert isinstance(self.fn, Jvp)
        n, found = len(self.fn.active), list[tuple[tuple[int, ...], Steps]]()
        replaced = [i for i, a in enumerate(self.fn.active) if a]
        for index in reversed(into):
            at = replaced[index - n]  # the operand in whose place this tangent is
            places = [*range(at), index, *range(at + 1, n), *range(len(types), len(types) + len(cts))]
            term = _applied(self.fn.fn, [self.operands[i] for i in places[:n]], self.results)
            ((_, steps),) = term._cotangents([types[i] for i in places[:n]], [i == at for i in range(n)], cts)
            found.append(((index,), steps.renumbered(places, len(types) + len(cts))))
        return found

    def _adjoints(self, types: Sequence[ShType], linear: Sequence[bool]) -> list[LocalFn] | None:
        """The adjoint for each linear operand, or None if JAX must transpose."""
        if self.fn.linear not in (Linear.JOINTLY, Linear.BESIDE) and sum(linear) != 1:
            return None
        found = [self.fn.adjoint(i, types, self.results[0]) for i, u in enumerate(linear) if u]
        return None if None in found else found  # type: ignore[return-value]

    def batch(self, axis_data: Any, operands: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        if all(d is None for d in dims):
            return self.bind(*operands), [None] * len(self.results)
        results = tuple(t.inc_rank(axis_data.size, 0) for t in self.results)
        ranks = [jax.typeof(x).ndim for x in operands]
        fn = self.fn.batched(dims, ranks) or Vmap(self.fn, tuple(dims))
        return local_all(fn, *operands, out=results), [0] * len(results)


def _is_linear_in(fn: LocalFn, active: Sequence[bool]) -> bool:
    """Whether a function is linear in each of the active operands, the others held."""
    return fn.linear is Linear.EACH and all(fn.linear_in(i) for i, a in enumerate(active) if a)


def _one(
    fn: LocalFn, operands: Sequence[ShType], results: Sequence[ShType], places: tuple[int, ...], given: int
) -> Steps:
    """One function, applied to what is at some of the places of ``given`` values."""
    return Steps(((_applied(fn, operands, results), places),), tuple(range(given, given + len(results))))


def check_tangents(primals: Sequence[Any], tangents: Sequence[Any]) -> None:
    """Refuses tangents of other types than their values, which raw `jax.jvp` lets through."""
    for x, t in zip(primals, tangents, strict=True):
        own = jax.typeof(x)
        if type(t) is not Zero and type(own) is HiShType and own.differentiable:
            given = jax.typeof(t)
            if given is not own and given != own:
                check_tangent(given if type(given) is HiShType else str(given), own)


def local_all(fn: LocalFn, *operands: Any, out: Sequence[ShType]) -> list[Array]:
    """Applies a local function that has several results; ``out`` gives their types."""
    if all(type(x) is Array for x in operands) and no_trace_is_running():
        return run(fn, operands, tuple(map(hi, out)))
    return _applied(fn, [x.type for x in operands], out).bind(*operands)


ADD: Final = Add()
#: By the function, and the serial numbers of the types: layers are alike, and so are their backward passes.
_known: Final[dict[Any, Local]] = {}


def _applied(fn: LocalFn, operands: Sequence[ShType], out: Sequence[ShType]) -> Local:
    """A local function for operands and results of these types; the same object for the same."""
    key = (fn, tuple([t.serial for t in operands]), tuple([t.serial for t in out]))
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST:
            _known.clear()
        found = _known[key] = Local(fn, tuple(map(hi, operands)), tuple(map(hi, out)))
    return found


def local(fn: LocalFn, *operands: Any, out: ShType) -> Array:
    """Applies a local function to shards; ``out`` is the type of its one result."""
    return local_all(fn, *operands, out=(out,))[0]


def zeros_of(t: ShType) -> Array:
    """Zero of a type: in any state, without communication."""
    zero = False if t.dtype_name == "bool" else 0
    return local(Full(zero, t.local_shape, t.dtype_name), out=t)


def moved_to_front(x: Array, dim: int) -> Array:
    """A typed value with one dim before the others."""
    if dim == 0:
        return x
    t = jax.typeof(x)
    perm = (dim, *(d for d in range(t.ndim) if d != dim))
    return local(Permute(perm), x, out=t.replace(dims=[t.dims[d] for d in perm]))


def repeated(x: Array, size: int, dim: int = 0) -> Array:
    """A typed value with a new dim, along which it is repeated."""
    t = jax.typeof(x)
    out = t.inc_rank(size, dim)
    return local(Broadcast(out.local_shape, tuple(d + (d >= dim) for d in range(t.ndim))), x, out=out)
