"""Writes a plan of `sh.suggest` into a function's source: reshards around expressions, and types after it.

The function is traced again from a copy of its source in which each expression marks its value, which shows the
expression of each operand. The patched source is traced before it replaces the file, and must communicate like the
plan.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shtypes._compat.eqn_frames import user_frames
from shtypes.analysis.check import check
from shtypes.context.frames import Owner, owner_of_file
from shtypes.core.meshes import use_mesh
from shtypes.errors import ShardingTypeError, how_many
from shtypes.lifting.ways.moves import MARKED
from shtypes.solver.apply import NamedUse, PlannedCast, named_uses
from shtypes.solver.items import Loop, Op, Operand, Value, is_value
from shtypes.solver.program import Function, Program
from shtypes.suggestions.plan import Plan
from shtypes.tools.patch_source import Edits
from shtypes.tools.patch_target import Source
from shtypes.traced.equations import SourceLine
from shtypes.types import REPLICATED, Dim, ShType
from shtypes.types.target import target_text


class FilePatch(NamedTuple):
    """The edit of a file: its bytes before and after."""

    path: Path
    before: bytes
    after: bytes
    encoding: str

    def diff(self, name: str) -> str:
        """The unified diff, with the file's name in it."""
        old, new = (data.decode(self.encoding).splitlines(keepends=True) for data in (self.before, self.after))
        lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def replace(self, data: bytes) -> None:
        """Replaces the file atomically, with its permissions."""
        path = self.path.resolve()  # keeps a symbolic link
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            shutil.copymode(path, name)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


class Patch(NamedTuple):
    """The edits of a function's file, the first, and of other files of its program."""

    files: tuple[FilePatch, ...]

    @property
    def diff(self) -> str:
        """The unified diff, with paths from the folder that all files are in."""
        folder = Path(os.path.commonpath([file.path.resolve().parent for file in self.files]))
        if len(self.files) == 1:
            return self.files[0].diff(self.files[0].path.name)
        return "".join(file.diff(file.path.resolve().relative_to(folder).as_posix()) for file in self.files)

    def write(self) -> None:
        """Replaces all files or none; an error if one changed since it was read."""
        for file in self.files:
            if file.path.read_bytes() != file.before:
                raise ShardingTypeError(
                    f"`{file.path.name}` changed while its plan was looked for", hints=["ask again"]
                )
        with contextlib.ExitStack() as undo:
            for file in self.files:
                file.replace(file.after)
                undo.callback(file.replace, file.before)
            undo.pop_all()


def patched(f: Callable[..., Any], plan: Plan) -> Patch:
    """Inserts a plan into the file of a function: its reshards, the types of its arguments, and a typed step.

    Reshards of lines in other files of the user's go into these files.

    After ``loss`` it adds ``loss_types``, which returns the arguments' types, and ``loss_step``, which is
    ``sh.train_step(sh.lift(loss))`` (``loss_typed``, without a backward pass). It replaces calls of `sh.reshard` with
    strings, which the search ignores, and the code added by an earlier patch. An error lists the parts of the plan that
    cannot be written, with the reasons.
    """
    if plan.checkpoints:
        places = ", ".join(map(str, plan.checkpoints))
        raise ShardingTypeError(
            "the plan cannot be written into its file",
            why=f"it checkpoints the scan at {places}",
            hints=["jax.checkpoint around the function of that scan, and no checkpoint= of suggest"],
        )
    source = Source(f, "step" if plan.problem.argnums else "typed", _files(plan.problem.program))
    f, arguments = source.marked(plan.arguments)
    marked = Function(f, jax.tree.map(_struct, arguments), plan.problem.argnums, plan.problem.mesh)
    reasons: list[list[str]] = []
    for free in (False, True):  # the rules insert most free reshards anyway
        edits = _edits(plan, marked, source, free=free)
        after = source.edited(edits, plan)
        wrong = edits.refused or _differs(source, after, plan)
        if not wrong:
            files = [FilePatch(x.path, x.bytes, after[path], x.encoding) for path, x in source.files.items()]
            return Patch(tuple([x for i, x in enumerate(files) if i == 0 or x.before != x.after]))
        wrong = [*edits.scopes.values(), *wrong]
        reasons.append(wrong)
    fewest: list[str] = min(reasons, key=len)
    raise ShardingTypeError(
        f"the plan cannot be written into `{source.file.path.name}`",
        why="\n".join(dict.fromkeys(fewest)),
        hints=[f'sh.apply({source.name}, "plan.json"), which needs no edit'],
    )


