"""The edits by which a program gets a plan: the expressions of its reshards, and where these are written.

The function is traced again from a copy of its source in which each expression marks its value, which shows the
expression of each operand.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax

from shtypes._compat.jaxprs import equations, inner_jaxprs
from shtypes.errors import ShardingTypeError
from shtypes.evaluation.rows.elementwise import acts_per_element
from shtypes.lifting.ways.moving import MARKED, is_mark
from shtypes.solver.apply import NamedUse, PlannedCast, named_uses
from shtypes.solver.items import Op, Operand, Value, is_value
from shtypes.solver.program import Function, Program, line_of
from shtypes.suggestions.plan import Plan
from shtypes.tools.patch_source import Edits, Place
from shtypes.tools.patch_target import Source
from shtypes.traced.equations import SourceLine
from shtypes.types import REPLICATED, Dim, ShType
from shtypes.types.target import target_text

#: Numbers of ops from a difference on whose lines are traced without marks, one after the other.
_FURTHER: Final = (1, 2, 4, 8, 16)
#: The primitives that add or remove dims.
_SHAPES: Final = frozenset({"broadcast_in_dim", "expand_dims", "reshape", "squeeze"})


def _expressions(plan: Plan, uses: Sequence[NamedUse], source: Source) -> list[Chain]:
    """The expressions of each use, by a trace with marks.

    Where marks keep apart what is one operation without them, as a slice and a sort, lines are traced without theirs.
    """
    f, arguments = source.marked(plan.arguments)
    shapes, program = jax.tree.map(_struct, arguments), plan.problem.program
    planned = _by_op(uses)
    while True:
        marked = Function(f, shapes, plan.problem.argnums, plan.problem.mesh)
        marks = _Marks(marked)
        others = _by_op(marks.uses)
        by_op = list(map(marks.expressions, planned, others))
        if len(planned) == len(others) and None not in by_op:
            return [chain for chains in by_op if chains is not None for chain in chains]
        at = min(by_op.index(None) if None in by_op else len(by_op), len(planned) - 1, len(others) - 1)
        lines = _lines(program, planned[at][:1])
        steps = (
            (lines | _lines(marked, [u for u, *_ in others[at : at + n]]), all_expressions)
            for n in _FURTHER
            for all_expressions in (False, True)
        )
        if not any(source.unmark(lines, all_expressions=all_expressions) for lines, all_expressions in steps):
            raise ShardingTypeError(
                f"the plan cannot be written into `{source.file.path.name}`",
                why=f"{_at(planned[at][0])}: its program is another one when its expressions are looked at one by one",
                hints=[source.apply],
            )


def _lines(program: Program, uses: Sequence[NamedUse]) -> set[SourceLine]:
    """The user's lines of the equations in the ops of uses."""
    items = {use.item for use in uses}
    eqns = (op.eqn for op in program.ops if str(op.id) in items)
    return {line_of(e) for eqn in eqns for e in (eqn, *(e for body, _ in inner_jaxprs(eqn) for e in equations(body)))}


def _struct(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, ShType) else x


# the expressions of reshards


#: The expressions of a value, with the number of times that each runs.
Chain = list[tuple[int, float]]


class _Marks:
    """The marks in a program that was traced from a marked source."""

    def __init__(self, program: Program) -> None:
        ops = {str(op.id): op for op in program.ops if is_mark(op.eqn)}
        self._of = {v.id: op for op in ops.values() for v in op.results}
        #: The uses of the program without those in marks.
        self.uses = [u for u in _uses(program) if u.item not in ops]

    def _chain(self, x: Operand) -> Chain:
        """The expressions of a value, the first used one first."""
        return [(int(op.eqn.params["name"].removeprefix(MARKED)), op.times) for op in self._around(x)]

    def _unmarked(self, x: Value) -> Any:
        """The value without its marks."""
        return [x, *(op.operands[0] for op in self._around(x))][-1]

    def _around(self, x: Operand) -> Iterator[Op]:
        while isinstance(x, Value) and x.id in self._of:
            yield self._of[x.id]
            x = self._of[x.id].operands[0]

    def expressions(self, uses: Sequence[NamedUse], others: Sequence[NamedUse]) -> list[Chain] | None:
        """The expressions of each use of an op, by those of the marked program's op; None if that is another op.

        A call of several equations takes a value once, and with marks once for each expression of it: those of the use
        are the ones that all of these have.
        """
        groups = [[u] for u in others]
        if len(others) > len(uses):
            by_value: dict[int, list[NamedUse]] = {}
            for u in others:
                by_value.setdefault(self._unmarked(u.value).id, []).append(u)
            groups = [*by_value.values()]
        if [(u.op, u.value.shape) for u in uses] != [(g[0].op, g[0].value.shape) for g in groups]:
            return None
        chains = [[self._chain(u.value) for u in group] for group in groups]
        return [[k for k in first if all(k in chain for chain in rest)] for first, *rest in chains]


