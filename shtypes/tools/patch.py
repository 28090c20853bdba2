"""A plan written into the source of the function that it is of: reshards around expressions, types beside it.

Which expression a reshard belongs around is not guessed: the function is traced once more from a copy of its source in
which each expression marks the values that it gives, and the marks say which expression an operand comes from. What is
written is traced before it replaces the file, and sends what the plan does.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shtypes.analysis.check import check
from shtypes.core.meshes import use_mesh
from shtypes.errors import ShardingTypeError
from shtypes.lifting.ways.moves import MARKED
from shtypes.solver.apply import Taken, Written, taken
from shtypes.solver.items import Op, Operand, Value, is_value
from shtypes.solver.program import Function, Program
from shtypes.suggestions.plan import Plan
from shtypes.tools.patch_source import Edits, Source
from shtypes.traced.equations import SourceLine
from shtypes.types import ShType
from shtypes.types.target import target_text


class Patch(NamedTuple):
    """A file, and what it becomes.

    Attributes:
        path: The file.
        before: Its bytes.
        after: Those with the plan in them.
        encoding: How they are text.
    """

    path: Path
    before: bytes
    after: bytes
    encoding: str

    @property
    def diff(self) -> str:
        """The unified diff."""
        old, new = (data.decode(self.encoding).splitlines(keepends=True) for data in (self.before, self.after))
        lines = difflib.unified_diff(old, new, f"a/{self.path.name}", f"b/{self.path.name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Replaces the file at once, with its permissions.

        Raises:
            ShardingTypeError: it changed since it was read.
        """
        path = self.path.resolve()  # a link stays one
        if path.read_bytes() != self.before:
            raise ShardingTypeError(f"`{path.name}` changed while its plan was looked for", hints=["ask again"])
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self.after)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(path, name)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def patched(f: Callable[..., Any], plan: Plan) -> Patch:
    """The file of a function with a plan in it: its reshards, the types of its arguments, and a step in them.

    Beside ``loss`` it gets ``loss_types``, which returns the arguments' types, and ``loss_step``, which is
    ``sh.train_step(sh.lift(loss))`` (``loss_typed``, without a backward pass). Calls of `sh.reshard` to a text, which
    the search leaves out, give way to those of the plan, and what an earlier patch wrote beside gives way to its like.

    Raises:
        ShardingTypeError: something of the plan cannot be written there; each is named, with the reason.
    """
    if plan.checkpoints:
        places = ", ".join(map(str, plan.checkpoints))
        raise ShardingTypeError(
            "the plan cannot be written into its file",
            why=f"it checkpoints the scan at {places}",
            hints=["jax.checkpoint around the function of that scan, and no checkpoint= of suggest"],
        )
    source = Source(f, "step" if plan.problem.argnums else "typed")
    shapes = jax.tree.map(_struct, plan.arguments, is_leaf=lambda x: isinstance(x, ShType))
    marked = Function(source.marked(), shapes, plan.problem.argnums, plan.problem.mesh)
    reasons: list[list[str]] = []
    for free in (False, True):  # most reshards that send nothing are what the rules do anyway
        edits = _edits(plan, marked, source, free=free)
        after = source.edited(edits, plan)
        wrong = edits.refused or _differs(source, after, plan)
        if not wrong:
            return Patch(source.path, source.bytes, after, source.encoding)
        wrong = [*edits.scopes.values(), *wrong]
        reasons.append(wrong)
    fewest: list[str] = min(reasons, key=len)
    raise ShardingTypeError(
        f"the plan cannot be written into `{source.path.name}`",
        why="\n".join(dict.fromkeys(fewest)),
        hints=[f'sh.apply({source.name}, "plan.json"), which needs no edit'],
    )


def _differs(source: Source, after: bytes, plan: Plan) -> list[str]:
    """Whether a patched file does something else than the plan, and what."""
    space, goal = source.loaded(after), plan.ledger.total
    try:
        with use_mesh(plan.problem.mesh):
            sent = check(space[source.step], *space[source.types]()).ledger.total
    except ShardingTypeError as error:
        return [f"it would not type: {error.what} ({error.where})"]
    same = (sent.bytes, sent.launches) == (goal.bytes, goal.launches)
    return [] if same else [f"it would send {sent.bytes} B on each device, and the plan sends {goal.bytes} B"]


