"""Lists the options of an equation of a plain program along one mesh axis: the states of its operands and results.

The equation's typing rule is run on *seeds*, in which one operand is sharded on one dim or pending and the others are
replicated. The casts that it inserts are the states of the others in that option.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from jax.extend.core import jaxpr_as_fun

from shtypes._compat.derivative_rules import Residuals, residuals_of
from shtypes._compat.jaxprs import inner_jaxprs, is_literal, is_used, literal_value
from shtypes._compat.program_keys import key_of_equation
from shtypes._compat.tracing import trace_typed
from shtypes.analysis.compute import seconds_of
from shtypes.analysis.flops import is_convolution, products
from shtypes.caches import Bounded
from shtypes.core.array import Array
from shtypes.core.jax_type import HiShType, as_jax_type
from shtypes.core.operation import noting_bound
from shtypes.core.reshard import Reshard, types_as_used
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.interpreter import by_row, evaluate_closed, row_of
from shtypes.evaluation.table import ACROSS, BODIES
from shtypes.evaluation.value_info import PLACES, note, note_constant, of_some, type_of
from shtypes.lifting import lift as lift_
from shtypes.lifting.ways.choice import apart, tried_apart, ways_of
from shtypes.lifting.ways.moving import moves_alike
from shtypes.ops.table import OPS
from shtypes.resharding.devices import Device, as_device
from shtypes.solver.axis_states import INVARIANT, REDUCED, SHARDED, axis_state, typed
from shtypes.solver.option import FORBIDDEN, CommPerByte, Operand, Option, states_of
from shtypes.solver.smaller import smaller
from shtypes.traced.ledger import ledger_of
from shtypes.traced.program import with_gradient
from shtypes.types import ShType, dtypes
from shtypes.types.mesh import Mesh
from shtypes.types.policy import current_policy

#: Sharding annotations of `lift` and of JAX.
_ANNOTATIONS: Final = frozenset({"sharding_annotation", "sharding_constraint", "reshard", "mesh_cast"})
#: The most operands of a call of which each pair is sharded together.
_MOST_PAIRED: Final = 4
#: The most operands that are tried in different states, of ops that treat all alike, and across shards.
_MOST_ALIKE: Final = 8
#: By which the work of algorithms is compared.
_DEVICE: Final[Device] = as_device("h100-sxm", "")
#: Importing it fills the table of primitives.
_IMPORTED: Final = (lift_,)
#: Functions with custom derivative rules.
_CUSTOM_RULES: Final = ("custom_jvp_call", "custom_vjp_call")
#: A typing rule: operands to results; None if it does not apply.
_Row = Callable[[list[Any]], Sequence[Any] | None]
_options_cache: Final[Bounded[tuple[Option, ...]]] = Bounded()
_residuals_cache: Final[Bounded[Residuals]] = Bounded()
_comm_cache: Final[Bounded[tuple[CommPerByte | None]]] = Bounded()
_work_cache: Final[Bounded[float]] = Bounded()


def options(
    eqn: Any, size: int, operands: Sequence[Operand | None], names: Sequence[str] = ("axis",)
) -> tuple[Option, ...]:
    """The options of an equation along a mesh axis of ``size`` devices; the first is all replicated.

    Literal operands are None. ``names`` are those of the axis and of the others of the mesh, which some equations name.
    """
    eqn, operands = smaller(eqn, operands, size)
    key = _key(eqn, operands, size, names)
    return _options_cache.get_or_create(key, lambda: tuple(_Probe(eqn, operands, size, names).options()))


def way_options(eqn: Any, size: int, operands: Sequence[Operand | None], *, assuming: bool) -> tuple[Option, ...]:
    """The options of an equation across shards; with ``assuming``, also those that assume something of the operands.

    They are those along the fewest devices that divide the same dims; of ways with the same states the cheapest.
    """
    if size == 1 or not any(assuming or not way.assumes for way in ways_of(eqn)):
        return ()
    dims = {n for v in (*eqn.invars, *eqn.outvars) for n in v.aval.shape}
    few = next(k for k in range(2, size + 1) if size % k == 0 and all(n % k or n % size == 0 for n in dims))
    small, alike = (*smaller(eqn, operands, few), few, ("axis",)), dict[Any, list[Option]]()
    key = ("ways", assuming, *_key(*small))
    for o in _options_cache.get_or_create(key, lambda: tuple(_Probe(*small).ways(assuming))):
        alike.setdefault((o.operands, o.results), []).append(o)
    price = functools.partial(comm_per_byte, eqn, Mesh({"axis": size}), operands)
    cheapest = functools.partial(min, key=lambda o: sum((price([o]) or FORBIDDEN)[:2]))
    return tuple(cheapest(some) if len(some) > 1 else some[0] for some in alike.values())


def residuals(eqn: Any, operands: tuple[int, ...]) -> Residuals:
    """The residuals of an equation, differentiated by the given operands."""
    key = ("residuals", key_of_equation(eqn), operands)
    return _residuals_cache.get_or_create(key, lambda: residuals_of(eqn, operands))


def _key(eqn: Any, operands: Sequence[Operand | None], size: int, names: Sequence[str]) -> tuple[Any, ...]:
    return (key_of_equation(eqn), tuple(operands), size, tuple(names), current_policy())


class _Traced(NamedTuple):
    """What an equation gives on operands of some types."""

    types: list[ShType | None]  # of the results; None of plain ones
    program: Any  # of the results that are used


class _Probe:
    """Runs the typing rule of an equation on a mesh in which only one axis has more than one device."""

    def __init__(self, eqn: Any, operands: Sequence[Operand | None], size: int, names: Sequence[str]) -> None:
        self.eqn, self.operands, self.axis, self.size = eqn, operands, next(iter(names), ""), size
        self.mesh = Mesh({name: size if name == self.axis else 1 for name in names})
        self.others = REDUCED  # the state along the other axes
        self.values = [i for i, x in enumerate(operands) if x is not None]
        #: Those with a state to choose: other constants than the largest of all are cast as the rule needs them.
        self.free = [i for i in self.values if not self._of(i).constant or self._is_largest(i)]
        self.typed_row: _Row = lambda xs: (row_of(eqn.primitive.name, BODIES) or by_row)(eqn, xs)
        self.row = self.typed_row
        if eqn.primitive.name in _CUSTOM_RULES:  # without the rule, its casts are visible
            self.row = lambda xs: evaluate_closed(eqn.params["call_jaxpr"], xs)

    def _of(self, i: int) -> Operand:
        x = self.operands[i]
        assert x is not None
        return x

    def _is_largest(self, i: int) -> bool:
        return i == max(self.values, key=lambda j: (self._of(j).elements, not self._of(j).constant))

    def seeds(self) -> Iterator[dict[int, int]]:
        """States of operands to try; missing ones are replicated."""
        yield {}
        states = {i: states_of(self._of(i), self.size) for i in self.free}
        if any(INVARIANT in each for each in states.values()):
            yield {i: INVARIANT for i, each in states.items() if INVARIANT in each}
        if len(states) > _MOST_ALIKE and (moves_alike(self.eqn) or not inner_jaxprs(self.eqn)):
            every = dict.fromkeys(s for each in states.values() for s in each if s not in (REDUCED, INVARIANT))
            yield from ({i: s for i, each in states.items() if s in each} for s in every)
            return
        for i, each in states.items():
            for state in each:
                if state not in (REDUCED, INVARIANT):
                    yield {i: state}
        # The ops of a body may not cast one operand to match another.
        if inner_jaxprs(self.eqn):
            least = 2 if is_complete(self.eqn, len(self.free)) else 3
            yield from (seed for seed in self._sharded_seeds() if len(seed) >= least)

    def _sharded_seeds(self) -> Iterator[dict[int, int]]:
        """Seeds in which one operand is sharded, or two are, or all that can be are on the same dim."""
        sharded = {i: [s for s in states_of(self._of(i), self.size) if s >= SHARDED] for i in self.free}
        if len(sharded) > 2:
            every = dict.fromkeys(s for states in sharded.values() for s in states)
            yield from ({i: s for i, states in sharded.items() if s in states} for s in every)
        for i, states in sharded.items():
            for state in states:
                yield {i: state}
                if len(sharded) <= _MOST_ALIKE:
                    yield from ({i: state, j: s} for j, others in sharded.items() if j > i for s in others)

    def options(self) -> Iterator[Option]:
        """The distinct options, from the seeds that type."""
        seeds = list(self.seeds())
        seen: dict[tuple[tuple[int, ...], tuple[int, ...]], Option] = {}
        refused: ShardingTypeError | None = None
        others = [s for i in self.free for s in self._of(i).other_states if len(self.mesh.axis_names) > 1]
        for self.others in dict.fromkeys([REDUCED, *others]):
            typed_seeds = self._type_seeds(seeds)
            first, none_types = typed_seeds[0], not any(isinstance(o, Option) for o in typed_seeds)
            if isinstance(first, ShardingTypeError) and self.free and none_types:
                refused = refused or first
                continue
            for seed, option in zip(seeds, typed_seeds, strict=True):
                if isinstance(option, ShardingTypeError):
                    option = self._across(seed, self.row) if self._takes_out else None
                if option is not None:
                    seen.setdefault((option.operands, option.results), option)
        if refused is not None and not seen:
            raise refused
        yield from seen.values()

    def ways(self, assuming: bool) -> Iterator[Option]:
        """The options across shards along the axis, with what they send forward."""
        for seed in self._sharded_seeds():
            for number, way in enumerate(ways_of(self.eqn)):
                tried = assuming or not way.assumes
                traced = self.trace(self._types(seed), functools.partial(way.run, self.eqn)) if tried else None
                if traced is not None and (option := self._option_of(seed, traced)) is not None:
                    sent = ledger_of(traced.program).total.bytes / self._local_bytes(traced)
                    yield option._replace(sent=sent, way=number)

    def _types(self, seed: dict[int, int]) -> list[HiShType]:
        return self.types([self._along(self._of(i), seed.get(i, REDUCED)) for i in self.values])

    def _along(self, x: Operand, state: int) -> list[int]:
        """The states of an operand along all axes."""
        others = self.others if self.others in x.other_states and not x.constant else REDUCED
        return [state if name == self.axis else others for name in self.mesh.axis_names]

    def types(self, states: Sequence[Sequence[int]]) -> list[HiShType]:
        """The types of the operands from their states along all axes."""
        pairs = [(self._of(i), each) for i, each in zip(self.values, states, strict=True)]
        return [as_jax_type(typed(self.mesh, x.dtype, x.shape, each)) for x, each in pairs]

    def _type_seeds(self, seeds: Sequence[dict[int, int]]) -> list[Option | ShardingTypeError | None]:
        """The option of each seed, or the error; None if a result varies."""
        options: list[Option | ShardingTypeError | None] = []

        def run(*arrays: Any) -> None:
            rest = iter(arrays)
            for seed in seeds:
                xs = [next(rest) for _ in self.values]
                try:
                    options.append(self._option(seed, xs))
                except ShardingTypeError as error:
                    options.append(error.with_traceback(None))

        with apart(self.mesh):
            trace_typed(run, [t for seed in seeds for t in self._types(seed)])
        return options

    def _option(self, seed: dict[int, int], xs: list[Array]) -> Option | None:
        with noting_bound() as bound:
            outs = self.row(self._with_literals(xs))
        results = [axis_state(out.type, self.axis) if isinstance(out, Array) else REDUCED for out in outs]
        if None in results:
            return None
        states: list[int | None] = [REDUCED] * len(self.operands)
        for i, t in zip(self.values, types_as_used(xs, bound), strict=True):
            states[i] = axis_state(t, self.axis) if i in self.free else REDUCED
        return Option(tuple(states), tuple(results), *self._explicit_comm(bound))  # type: ignore[arg-type]

    def _explicit_comm(self, bound: Any) -> tuple[float, float]:
        """Bytes per byte of the reshards inside the equation, of ``out=`` say; annotations are priced as reshards."""
        size = _nbytes(self.eqn.outvars[0].aval)
        moves = [op for op, _, _ in bound if isinstance(op, Reshard) and not op.inserted]
        if is_annotation(self.eqn) or not size:
            return 0.0, 0.0
        forward, backward = (
            [c.bytes for op in moves for c in each(op)] for each in (Reshard.forward_comm, Reshard.backward_comm)
        )
        return sum(forward) / size, sum(backward) / size

    def _with_literals(self, xs: Sequence[Any]) -> list[Any]:
        """All operands, literals included; notes constants and iotas for the typing rule."""
        full = [literal_value(v) if is_literal(v) else None for v in self.eqn.invars]
        for i, x in zip(self.values, xs, strict=True):
            full[i] = x
            if self._of(i).constant:
                note_constant(x)
            if self._of(i).place is not None:
                note(x, PLACES, self._of(i).place)
        return full

    @property
    def _takes_out(self) -> bool:
        """Whether the op may communicate along a sharded dim, as with ``out=``."""
        call = self.eqn.params.get("call")
        if self.eqn.primitive.name != "typed_call" or is_annotation(self.eqn) or getattr(call, "name", "") not in OPS:
            return self.eqn.primitive.name in ACROSS
        return "out" in inspect.signature(OPS[call.name].function).parameters

    def _across(self, seed: dict[int, int], row: _Row) -> Option | None:
        """The option of a typing rule that communicates along a sharded dim; None if it does not apply."""
        if not any(s >= SHARDED for s in seed.values()):
            return None
        traced = self.trace(self._types(seed), row)
        if traced is None or (option := self._option_of(seed, traced)) is None:
            return None
        comm = self.price(traced, self.size)
        return comm and option._replace(sent=comm.forward, sent_backward=comm.backward, work=comm.work)

    def _option_of(self, seed: dict[int, int], traced: _Traced) -> Option | None:
        """The option of a seed and what it gives; None if a result varies."""
        results = [REDUCED if t is None else axis_state(t, self.axis) for t in traced.types]
        if None in results:
            return None
        states = tuple(seed.get(i, REDUCED) for i in range(len(self.operands)))
        return Option(states, tuple(results))  # type: ignore[arg-type]

    def _undivided_work(self) -> float:
        """The work on replicated operands as `Costs` has it: that of products, or from memory and back in each run."""
        if products(self.eqn):
            types = self.types([[REDUCED] * len(self.mesh.axis_names)] * len(self.values))
            traced = self.trace(types, self.typed_row)
            both = traced and self._with_gradient(types, traced.program, tried_apart)
            return 0.0 if both is None else seconds_of(both, _DEVICE)
        runs = 1 + sum(self._of(i).live for i in self.values)
        avals = [self.eqn.invars[i].aval for i in self.values] + [v.aval for v in self.eqn.outvars]
        return runs * sum(map(_nbytes, avals)) / _DEVICE.bandwidth

    def _local_bytes(self, traced: _Traced) -> int:
        """Bytes on each device of `OpComm.local_bytes`; 1 of an array without elements, for which nothing is sent."""
        first: ShType | None = traced.types[0]
        if is_convolution(self.eqn) and 0 in self.values and not self._of(0).constant:
            first = traced.program.jaxpr.invars[self.values.index(0)].aval
        return (_nbytes(self.eqn.outvars[0].aval) if first is None else first.local_bytes) or 1

    def trace(self, types: Sequence[HiShType], row: _Row, scope: Callable[[Mesh], Any] = tried_apart) -> _Traced | None:
        """A typing rule on operands of some types; None if it refuses them."""
        results: list[ShType | None] = []

        def run(*xs: Any) -> Any:
            outs = row(self._with_literals(xs))
            results[:] = [] if outs is None else map(type_of, outs)
            return outs and ([*itertools.compress(outs, map(is_used, self.eqn.outvars))] or outs)

        program = self._tried(run, types, scope)
        return _Traced(results, program) if results else None

    def _with_gradient(self, types: Sequence[HiShType], program: Any, scope: Callable[[Mesh], Any]) -> Any:
        """The program with the gradients of its operands; None if it has none."""
        live = [k for k, i in enumerate(self.values) if self._of(i).live]

        def differentiated(*xs: Any) -> Any:
            replayed = of_some(lambda full: jaxpr_as_fun(program)(*full), xs, live)
            return with_gradient(replayed)(*[xs[k] for k in live])

        return self._tried(differentiated, types, scope)

    def _tried(self, f: Callable[..., Any], types: Sequence[HiShType], scope: Callable[[Mesh], Any]) -> Any:
        with scope(self.mesh):
            try:
                return trace_typed(f, types)
            except Exception:  # also of a package's primitive, which may say in its own words that it has no gradient
                return None

    def price(self, traced: _Traced, devices: int, scope: Callable[[Mesh], Any] = tried_apart) -> CommPerByte | None:
        """What a program sends, forward and backward, and its work; None if it has no gradient."""
        program = traced.program
        both = self._with_gradient([v.aval for v in program.jaxpr.invars], program, scope)
        if both is None:
            return None
        forward, size = ledger_of(program).total.bytes, self._local_bytes(traced)
        backward, undivided = ledger_of(both).total.bytes - forward, 0.0
        if devices > 1:
            undivided = _work_cache.get_or_create(_key(self.eqn, self.operands, 1, ()), self._undivided_work)
        work = seconds_of(both, _DEVICE) * devices / undivided if undivided else 1.0
        return CommPerByte(forward / size, backward / size, work)


def comm_per_byte(
    eqn: Any, mesh: Mesh, operands: Sequence[Operand | None], options: Sequence[Option], *, implicit: bool = False
) -> CommPerByte | None:
    """The communication of the typed op with one option for each axis of a mesh.

    None if it does not type, `FORBIDDEN` if its results differ from the options'. With ``implicit``, ops may reshard.
    """
    ways = {o.way for o in options if o.across_shards}
    way = next(iter(ways)) if len(ways) == 1 else None

    def compute() -> CommPerByte | None:
        probe = _Probe(eqn, operands, 1, ())
        probe.mesh = mesh
        try:
            types = probe.types([[o.operands[i] for o in options] for i in probe.values])
        except ShardingTypeError:  # the axes do not divide a dim
            return None
        row = probe.typed_row if way is None else functools.partial(ways_of(eqn)[way].run, eqn)
        scope, devices = tried_apart if ways or implicit else apart, 1
        if way is not None:
            devices = math.prod(n for n, o in zip(mesh.axis_sizes, options, strict=True) if o.divides)
        traced = probe.trace(types, row, scope)
        comm = traced and probe.price(traced, devices, scope)
        if traced is None or comm is None:  # where a way does not apply, the op reshards its operands, as the plan may
            return None if way is None else FORBIDDEN
        for k, t in enumerate(traced.types):
            expected = [o.results[k] for o in options]
            if any(expected) if t is None else typed(mesh, t.dtype_name, t.shape, expected) != t:
                return FORBIDDEN
        return comm

    key = (*_key(eqn, operands, 1, ()), mesh, tuple(options), implicit)
    return None if len(ways) > 1 else _comm_cache.get_or_create(key, lambda: (compute(),))[0]


def is_complete(eqn: Any, count: int) -> bool:
    """Whether the options of an equation cover all combinations of ``count`` operands; not of calls with many."""
    return not inner_jaxprs(eqn) or count <= _MOST_PAIRED


def _nbytes(aval: Any) -> int:
    return int(math.prod(aval.shape)) * dtypes.itemsize(dtypes.from_numpy(aval.dtype))


def is_annotation(eqn: Any) -> bool:
    """Whether an equation only annotates or reshards its operand."""
    call = eqn.params.get("call")
    return eqn.primitive.name in _ANNOTATIONS or (
        eqn.primitive.name == "typed_call" and getattr(call, "is_identity", False)
    )
