"""The ledger: every collective of a traced program, with its line, direction and bytes.

It is read off the traced typed program, and needs no devices. Values that leave the typed program are listed as not
covered.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

import jax

from shtypes._compat.jaxprs import dependent_vars, is_literal, jaxpr_of, variables, with_equations
from shtypes._compat.tracing import trace_typed
from shtypes.context.signature_errors import check_function
from shtypes.core.conversion import abstract
from shtypes.core.jax_type import as_jax_type
from shtypes.core.operation import Comm, Operation, applied_by
from shtypes.errors import ShardingTypeError, how_many
from shtypes.resharding import Price
from shtypes.resharding.costs import CostModel
from shtypes.resharding.moves import all_in_words, in_words
from shtypes.traced.coverage import why_not_covered
from shtypes.traced.entry import HEADINGS, NUMBERS, Entry, NotCovered, entries_of, entry_json, row
from shtypes.traced.equations import Equation, RuledCall, equations, with_cotangents
from shtypes.traced.program import (
    backward_pass,
    is_merged,
    linearized,
    program_of,
    with_gradient,
    zero_cotangent,
)
from shtypes.types import ShType
from shtypes.types.tables import Report, Table

#: The version of the format of `Ledger.to_json`.
SCHEMA = 1


class Total(NamedTuple):
    """The bytes that each device sends and the collectives, with the most expensive branch of each conditional."""

    bytes: int
    launches: int


class Ledger(Sequence[Entry], Report):
    """The entries in program order, and what is not covered.

    Args:
        entries: The collectives.
        not_covered: Equations that may communicate too.
    """

    def __init__(self, entries: Iterable[Entry] = (), not_covered: Iterable[NotCovered] = ()) -> None:
        self.entries = tuple(entries)
        self.not_covered = tuple(not_covered)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        return self.entries[index]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        return self.entries == other.entries and self.not_covered == other.not_covered

    def __hash__(self) -> int:
        return hash((self.entries, self.not_covered))

    def select(self, keep: Callable[[Entry], bool]) -> Ledger:
        """The entries for which ``keep`` is true, with all of what is not covered."""
        return Ledger(filter(keep, self.entries), self.not_covered)

    def forward(self) -> Ledger:
        """The collectives of the forward pass."""
        return self.select(lambda entry: entry.direction == "forward")

    def backward(self) -> Ledger:
        """The collectives of the backward pass, including those that checkpoint recomputes."""
        return self.select(lambda entry: entry.direction != "forward")

    # totals

    @property
    def bytes(self) -> int:
        """Bytes that each device sends; a collective in a while loop counts once."""
        return int(_worst(self.entries, lambda entry: entry.bytes * entry.runs))

    @property
    def launches(self) -> int:
        """The number of collectives that run; one in a while loop counts once."""
        return int(_worst(self.entries, lambda entry: entry.launches * entry.runs))

    @property
    def known(self) -> bool:
        """Whether the totals are exact: no while loops, and nothing uncovered."""
        return not self.not_covered and all(entry.times is not None for entry in self.entries)

    @property
    def total(self) -> Total:
        """Bytes and launches."""
        return Total(self.bytes, self.launches)

    def by_axes(self) -> dict[tuple[str, ...], Total]:
        """The totals for each group of mesh axes."""
        return self._by(lambda entry: entry.axes)

    def by_kind(self) -> dict[str, Total]:
        """The totals for each kind of collective."""
        return self._by(lambda entry: entry.kind)

    def by_direction(self) -> dict[str, Total]:
        """The totals for each direction."""
        return self._by(lambda entry: entry.direction)

    def _by(self, key: Callable[[Entry], Any]) -> dict[Any, Total]:
        keys = dict.fromkeys(map(key, self.entries))
        return {k: self.select(lambda entry, k=k: key(entry) == k).total for k in keys}  # type: ignore[misc]

    def time(self, model: CostModel) -> float:
        """Seconds of the collectives in sequence, by a cost model."""
        return float(_worst(self.entries, lambda entry: model.seconds(entry) * entry.runs))

    def time_by_axes(self, model: CostModel) -> dict[tuple[str, ...], float]:
        """The times for each group of mesh axes."""
        return {axes: self.select(lambda e, axes=axes: e.axes == axes).time(model) for axes in self.by_axes()}  # type: ignore[misc]

    # output

    @property
    def title(self) -> str:
        """The heading of its page."""
        return "Collectives"

    def tables(self) -> list[Table]:
        """The table of the collectives, with `notes` below it."""
        return [Table("", HEADINGS, tuple(map(row, self.entries)), frozenset(NUMBERS), "\n".join(self.notes()))]

    def __repr__(self) -> str:
        return f"<Ledger: {len(self)} collectives, {self.bytes} B/device>"

    def notes(self) -> list[str]:
        """The totals, their caveats, and what is not covered."""
        if self.entries:
            parts = [f"{d}: {_words(t)}" for d, t in self.by_direction().items()]
            notes = [f"total: {_words(self.total)} ({'; '.join(parts)})"]
        else:
            notes = ["no communication" + (" that types know of" if self.not_covered else "")]
        if any(entry.branches for entry in self.entries):
            notes.append("of each conditional, the totals count the branch that sends most")
        if any(entry.times is None for entry in self.entries):
            notes.append("a collective in a while loop counts once: how often it runs is not known")
        if self.not_covered:
            notes += ["not covered:", *(f"  {item}" for item in dict.fromkeys(self.not_covered))]
        return notes

    def to_dict(self) -> dict[str, Any]:
        """The ledger for JSON, as described in the docs (communication); types in canonical notation."""
        return {
            "schema": SCHEMA,
            "entries": [entry_json(entry) for entry in self.entries],
            "not_covered": [
                {"what": n.what, "why": n.why, "times": n.times, "direction": n.direction, **n.place.to_json()}
                for n in self.not_covered
            ],
            "totals": {
                **self.total._asdict(),
                "known": self.known,
                "by_axes": {",".join(axes): t._asdict() for axes, t in self.by_axes().items()},
                "by_kind": {kind: t._asdict() for kind, t in self.by_kind().items()},
                "by_direction": {direction: t._asdict() for direction, t in self.by_direction().items()},
            },
        }


def _worst(entries: Iterable[Entry], of: Callable[[Entry], float], depth: int = 0) -> float:
    """The sum of ``of``, with the largest branch of each conditional."""
    total: float = 0
    choices: dict[int, dict[int, list[Entry]]] = {}
    for entry in entries:
        if len(entry.branches) == depth:
            total += of(entry)
        else:
            branch = entry.branches[depth]
            choices.setdefault(branch.choice, {}).setdefault(branch.index, []).append(entry)
    return total + sum(max(_worst(part, of, depth + 1) for part in branches.values()) for branches in choices.values())


def _words(total: Total) -> str:
    return f"{total.bytes} B/device in {how_many(total.launches, 'collective')}"


# construction


def ledger_of(jaxpr: Any) -> Ledger:
    """The ledger of a traced program, from `jax.make_jaxpr` or ``.trace(...).jaxpr``."""
    return ledger_from(equations(jaxpr, keep=_communicates))


def _communicates(eqn: Any) -> bool:
    return getattr(eqn.primitive, "communicates", True)


def ledger_from(program: Iterable[Equation]) -> Ledger:
    """The ledger of a program's equations."""
    entries, uncovered = list[Entry](), list[NotCovered]()
    for equation in program:
        if isinstance(applied_by(equation.eqn), Operation):
            entries += entries_of(equation)
        elif why := why_not_covered(equation.eqn):
            uncovered.append(
                NotCovered(str(applied_by(equation.eqn)), why, equation.times, equation.direction, equation.place)
            )
    return Ledger(entries, uncovered)