def _struct(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, ShType) else x


# which expression a reshard is around


class _Marks:
    """The marks of a program that was traced from a marked source."""

    def __init__(self, program: Program) -> None:
        self.ops = {op.id for op in program.ops if self._is_mark(op)}
        self.of = {v.id: op for op in program.ops if op.id in self.ops for v in op.results}

    @staticmethod
    def _is_mark(op: Op) -> bool:
        return op.name == "name" and str(op.eqn.params["name"]).startswith(MARKED)

    def chain(self, x: Operand) -> list[tuple[int, int]]:
        """The expressions that give a value, the one where it is used first; and how often each runs."""
        found = []
        while isinstance(x, Value) and x.id in self.of:
            op = self.of[x.id]
            found.append((int(op.eqn.params["name"].removeprefix(MARKED)), op.times))
            x = op.operands[0]
        return found


class _Planned:
    """A value that a line takes, the expressions that give it (the last one first), and what it is brought to."""

    def __init__(
        self, use: Taken, chain: list[tuple[int, int]], places: Mapping[str, Written], needed: ShType | None
    ) -> None:
        written = places.get(use.place, Written())
        second = places.get(f"second.{use.value.id}", Written()) if written.second else Written()
        self.use, self.chain = use, chain
        self.types = [w.to for w in (second, written) if w.to is not None]
        self.early = second.to is not None  # whether the first of them is made where the value is
        self.needed = needed  # the type in which the line takes it

    def takes(self, other: _Planned) -> bool:
        """Whether what is written for another use does for this one: it ends in the same type."""
        return self.texts == other.texts or (self.needed is not None and self.needed == other.needed)

    @property
    def texts(self) -> list[str]:
        """The targets of reshards, in turn; sizes are as they come."""
        return [re.sub(r"(?<=[\[,])\d+", "_", target_text(t)).replace(",_", ", _") for t in self.types]


def _edits(plan: Plan, marked: Program, source: Source, *, free: bool) -> Edits:
    """What is written into a file.

    Reshards that send nothing are left out unless ``free``, and where no expression is.
    """
    program, marks, edits = plan.problem.program, _Marks(marked), Edits({}, {}, [])
    uses = _uses(program)
    others = [u for u in _uses(marked) if u.place.partition(".")[0] not in map(str, marks.ops)]
    if [(u.op, u.value.shape) for u in uses] != [(u.op, u.value.shape) for u in others]:
        return edits._replace(refused=["its program is another one when its expressions are looked at one by one"])
    places = plan.decisions.places
    kept = {p: w if free or p not in plan.free else w._replace(to=None) for p, w in places.items()}
    needed = plan.needed
    planned = [_Planned(u, marks.chain(o.value), kept, needed.get(u.place)) for u, o in zip(uses, others, strict=True)]
    _move_out(planned, program)
    times = _times(program)
    through: dict[int, list[_Planned]] = {}
    for p in planned:
        for k, _ in p.chain:
            through.setdefault(k, []).append(p)
    inside = [
        (op.place, f"{op.place} <- {op.name}: it communicates itself")
        for op in program.ops
        if op.id in plan.decisions.joined
    ]
    done: set[int] = set()
    for p in planned:
        if not p.types or id(p) in done:
            continue
        if not p.chain:
            if p.use.place not in plan.free:
                inside.append((p.use.line, f"{_at(p.use)}: no expression of a line gives it"))
            continue
        # Once, before a loop, if that is what the plan has; and where all that comes through is brought there alike.
        most = times[p.use.value.id] if p.early else times[p.use.place]
        sites = [k for k, often in p.chain if often <= most]
        alike = (k for k in sites if all(q.takes(p) and id(q) not in done for q in through[k]))
        if (site := next(alike, None)) is None:
            several = source.text(p.chain[0][0])
            edits.refused.append(
                f"{_at(p.use)}: `{several}` stands for several values, which the plan has in several types"
            )
            continue
        edits.reshards[site] = p.texts
        done.update(map(id, through[site]))
    for line, reason in inside:
        first = source.statement(line)
        if first is None:
            edits.refused.append(reason)
        else:
            edits.scopes[first] = reason
    return edits


