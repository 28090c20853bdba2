"""What one equation of a plain program may do along one mesh axis, as data.

Its row in the table of primitives types *seeds*, in which one operand is sharded on one dim or pending and the others
are replicated; the casts that the row inserts tell the states that the others take along with it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat.derivative_rules import Residuals, residuals_of
from shtypes._compat.jaxprs import is_literal, key_of_equation, literal_value
from shtypes._compat.plain_programs import alone
from shtypes.caches import Bounded
from shtypes.context.user_line import wrap_jax_errors
from shtypes.core.array import Array, wrap
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.meshes import use_mesh
from shtypes.core.operation import noting_bound
from shtypes.core.reshard import Reshard
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.interpreter import by_row, evaluate_closed, row_of
from shtypes.evaluation.table import ACROSS, BODIES
from shtypes.evaluation.value_info import PLACES, note, note_constant, noting, of_some, type_of
from shtypes.lifting import lift as lift_
from shtypes.lifting.ways.choice import CALLS, assumes, tried_apart, ways_of
from shtypes.ops.table import OPS
from shtypes.scopes.comm import CommScope, objective, without_scopes
from shtypes.solver.axis_states import (
    FRONT,
    INVARIANT,
    REDUCED,
    SHARDED,
    UNREDUCED,
    axis_state,
    typed,
)
from shtypes.traced.ledger import ledger_of
from shtypes.traced.program import with_gradient
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import current_policy

#: Annotations, as `lift` records them and as JAX does.
_PLACING: Final = frozenset({"sharding_annotation", "sharding_constraint", "reshard", "mesh_cast"})
#: Of so many operands of a call each two are sharded together.
_FEW: Final = 4
#: What fills the table of primitives.
_FILLED: Final = (lift_,)


class Option(NamedTuple):
    """What an equation may do along an axis."""

    operands: tuple[int, ...]  # the state of each, by `axis_states`; REDUCED for what depends on no argument
    results: tuple[int, ...]
    #: Bytes that each device sends, for each byte of the first result that it has: along a sharded dim.
    sent: float = 0.0
    sent_backward: float = 0.0  # what it sends besides where it is differentiated
    way: int | None = None  # the number of the way across shards; None where the op has no choice

    @property
    def joins(self) -> bool:
        """Whether the op works across shards, where its row alone would not type or would do something else."""
        return self.sent > 0 or self.way is not None

    @property
    def divides(self) -> bool:
        """Whether each device does its part of the work, and not all of it."""
        return any(s >= SHARDED for s in (*self.operands, *self.results))

    @property
    def fronts(self) -> bool:
        """Whether the axis is put before others of its dims."""
        return any(s >= FRONT for s in (*self.operands, *self.results))

    def in_front(self) -> Option:
        """It with the axis before the others of its dims."""
        operands, results = (tuple([s + FRONT * (s >= SHARDED) for s in x]) for x in (self.operands, self.results))
        return self._replace(operands=operands, results=results)


class Operand(NamedTuple):
    """What is known of an operand of an equation."""

    shape: tuple[int, ...]
    dtype: str  # the short name
    constant: bool = False  # whether it depends on no argument: it takes the state of whatever it meets
    live: bool = True  # whether it has a cotangent, where the equation is differentiated
    place: Any = None  # along which dim its elements count, where that is known

    @property
    def beside(self) -> list[int]:
        """The states that it can have along axes beside the one that is asked about."""
        return [s for s in states_of(self, 1) if s != INVARIANT]


class Sent(NamedTuple):
    """What an equation sends, for each byte of its first result on a device."""

    forward: float
    backward: float


#: What is sent by what no plan has.
NEVER: Final = Sent(math.inf, 0.0)

#: Functions with derivative rules of their own.
_RULED: Final = ("custom_jvp_call", "custom_vjp_call")
#: The results of an equation for operands; None where it has none.
_Row = Callable[[list[Any]], Sequence[Any] | None]
_known: Final[Bounded[tuple[Option, ...]]] = Bounded()
_residuals: Final[Bounded[Residuals]] = Bounded()
_together: Final[Bounded[tuple[Sent | None]]] = Bounded()


def operand(aval: Any, *, constant: bool = False) -> Operand:
    """An operand of one of JAX's types."""
    return Operand(tuple(map(int, aval.shape)), dtypes.from_numpy(aval.dtype), constant)