class _PlannedUse:
    """An operand of a line, its expressions (the last one first), and its planned reshards."""

    def __init__(self, use: NamedUse, chain: Chain, casts: Mapping[str, PlannedCast], plan: _PlannedTypes) -> None:
        cast, copied = casts.get(use.place, PlannedCast()), f"second.{use.value.id}"
        copy = casts.get(copied, PlannedCast()) if cast.from_copy else PlannedCast()
        self.use, self.chain = use, chain
        self.types = [c.to for c in (copy, cast) if c.to is not None]
        self.early = copy.to is not None  # whether the first is at the value's definition
        self.src = plan.src.get(copied if cast.from_copy else use.place)  # the value's type
        self.needed = plan.needed.get(use.place)  # the operand's type in the line

    @property
    def goals(self) -> list[ShType]:
        """The targets of the reshards in order; the type that the value has already if there is none."""
        return self.types or ([] if self.needed is None else [self.needed])


class _PlannedTypes(NamedTuple):
    """The types of a plan by place: of values before their reshards, and of operands."""

    src: Mapping[str, ShType]
    needed: Mapping[str, ShType]


def _one_target(first: _PlannedUse, uses: Sequence[_PlannedUse]) -> list[str] | None:
    """The targets of an expression's reshards as source, if all uses of its values end in one type."""
    ends = {type_text(q.goals[-1], sizes=False) if q.goals else "" for q in uses}
    return [f'"{type_text(t, sizes=False)}"' for t in first.types] if len(ends) == 1 else None


def _by_type(first: _PlannedUse, uses: Sequence[_PlannedUse]) -> list[str] | None:
    """The targets of an expression's reshards as source, by the types of its values, if these decide."""
    if any(len(q.types) > 1 or (q.types and q.src is None) for q in uses):
        return None
    for sizes in (False, True):
        cases: dict[str, set[str]] = {}
        for q in uses:
            if q.src is not None and q.goals:
                cases.setdefault(type_text(q.src, sizes=sizes), set()).update(
                    type_text(t, sizes=sizes) for t in q.goals
                )
        if all(len(goals) == 1 for goals in cases.values()):
            pairs = ((case, goal) for case, goals in cases.items() for goal in goals if goal != case)
            return ["{" + ", ".join(f'"{case}": "{goal}"' for case, goal in pairs) + "}"]
    return None


def type_text(t: ShType, *, sizes: bool) -> str:
    """A type without its dtype, and without its sizes unless ``sizes``."""
    text = re.sub(r",(?! |[^()]*\))", ", ", target_text(t))
    return text if sizes else re.sub(r"(?<=[\[ ])\d+", "_", text)