def _files(program: Program) -> set[str]:
    """The user's files whose lines a program has."""
    items: list[Op | Loop] = [*program.ops, *program.loops]
    files = {frame.file for item in items for frame in user_frames(item.eqn)}
    return {file for file in files if owner_of_file(file) is Owner.USERS}


def _differs(source: Source, after: Mapping[Path, bytes], plan: Plan) -> list[str]:
    """The differences in communication of patched files from the plan."""
    space, goal = source.loaded(after), plan.ledger.total
    try:
        with use_mesh(plan.problem.mesh):
            sent = check(space[source.step], *space[source.types]()).ledger.total
    except ShardingTypeError as error:
        return [f"it would not type: {error.what} ({error.where})"]
    here, planned = (f"{t.bytes} B on each device in {how_many(t.launches, 'collective')}" for t in (sent, goal))
    return [] if sent == goal else [f"it would send {here}, and the plan sends {planned}"]


def _struct(x: Any) -> Any:
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, ShType) else x


# the expressions of reshards


class _Marks:
    """The marks in a program that was traced from a marked source."""

    def __init__(self, program: Program) -> None:
        self.ops = {op.id for op in program.ops if self._is_mark(op)}
        self.of = {v.id: op for op in program.ops if op.id in self.ops for v in op.results}

    @staticmethod
    def _is_mark(op: Op) -> bool:
        return op.name == "name" and str(op.eqn.params["name"]).startswith(MARKED)

    def chain(self, x: Operand) -> list[tuple[int, int]]:
        """The expressions of a value, the first used one first, with the number of times that each runs."""
        return [(int(op.eqn.params["name"].removeprefix(MARKED)), op.times) for op in self._around(x)]

    def unmarked(self, x: Value) -> Any:
        """The value without its marks."""
        return [x, *(op.operands[0] for op in self._around(x))][-1]

    def _around(self, x: Operand) -> Iterator[Op]:
        while isinstance(x, Value) and x.id in self.of:
            yield self.of[x.id]
            x = self.of[x.id].operands[0]

    def expressions(self, uses: Sequence[NamedUse], marked: Program) -> list[list[tuple[int, int]]] | None:
        """The expressions of each use, by the uses of the marked program; None if that is another program.

        A call of several equations takes a value once, and with marks once for each expression of it: those of the use
        are the ones that all of these have.
        """
        others = [u for u in _uses(marked) if u.place.partition(".")[0] not in map(str, self.ops)]
        ops, others_by_op = _by_op(uses), _by_op(others)
        if len(ops) != len(others_by_op):
            return None
        found: list[list[tuple[int, int]]] = []
        for some, more in zip(ops, others_by_op, strict=True):
            groups = [[u] for u in more]
            if len(more) > len(some):
                by_value: dict[int, list[NamedUse]] = {}
                for u in more:
                    by_value.setdefault(self.unmarked(u.value).id, []).append(u)
                groups = [*by_value.values()]
            if [(u.op, u.value.shape) for u in some] != [(g[0].op, g[0].value.shape) for g in groups]:
                return None
            for first, *rest in groups:
                others_too = [self.chain(u.value) for u in rest]
                found.append([k for k in self.chain(first.value) if all(k in chain for chain in others_too)])
        return found


class _Planned:
    """An operand of a line, its expressions (the last one first), and its planned reshards."""

    def __init__(
        self, use: NamedUse, chain: list[tuple[int, int]], casts: Mapping[str, PlannedCast], plan: _PlannedTypes
    ) -> None:
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


def _one_target(first: _Planned, uses: Sequence[_Planned]) -> list[str] | None:
    """The targets of an expression's reshards as source, if all uses of its values end in one type."""
    ends = {_text(q.goals[-1], sizes=False) if q.goals else "" for q in uses}
    return [f'"{_text(t, sizes=False)}"' for t in first.types] if len(ends) == 1 else None