def options(
    eqn: Any, size: int, operands: Sequence[Operand | None], names: Sequence[str] = ("axis",)
) -> tuple[Option, ...]:
    """What an equation may do along one mesh axis of some devices; the first is that each device does all of it.

    Of operands that are None nothing is asked. ``names`` are those of the axis and of the others of the mesh, of which
    some equations speak.
    """
    key = _key(eqn, operands, size, names)
    return _known.get_or_create(key, lambda: tuple(_Asked(eqn, operands, size, names).options()))


def way_options(
    eqn: Any, size: int, operands: Sequence[Operand | None], names: Sequence[str], *, assuming: bool
) -> tuple[Option, ...]:
    """The ways of an equation across shards; those that assume something of its operands only if ``assuming``."""
    if size == 1 or not any(assuming or not assumes(way) for way in ways_of(eqn)):
        return ()
    key = ("ways", assuming, *_key(eqn, operands, size, names))
    return _known.get_or_create(key, lambda: tuple(_Asked(eqn, operands, size, names).ways(assuming)))


def residuals(eqn: Any, operands: tuple[int, ...]) -> Residuals:
    """What the derivative of an equation by some operands needs."""
    key = ("residuals", key_of_equation(eqn), operands)
    return _residuals.get_or_create(key, lambda: residuals_of(eqn, operands))


def _key(eqn: Any, operands: Sequence[Operand | None], size: int, names: Sequence[str]) -> tuple[Any, ...]:
    return (key_of_equation(eqn), tuple(operands), size, tuple(names), current_policy())