def ledger(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Ledger:
    """The collectives of a function for arguments of these types; nothing runs.

    Args:
        f: A function of typed values and plain arrays; jitted or not.
        *args: Its arguments: values, abstract values (`shtypes.abstract_array`), or types, also as strings; numbers
            and other non-arrays are passed as they are.
        **kwargs: More arguments.

    Returns:
        The entries, in program order, as `jax.jit` compiles the program: unused collectives are left out. For a result
        of `shtypes.jit`, as that compiles it: adjacent reshards are merged (docs: resharding, merged reshards).
    """
    check_function("ledger", f)
    args, kwargs = jax.tree.map(abstract, (args, kwargs))
    program, _ = program_of(f, args, kwargs, merges=is_merged(f))
    return ledger_of(program)


#: The bytes that a program sends forward and backward.
Sent = tuple[int, int]
#: A program's communication forward and backward, in words and in bytes per device.
InWords = tuple[str, str, int, int]


def priced(f: Callable[..., Any], types: Sequence[ShType]) -> InWords:
    """The communication of a function as written; only forward if it has no derivative, as with a `while_loop`."""
    return priced_before_each(f, types, lambda _: [lambda *xs: xs])[0]


def priced_before_each(
    f: Callable[..., Any], types: Sequence[ShType], functions: Callable[[Sequence[Any]], Sequence[Callable[..., Any]]]
) -> list[InWords]:
    """The communication of ``f`` followed by each of some functions of its results, as `priced` of them composed.

    It is traced and linearized once for all. ``functions`` returns them for the types of its results.
    """
    counts: list[int] = []

    def forward(*xs: Any) -> list[list[Any]]:
        results = jax.tree.leaves(f(*xs))
        return [jax.tree.leaves(g(*results)) for g in functions(list(map(jax.typeof, results)))]

    def forward_and_backward(*xs: Any) -> list[list[Any]]:
        results, pull = linearized(f, xs, {})
        outs = []
        for g in functions(list(map(jax.typeof, results))):
            last, _, cotangents = backward_pass(g, results, {}, zero_cotangent)
            outs.append([*last, *pull(cotangents)])
        return outs

    def traced(run: Callable[..., list[list[Any]]]) -> Any:
        def flat(*xs: Any) -> list[Any]:
            outs = run(*xs)
            counts[:] = map(len, outs)
            return [x for out in outs for x in out]

        return trace_typed(flat, list(map(as_jax_type, types)))

    try:
        program = traced(forward_and_backward)
    except (NotImplementedError, TypeError, ValueError) as error:
        if isinstance(error, ShardingTypeError) and not isinstance(error.__cause__, NotImplementedError):
            raise
        program = traced(forward)  # it has no derivative
    ends = itertools.accumulate(counts)
    return [
        _of_passes(ledger_from(equations(program, keep=_communicates, used=range(end - count, end))))
        for count, end in zip(counts, ends, strict=True)
    ]


def _of_passes(ledger: Ledger) -> InWords:
    forward, backward = ledger.forward(), ledger.backward()
    return _in_words(forward), _in_words(backward), forward.bytes, backward.bytes


def _in_words(entries: Sequence[Entry]) -> str:
    each = ((in_words(e.kind, e.axes) + (f" in {e.dtype}" if e.narrow else ""), e.runs) for e in entries)
    return all_in_words(all_in_words([words], runs) for words, runs in sorted(each))


def sent_by_program(jaxpr: Any) -> Sent:
    """The bytes that a traced program sends, and will send when differentiated by its arguments."""
    prices = prices_of_program(jaxpr)
    return sum(p.forward_bytes for p in prices), sum(p.backward_bytes for p in prices)


def prices_of_program(jaxpr: Any) -> tuple[Price, ...]:
    """The prices of a traced program's communicating operations, forward and when differentiated."""
    opened = jaxpr_of(jaxpr)
    prices, constant = list[Price](), _eqns_without_cotangents(opened)
    ruled: dict[int, tuple[Price, ...] | None] = {}  # the backward passes of calls with derivative rules, by id
    for equation in equations(jaxpr):
        operation, call = applied_by(equation.eqn), equation.call
        if not isinstance(operation, Operation):
            continue
        sides: tuple[Sequence[Comm], Sequence[Comm]] = operation.forward_comm(), ()
        if equation.direction != "forward":
            sides = sides[::-1]
        elif not equation.depth and id(equation.eqn if call is None else call.eqn) not in constant:
            sides = sides[0], operation.backward_comm()
            if call is not None and any(sides):
                if id(call.eqn) not in ruled:
                    ruled[id(call.eqn)] = _by_rules(opened, call)
                    prices += ruled[id(call.eqn)] or ()
                sides = sides if ruled[id(call.eqn)] is None else (sides[0], ())
        if any(sides):
            sent, words = zip(*(_priced(comms, equation.times or 1) for comms in sides), strict=True)
            prices.append(Price(*sent, *words))
    return tuple(prices)


def _by_rules(jaxpr: Any, call: RuledCall) -> tuple[Price, ...] | None:
    """The prices of the backward pass of a call by its derivative rules; None if it has none."""
    operands = list(dict.fromkeys(v for v in call.eqn.invars if not is_literal(v)))
    program = with_equations(jaxpr, [call.eqn], call.eqn.outvars).replace(constvars=[], invars=operands)
    f = with_gradient(functools.partial(jax.core.eval_jaxpr, program, ()), zero_cotangent)
    try:
        backward = ledger_of(trace_typed(f, [v.aval for v in operands])).backward()
    except (NotImplementedError, TypeError, ValueError):
        return None
    times = call.times or 1
    return tuple(
        Price(0, times * e.bytes * e.runs, "", all_in_words([in_words(e.kind, e.axes)], times * e.runs))
        for e in backward
    )


def _priced(comms: Sequence[Comm], times: int) -> tuple[int, str]:
    """The communication of steps that run ``times`` times: in bytes and in words."""
    return times * sum(c.bytes for c in comms), all_in_words((c.words for c in comms), times)


def _eqns_without_cotangents(jaxpr: Any) -> set[int]:
    """The ids of equations that depend on no argument, or by which no result of the program has a derivative."""
    dependent = dependent_vars(jaxpr, range(len(jaxpr.invars)))
    moved = with_cotangents(jaxpr)
    return {id(e) for e in jaxpr.eqns if moved.isdisjoint(e.outvars) or dependent.isdisjoint(variables(e.invars))}