def _by_type(first: _Planned, uses: Sequence[_Planned]) -> list[str] | None:
    """The targets of an expression's reshards as source, by the types of its values, if these decide."""
    if any(len(q.types) > 1 or (q.types and q.src is None) for q in uses):
        return None
    for sizes in (False, True):
        cases: dict[str, set[str]] = {}
        for q in uses:
            if q.src is not None and q.goals:
                cases.setdefault(_text(q.src, sizes=sizes), set()).update(_text(t, sizes=sizes) for t in q.goals)
        if all(len(goals) == 1 for goals in cases.values()):
            pairs = ((case, goal) for case, goals in cases.items() for goal in goals if goal != case)
            return ["{" + ", ".join(f'"{case}": "{goal}"' for case, goal in pairs) + "}"]
    return None


def _text(t: ShType, *, sizes: bool) -> str:
    """A type without its dtype, and without its sizes unless ``sizes``."""
    text = re.sub(r",(?![^()]*\))", ", ", target_text(t))
    return text if sizes else re.sub(r"(?<=[\[ ])\d+", "_", text)


def _edits(plan: Plan, marked: Program, source: Source, *, free: bool) -> Edits:
    """The edits of the files.

    Free reshards are left out unless ``free``, and where no expression has the value.
    """
    program, marks, edits = plan.problem.program, _Marks(marked), Edits({}, {}, [])
    uses = _uses(program)
    chains = marks.expressions(uses, marked)
    if chains is None:
        return edits._replace(refused=["its program is another one when its expressions are looked at one by one"])
    casts = plan.decisions.casts.items()
    inserted = {place: c if free or place not in plan.free else c._replace(to=None) for place, c in casts}
    types = _PlannedTypes(plan.src, plan.needed)
    planned = [_Planned(u, chain, inserted, types) for u, chain in zip(uses, chains, strict=True)]
    _move_out(planned, program)
    times = _times(program)
    through: dict[int, list[_Planned]] = {}
    for p in planned:
        for k, _ in p.chain:
            through.setdefault(k, []).append(p)
    inside = [
        (op.place, f"{op.place} <- {op.name}: it communicates itself")
        for op in program.ops
        if op.id in plan.decisions.across_shards
    ]
    done: set[int] = set()
    for p in planned:
        if not p.types or id(p) in done:
            continue
        if not p.chain:
            if p.use.place not in plan.free:
                inside.append((p.use.line, f"{_at(p.use)}: no expression of a line gives it"))
            continue
        # before a loop, if the plan has it there; at an expression whose other values are resharded alike
        most = times[p.use.value.id] if p.early else times[p.use.place]
        sites = [k for k, often in p.chain if often <= most]
        free_sites = [k for k in sites if not done.intersection(map(id, through[k]))]
        found = ((k, of(p, through[k])) for of in (_one_target, _by_type) for k in free_sites)
        site, targets = next(((k, texts) for k, texts in found if texts is not None), (None, []))
        if site is None:
            several = source.text(p.chain[0][0])
            edits.refused.append(
                f"{_at(p.use)}: `{several}` stands for several values, which the plan has in several types"
            )
            continue
        edits.reshards[site] = targets
        done.update(map(id, through[site]))
    for line, reason in inside:
        first = source.statement(line)
        if first is None:
            edits.refused.append(reason)
        else:
            edits.scopes[first] = reason
    return edits


def _at(use: NamedUse) -> str:
    return f"{use.line} <- {use.name} in {use.op}" if use.line.file else f"{use.name} in {use.op}"


def _move_out(planned: Sequence[_Planned], program: Program) -> None:
    """Moves reshards inside of called functions, such as before the division in a mean, to an expression.

    They move over ops with one operand that keep or permute its dims, and before broadcasts, which preserves their
    meaning.
    """
    ops = {str(op.id): op for op in program.ops}
    uses: dict[int, list[_Planned]] = {}
    makers: dict[int, tuple[Op, _Planned]] = {}
    for p in planned:
        uses.setdefault(p.use.value.id, []).append(p)
        if (op := ops.get(p.use.place.partition(".")[0])) is not None:
            makers |= {v.id: (op, p) for v in op.results}

    def op_of(p: _Planned) -> Op | None:
        return ops.get(p.use.place.partition(".")[0])

    def after(p: _Planned, types: list[ShType]) -> list[tuple[_Planned, list[ShType]]]:
        """The uses of an op's result, with the types moved past the op; empty if that is not equivalent."""
        op, uses_after = op_of(p), list[tuple[_Planned, list[ShType]]]()
        order = None if op is None else _permutation(op)
        for q in uses.get(op.results[0].id, []) if op is not None and order is not None else []:
            moved = [*(_permuted(t, order or ()) for t in types), *([] if q.chain else q.types)]
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
        elif (found := _moved_before(p, p.types, uses, makers)) is not None:
            first, types = found
            first.types = [*first.types, *types]
            for q in uses[p.use.value.id]:
                q.types, q.src = [], q.needed