class _Asked:
    """An equation whose options are asked of its row, on a mesh of one axis; others have one device each."""

    def __init__(self, eqn: Any, operands: Sequence[Operand | None], size: int, names: Sequence[str]) -> None:
        self.eqn, self.operands, self.axis, self.size = eqn, operands, next(iter(names), ""), size
        self.mesh = Mesh({name: size if name == self.axis else 1 for name in names})
        self.others = REDUCED  # the state along the other axes
        self.values = [i for i, x in enumerate(operands) if x is not None]
        self.free = [i for i in self.values if not self._of(i).constant]  # those that an option says something of
        self.typed_row: _Row = lambda xs: (row_of(eqn.primitive.name, BODIES) or by_row)(eqn, xs)
        self.row = self.typed_row
        if eqn.primitive.name in _RULED:  # without its derivative rule, casts show
            self.row = lambda xs: evaluate_closed(eqn.params["call_jaxpr"], xs)

    def _of(self, i: int) -> Operand:
        found = self.operands[i]
        assert found is not None
        return found

    def seeds(self) -> Iterator[dict[int, int]]:
        """States of operands to begin with; those not named are replicated."""
        yield {}
        if any(dtypes.differentiable(self._of(i).dtype) for i in self.free):
            yield {i: INVARIANT for i in self.free if dtypes.differentiable(self._of(i).dtype)}
        for i in self.free:
            for state in states_of(self._of(i), self.size):
                if state not in (REDUCED, INVARIANT):
                    yield {i: state}
        # What is inside brings no operand beside the others, or only where it takes it beside them.
        if self.eqn.primitive.name in (*CALLS, *_RULED) and len(self.free) <= _FEW:
            yield from (seed for seed in self._sharded_seeds() if len(seed) > 1)

    def _sharded_seeds(self) -> Iterator[dict[int, int]]:
        """States in which one operand is sharded, or two are, or all are alike."""
        sharded = {i: [s for s in states_of(self._of(i), self.size) if s >= SHARDED] for i in self.free}
        if len(sharded) > 2:
            yield from (dict.fromkeys(self.free, s) for s in set.intersection(*map(set, sharded.values())))
        for i, states in sharded.items():
            for state in states:
                yield {i: state}
                yield from ({i: state, j: s} for j, others in sharded.items() if j > i for s in others)

    def options(self) -> Iterator[Option]:
        """The distinct options, from the seeds that type."""
        seeds = list(self.seeds())
        seen: dict[tuple[tuple[int, ...], tuple[int, ...]], Option] = {}
        refused: ShardingTypeError | None = None
        beside = [REDUCED] if len(self.mesh.axis_names) == 1 else [s for i in self.free for s in self._of(i).beside]
        for self.others in dict.fromkeys([REDUCED, *beside]):
            found = self._typed(seeds)
            if isinstance(found[0], ShardingTypeError) and self.free and not any(isinstance(o, Option) for o in found):
                refused = refused or found[0]
                continue
            for seed, option in zip(seeds, found, strict=True):
                if isinstance(option, ShardingTypeError):
                    option = self._across(seed, self.row) if self._may_join else None
                if option is not None:
                    seen.setdefault((option.operands, option.results), option)
        if refused is not None and not seen:
            raise refused
        yield from seen.values()

    def ways(self, assuming: bool) -> Iterator[Option]:
        """The ways across shards along the axis."""
        for seed in self._sharded_seeds():
            for number, way in enumerate(ways_of(self.eqn)):
                if assumes(way) and not assuming:
                    continue
                option = self._across(seed, functools.partial(way, self.eqn))
                if option is not None:
                    yield option._replace(way=number)

    def _types(self, seed: dict[int, int]) -> list[HiShType]:
        return self.types([self._along(self._of(i), seed.get(i, REDUCED)) for i in self.values])

    def _along(self, x: Operand, state: int) -> list[int]:
        """The states of an operand along all axes."""
        others = self.others if self.others in x.beside and not x.constant else REDUCED
        return [state if name == self.axis else others for name in self.mesh.axis_names]

    def types(self, states: Sequence[Sequence[int]]) -> list[HiShType]:
        """The types of the operands in some states along all axes."""
        known = [(self._of(i), each) for i, each in zip(self.values, states, strict=True)]
        return [as_jax_type(typed(self.mesh, x.dtype, x.shape, each)) for x, each in known]

    def _typed(self, seeds: Sequence[dict[int, int]]) -> list[Option | ShardingTypeError | None]:
        """For each seed the option that it is, or why it does not type; None where a result varies."""
        found: list[Option | ShardingTypeError | None] = []

        def ask(*arrays: Any) -> None:
            rest = iter(arrays)
            for seed in seeds:
                xs = [next(rest) for _ in self.values]
                try:
                    found.append(self._option(seed, xs))
                except ShardingTypeError as error:
                    found.append(error.with_traceback(None))

        arrays = [wrap(t, None) for seed in seeds for t in self._types(seed)]
        with _strictly(self.mesh):
            jax.make_jaxpr(ask)(*arrays)
        return found

    def _option(self, seed: dict[int, int], xs: list[Array]) -> Option | None:
        with noting_bound() as bound:
            outs = self.row(self._filled(xs))
        results = [axis_state(out.type, self.axis) if isinstance(out, Array) else REDUCED for out in outs]
        if None in results:
            return None
        casts: dict[int, set[int | None]] = {}
        for operation, operands, made in bound:
            for x in operands:
                cast = isinstance(operation, Reshard) and operation.inserted
                casts.setdefault(id(x), set()).add(axis_state(made[0].type, self.axis) if cast else None)
        states = [REDUCED] * len(self.operands)
        for i, x in zip(self.values, xs, strict=True):
            cast_to = casts.get(id(x), set())
            (only,) = cast_to if len(cast_to) == 1 else (None,)
            states[i] = seed.get(i, REDUCED) if only is None else only
            if i not in self.free:
                states[i] = REDUCED
        return Option(tuple(states), tuple(results), *self._written(bound))  # type: ignore[arg-type]

    def _written(self, bound: Any) -> tuple[float, float]:
        """What reshards send that the equation asks for, with ``out=`` say; of one that is a reshard tables know it."""
        size = _nbytes(self.eqn.outvars[0].aval)
        moves = [op for op, _, _ in bound if isinstance(op, Reshard) and not op.inserted]
        if only_places(self.eqn) or not size:
            return 0.0, 0.0
        forward, backward = (
            [c.bytes for op in moves for c in each(op)] for each in (Reshard.forward_comm, Reshard.backward_comm)
        )
        return sum(forward) / size, sum(backward) / size

    def _filled(self, xs: Sequence[Any]) -> list[Any]:
        """The operands, with numbers in their places and notes of what is known of the others."""
        full = [literal_value(v) if is_literal(v) else None for v in self.eqn.invars]
        for i, x in zip(self.values, xs, strict=True):
            full[i] = x
            if self._of(i).constant:
                note_constant(x)
            if self._of(i).place is not None:
                note(x, PLACES, self._of(i).place)
        return full

    @property
    def _may_join(self) -> bool:
        call = self.eqn.params.get("call")
        if self.eqn.primitive.name != "typed_call" or only_places(self.eqn) or getattr(call, "name", "") not in OPS:
            return self.eqn.primitive.name in ACROSS
        return "out" in inspect.signature(OPS[call.name].function).parameters

    def _across(self, seed: dict[int, int], row: _Row) -> Option | None:
        """An op along a sharded dim that communicates: in a way across shards, or as it does where ``out=`` asks."""
        if not any(s >= SHARDED for s in seed.values()):
            return None
        found = self.sent(self._types(seed), row)
        if found is None or not (size := self.local_bytes(found[0])):
            return None
        results = [REDUCED if t is None else axis_state(t, self.axis) for t in found[0]]
        if None in results:
            return None
        states = tuple(seed.get(i, REDUCED) for i in range(len(self.operands)))
        return Option(states, tuple(results), found[1] / size, found[2] / size)  # type: ignore[arg-type]

    def local_bytes(self, results: Sequence[ShType | None]) -> int:
        """Bytes of the first result on each device."""
        return _nbytes(self.eqn.outvars[0].aval) if results[0] is None else results[0].local_bytes

    def sent(
        self, types: Sequence[HiShType], row: _Row, scope: Callable[[Mesh], Any] = tried_apart
    ) -> tuple[list[ShType | None], int, int] | None:
        """The types of the results for operands of some types, and what is sent forward and backward."""
        results: list[ShType | None] = []
        live = [k for k, i in enumerate(self.values) if self._of(i).live]

        def run(*xs: Any) -> Any:
            outs = row(self._filled(xs))
            results[:] = [] if outs is None else map(type_of, outs)
            return outs

        def differentiated(*xs: Any) -> Any:
            return with_gradient(of_some(lambda full: run(*full), xs, live))(*[xs[k] for k in live])

        arrays = [wrap(t, None) for t in types]
        with scope(self.mesh):
            try:
                with wrap_jax_errors(self.eqn.primitive.name, "has no gradient"):
                    forward, both = (ledger_of(jax.make_jaxpr(f)(*arrays)).total.bytes for f in (run, differentiated))
            except ShardingTypeError:
                return None
        return (results, forward, both - forward) if results else None