class Planned:
    """A plan beside the source that it is for."""

    def __init__(self, plan: Plan, source: Source) -> None:
        self.plan, self.source = plan, source
        self._uses = _uses(plan.problem.program)
        self._chains = _expressions(plan, self._uses, source)

    def edits(self, *, free: bool, pinned: bool) -> Edits:
        """The edits of the files.

        Free reshards are left out unless ``free``, and where no expression has the value. The values of statements in
        scopes are resharded to the plan's types if ``pinned``.
        """
        plan, edits = self.plan, Edits({}, {}, [], {})
        program, casts = plan.problem.program, plan.decisions.casts.items()
        inserted = {place: c if free or place not in plan.free else c._replace(to=None) for place, c in casts}
        types = _PlannedTypes(plan.src, plan.needed)
        planned = [_PlannedUse(u, chain, inserted, types) for u, chain in zip(self._uses, self._chains, strict=True)]
        _move_out(planned, program)
        through: dict[int, list[_PlannedUse]] = {}
        for p in planned:
            for k, _ in p.chain:
                through.setdefault(k, []).append(p)
        for k, each in through.items() if pinned else ():
            texts = {type_text(t, sizes=False) for p in each if (t := p.src or p.needed) is not None}
            edits.pins.update({k: texts.pop()} if len(texts) == 1 else {})
        inside = [
            (op.place, f"{op.place} <- {op.name}: it communicates itself")
            for op in program.ops
            if op.id in plan.decisions.across_shards
        ]
        for line, reason in (*inside, *self._add_reshards(edits, planned, through)):
            place = self.source.scope_of(line)
            if place is None:
                edits.refused.append(reason)
            else:
                self.add_scope(edits, place, reason)
        return edits

    def _add_reshards(
        self, edits: Edits, planned: Sequence[_PlannedUse], through: Mapping[int, Sequence[_PlannedUse]]
    ) -> Iterator[tuple[SourceLine, str]]:
        """Adds the reshards of expressions; yields the lines of the others, each with the reason."""
        times = _times(self.plan.problem.program)
        done: set[int] = set()
        for p in planned:
            if not p.types or id(p) in done:
                continue
            if not p.chain:
                if p.use.place not in self.plan.free:
                    yield p.use.line, f"{_at(p.use)}: no expression of a line gives it"
                continue
            # before a loop, if the plan has it there; at an expression whose other values are resharded alike
            most = times[p.use.value.id] if p.early else times[p.use.place]
            sites = [k for k, often in p.chain if often <= most]
            free_sites = [k for k in sites if not done.intersection(map(id, through[k]))]
            targets_at = ((k, targets(p, through[k])) for targets in (_one_target, _by_type) for k in free_sites)
            site, targets = next(((k, texts) for k, texts in targets_at if texts is not None), (None, []))
            if site is None:
                several = self.source.text(p.chain[0][0])
                reason = f"{_at(p.use)}: `{several}` stands for several values, which the plan has in several types"
                yield p.use.line, reason
                continue
            edits.reshards[site] = targets
            done.update(map(id, through[site]))

    def add_scope(self, edits: Edits, place: Place, reason: str) -> None:
        """Adds a scope around a statement or lambda, whose value is resharded to its type in ``pins``."""
        edits.scopes[place] = reason
        k = self.source.value(place)
        if k in edits.pins:
            edits.reshards.setdefault(k, [f'"{edits.pins[k]}"'])


def _at(use: NamedUse) -> str:
    return f"{use.line} <- {use.name} in {use.op}" if use.line.file else f"{use.name} in {use.op}"


def _move_out(planned: Sequence[_PlannedUse], program: Program) -> None:
    """Moves reshards inside of called functions, such as before the division in a mean, to an expression.

    They move over ops with one operand that permute its dims, or add or remove those of size 1, and before broadcasts,
    which preserves their meaning.
    """
    ops = {str(op.id): op for op in program.ops}
    uses: dict[int, list[_PlannedUse]] = {}
    makers: dict[int, tuple[Op, list[_PlannedUse]]] = {}
    for p in planned:
        uses.setdefault(p.use.value.id, []).append(p)
        if (op := ops.get(p.use.item)) is not None:
            for v in op.results:
                makers.setdefault(v.id, (op, []))[1].append(p)

    def after(p: _PlannedUse, types: list[ShType]) -> list[tuple[_PlannedUse, list[ShType]]]:
        """The uses of an op's result, with the types moved past the op; empty if that is not equivalent."""
        op, uses_after = ops.get(p.use.item), list[tuple[_PlannedUse, list[ShType]]]()
        dims = None if op is None or sum(map(is_value, op.operands)) > 1 else _dims_kept(op)
        for q in uses.get(op.results[0].id, []) if op is not None and dims is not None else []:
            moved = [*(_moved(t, dims or ()) for t in types), *([] if q.chain else q.types)]
            more = [(q, moved)] if q.chain else [*after(q, moved), (q, [])]
            if len(more) == 1 and not q.chain:
                return []
            uses_after += more
        return uses_after

    for p in planned:
        if not p.types or p.chain:
            continue
        if moved := after(p, p.types):
            for q, types in moved:
                q.types, q.src = [*types, *q.types] if q.chain else [], None
            p.types, p.needed = [], p.src
        elif before := _moved_before(p, p.types, uses, makers):
            for first, types in before:
                first.types = [*first.types, *types]
            for q in uses[p.use.value.id]:
                q.types, q.src = [], q.needed