def _at(use: Taken) -> str:
    return f"{use.line} <- {use.name} in {use.op}" if use.line.file else f"{use.name} in {use.op}"


def _move_out(planned: Sequence[_Planned], program: Program) -> None:
    """Moves reshards inside of what is called, such as before the division of a mean, to where an expression is.

    They go over operations that have one operand and leave its dims, or permute them; what was meant stays the same.
    """
    made_by = {v.id: op for op in program.ops for v in op.results}
    ops = {str(op.id): op for op in program.ops}
    uses: dict[int, list[_Planned]] = {}
    of_op: dict[int, _Planned] = {}
    for p in planned:
        uses.setdefault(p.use.value.id, []).append(p)
        if (op := ops.get(p.use.place.partition(".")[0])) is not None:
            of_op[op.id] = p

    def op_of(p: _Planned) -> Op | None:
        return ops.get(p.use.place.partition(".")[0])

    def after(p: _Planned, types: list[ShType]) -> list[tuple[_Planned, list[ShType]]]:
        """The uses of what is made of a value, to be brought to these types; none where that is not the same."""
        op, found = op_of(p), list[tuple[_Planned, list[ShType]]]()
        order = None if op is None else _permutation(op)
        for q in uses.get(op.results[0].id, []) if op is not None and order is not None else []:
            moved = [*(_permuted(t, order or ()) for t in types), *([] if q.chain else q.types)]
            more = [(q, moved)] if q.chain else [*after(q, moved), (q, [])]
            if len(more) == 1 and not q.chain:
                return []
            found += more
        return found

    def before(p: _Planned) -> _Planned | None:
        """The use that makes a value which all take alike."""
        op = made_by.get(p.use.value.id)
        alike = all(q.texts == p.texts for q in uses[p.use.value.id])
        return of_op.get(op.id) if op is not None and alike and _permutation(op) is not None else None

    for p in planned:
        if not p.types or p.chain:
            continue
        if moved := after(p, p.types):
            for q, types in moved:
                q.types = [*types, *q.types] if q.chain else []
            p.types = []
        elif (first := before(p)) is not None and first.chain:
            order = _permutation(made_by[p.use.value.id]) or ()
            inverse = sorted(range(len(order)), key=order.__getitem__)
            first.types = [*first.types, *(_permuted(t, inverse) for t in p.types)]
            for q in uses[p.use.value.id]:
                q.types = []


def _permutation(op: Op) -> Sequence[int] | None:
    """How an operation of one operand permutes its dims; None where it does anything else with them."""
    values = [x for x in op.operands if is_value(x)]
    if len(values) != 1 or len(op.results) != 1 or values[0].dtype != op.results[0].dtype:
        return None
    if op.name == "transpose":
        order: Sequence[int] = op.eqn.params["permutation"]
        return order
    return range(len(values[0].shape)) if values[0].shape == op.results[0].shape else None


def _permuted(t: ShType, order: Sequence[int]) -> ShType:
    return t.replace(dims=tuple(t.dims[i] for i in order))


def _uses(program: Program) -> list[Taken]:
    """What lines take, and the results."""
    outputs = [(i, v) for i, v in enumerate(program.outputs) if is_value(v)]
    return [*taken(program), *(Taken(f"result.{i}", SourceLine(), v.name, "result", v) for i, v in outputs)]


def _times(program: Program) -> dict[str | int, int]:
    """How often each place of a program, and what makes each value, runs."""
    found: dict[str | int, int] = {v.id: 1 for v in program.inputs}
    for op in program.ops:
        found.update((v.id, op.times) for v in op.results)
        found.update((f"{op.id}.{i}", op.times) for i in range(len(op.operands)))
    for loop in program.loops:
        inside = loop.times * loop.scan.length
        found.update((v.id, inside) for v in loop.inputs)
        found.update((v.id, loop.times) for v in loop.results)
    for t in taken(program):  # of loops: as often as the value is there
        found.setdefault(t.place, found[t.value.id])
    found.update((f"result.{i}", 1) for i in range(len(program.outputs)))
    return found