def together(
    eqn: Any, mesh: Mesh, operands: Sequence[Operand | None], some: Sequence[Option], *, implicit: bool = False
) -> Sent | None:
    """What an equation sends that takes an option along each axis of a mesh, as the typed op does it.

    None where it does not type so, `NEVER` where it gives other results. With ``implicit``, ops communicate unasked.
    """
    ways = {o.way for o in some if o.joins}

    @contextlib.contextmanager
    def scope(mesh: Mesh) -> Iterator[None]:
        with tried_apart(mesh) if ways or implicit else _strictly(mesh), across(ways):
            yield

    def ask() -> Sent | None:
        asked = _Asked(eqn, operands, 1, ())
        asked.mesh = mesh
        try:
            types = asked.types([[o.operands[i] for o in some] for i in asked.values])
        except ShardingTypeError:  # the axes do not divide a dim
            return None
        found = asked.sent(types, asked.typed_row, scope)
        if found is None:
            return None
        for k, t in enumerate(found[0]):
            said = [o.results[k] for o in some]
            if any(said) if t is None else typed(mesh, t.dtype_name, t.shape, said) != t:
                return NEVER
        size = asked.local_bytes(found[0])
        return Sent(found[1] / size, found[2] / size) if size else Sent(0.0, 0.0)

    key = (*_key(eqn, operands, 1, ()), mesh, tuple(some), implicit)
    return None if len(ways) > 1 else _together.get_or_create(key, lambda: (ask(),))[0]


def across(ways: Collection[int | None]) -> contextlib.AbstractContextManager[Any]:
    """A scope in which an op works across shards, by its way if there is one; without ways, none."""
    way = next(iter(ways)) if len(ways) == 1 else None
    return CommScope(replace(objective(), joint=False, way=way)) if ways else contextlib.nullcontext()


@contextlib.contextmanager
def _strictly(mesh: Mesh) -> Iterator[None]:
    """A scope in which ops do not communicate, for the trace of equations apart from their program."""
    with without_scopes(), noting(), alone(), use_mesh(mesh):
        yield


def states_of(x: Operand, size: int) -> list[int]:
    """The states that an operand can have along an axis of ``size`` devices."""
    found = [REDUCED, INVARIANT] if dtypes.differentiable(x.dtype) else [REDUCED]
    found += [UNREDUCED] if dtypes.summable(x.dtype) else []
    return found + [SHARDED + d for d, n in enumerate(x.shape) if n and n % size == 0]


def _nbytes(aval: Any) -> int:
    return int(math.prod(aval.shape)) * dtypes.itemsize(dtypes.from_numpy(aval.dtype))


def only_places(eqn: Any) -> bool:
    """Whether an equation says how its operand lies and nothing else."""
    call = eqn.params.get("call")
    return eqn.primitive.name in _PLACING or (
        eqn.primitive.name == "typed_call" and getattr(call, "is_the_value", False)
    )