def _moved_before(
    p: _PlannedUse,
    types: list[ShType],
    uses: Mapping[int, Sequence[_PlannedUse]],
    makers: Mapping[int, tuple[Op, Sequence[_PlannedUse]]],
) -> list[tuple[_PlannedUse, list[ShType]]]:
    """The uses in the op whose result all uses reshard alike, with the types before the op; empty if they differ.

    An op of several operands is elementwise, and these are of one value, as in the sign of an index.
    """
    if p.use.value.id not in makers or any(q.types != p.types for q in uses[p.use.value.id]):
        return []
    op, operands = makers[p.use.value.id]
    targets: list[tuple[_PlannedUse, list[ShType]]] = []
    for first in operands:
        moved = [t for t in (_before(op, t, first.src) for t in types) if t is not None]
        alone = not first.types and len(uses[first.use.value.id]) == 1
        before = [(first, moved)] if first.chain else _moved_before(first, moved, uses, makers) if alone else []
        if not before or len(moved) < len(types):
            return []
        targets += before
    return targets if len({(q.use.value.id, *q.chain[0]) for q, _ in targets}) == 1 else []


def _before(op: Op, t: ShType, src: ShType | None) -> ShType | None:
    """The type of an op's operand that is that of its result, which it has in the dims of the operand, or None.

    Axes that shard no dim of the operand are replicated as they are in ``src``, its type.
    """
    if (result_dims := _dims_kept(op)) is not None and src is not None:
        return _moved(t, [result_dims.index(d) if d in result_dims else None for d in range(len(src.shape))])
    if op.name != "broadcast_in_dim" or src is None:
        return None
    of_result = [t.dims[d] for d in op.eqn.params["broadcast_dimensions"]]
    dims = [x if x.size == n else Dim(n) for x, n in zip(of_result, src.shape, strict=True)]
    lost = {a for d in t.dims for a in d.axes} - {a for d in dims for a in d.axes}
    states = {**dict(t.beside_dims), **{a: src.state(a) for a in lost}}
    return t.replace(dims=dims, states=states) if all(src.state(a) in REPLICATED for a in lost) else None


def _dims_kept(op: Op) -> list[int | None] | None:
    """The operand's dim of each dim of an op's result; None for a new one of size 1.

    None if the op has not one operand and is not elementwise, or does anything else to its dims than to permute them
    and to add or remove those of size 1.
    """
    values = [x for x in op.operands if is_value(x)]
    if acts_per_element(op.name) and all(x.shape == op.results[0].shape for x in values):
        return list(range(len(op.results[0].shape)))
    if len(values) != 1 or len(op.results) != 1 or values[0].dtype != op.results[0].dtype:
        return None
    src, dst = values[0].shape, op.results[0].shape
    if op.name == "transpose":
        return list(op.eqn.params["permutation"])
    if src == dst:
        return list(range(len(src)))
    before, after = ([d for d, n in enumerate(shape) if n != 1] for shape in (src, dst))
    if op.name not in _SHAPES or [src[d] for d in before] != [dst[d] for d in after]:
        return None
    at = dict(zip(after, before, strict=True))
    return [at.get(d) for d in range(len(dst))]


def _moved(t: ShType, dims: Sequence[int | None]) -> ShType:
    return t.replace(dims=tuple([Dim(1) if d is None else t.dims[d] for d in dims]))


def _uses(program: Program) -> list[NamedUse]:
    """The operands of lines, and the results."""
    outputs = [(i, v) for i, v in enumerate(program.outputs) if is_value(v)]
    return [*named_uses(program), *(NamedUse(f"result.{i}", SourceLine(), v.name, "result", v) for i, v in outputs)]


def _by_op(uses: Sequence[NamedUse]) -> list[list[NamedUse]]:
    """The uses of each op or loop."""
    return [list(some) for _, some in itertools.groupby(uses, lambda u: u.item)]


def _times(program: Program) -> dict[str | int, float]:
    """The number of times that each place in a program, and the op of each value, runs."""
    times: dict[str | int, float] = {v.id: 1 for v in program.inputs}
    for op in program.ops:
        times.update((v.id, op.times) for v in op.results)
        times.update((f"{op.id}.{i}", op.times) for i in range(len(op.operands)))
    for loop in program.loops:
        inside = loop.times * loop.steps
        times.update((v.id, inside) for v in loop.inputs)
        times.update((v.id, loop.times) for v in loop.results)
    for t in named_uses(program):  # of loops: as often as the value's definition
        times.setdefault(t.place, times[t.value.id])
    times.update((f"result.{i}", 1) for i in range(len(program.outputs)))
    return times