def _moved_before(
    p: _Planned,
    types: list[ShType],
    uses: Mapping[int, Sequence[_Planned]],
    makers: Mapping[int, tuple[Op, _Planned]],
) -> tuple[_Planned, list[ShType]] | None:
    """The use in the op that made a value which all uses reshard alike, with the types before the op; or None."""
    if p.use.value.id not in makers or any(q.types != p.types for q in uses[p.use.value.id]):
        return None
    op, first = makers[p.use.value.id]
    moved = [t for t in (_before(op, t, first.src) for t in types) if t is not None]
    if len(moved) < len(types):
        return None
    if first.chain:
        return first, moved
    return None if first.types or len(uses[first.use.value.id]) > 1 else _moved_before(first, moved, uses, makers)


def _before(op: Op, t: ShType, src: ShType | None) -> ShType | None:
    """The type of an op's operand that is that of its result, which it has in the dims of the operand, or None.

    Axes that shard no dim of the operand are replicated as they are in ``src``, its type.
    """
    if (order := _permutation(op)) is not None:
        return _permuted(t, sorted(range(len(order)), key=order.__getitem__))
    if op.name != "broadcast_in_dim" or src is None:
        return None
    of_result = [t.dims[d] for d in op.eqn.params["broadcast_dimensions"]]
    dims = [x if x.size == n else Dim(n) for x, n in zip(of_result, src.shape, strict=True)]
    lost = {a for d in t.dims for a in d.axes} - {a for d in dims for a in d.axes}
    states = {**dict(t.beside_dims), **{a: src.state(a) for a in lost}}
    return t.replace(dims=dims, states=states) if all(src.state(a) in REPLICATED for a in lost) else None


def _permutation(op: Op) -> Sequence[int] | None:
    """The permutation of dims by an op of one operand; None if it does anything else to them."""
    values = [x for x in op.operands if is_value(x)]
    if len(values) != 1 or len(op.results) != 1 or values[0].dtype != op.results[0].dtype:
        return None
    if op.name == "transpose":
        order: Sequence[int] = op.eqn.params["permutation"]
        return order
    return range(len(values[0].shape)) if values[0].shape == op.results[0].shape else None


def _permuted(t: ShType, order: Sequence[int]) -> ShType:
    return t.replace(dims=tuple(t.dims[i] for i in order))


def _uses(program: Program) -> list[NamedUse]:
    """The operands of lines, and the results."""
    outputs = [(i, v) for i, v in enumerate(program.outputs) if is_value(v)]
    return [*named_uses(program), *(NamedUse(f"result.{i}", SourceLine(), v.name, "result", v) for i, v in outputs)]


def _by_op(uses: Sequence[NamedUse]) -> list[list[NamedUse]]:
    """The uses of each op or loop."""
    return [list(some) for _, some in itertools.groupby(uses, lambda u: u.place.partition(".")[0])]


def _times(program: Program) -> dict[str | int, int]:
    """The number of times that each place in a program, and the op of each value, runs."""
    times: dict[str | int, int] = {v.id: 1 for v in program.inputs}
    for op in program.ops:
        times.update((v.id, op.times) for v in op.results)
        times.update((f"{op.id}.{i}", op.times) for i in range(len(op.operands)))
    for loop in program.loops:
        inside = loop.times * loop.scan.length
        times.update((v.id, inside) for v in loop.inputs)
        times.update((v.id, loop.times) for v in loop.results)
    for t in named_uses(program):  # of loops: as often as the value's definition
        times.setdefault(t.place, times[t.value.id])
    times.update((f"result.{i}", 1) for i in range(len(program.outputs)))
    return times
