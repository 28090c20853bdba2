"""Writes a plan of `sh.suggest` into a function's source: reshards around expressions, and types after it.

The patched source is traced before it replaces the files, and must communicate like the plan or cost less.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import operator
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from shtypes._compat.eqn_frames import user_frames
from shtypes.analysis.check import Signature, check
from shtypes.context.frames import Owner, owner_of_file
from shtypes.core.meshes import use_mesh
from shtypes.errors import ShardingTypeError, how_many
from shtypes.solver.items import Loop, Op
from shtypes.solver.program import Program
from shtypes.suggestions.plan import Plan
from shtypes.tools.patch_plan import Planned
from shtypes.tools.patch_source import Edits
from shtypes.tools.patch_target import Source

#: The part of a step's time by which what is written may take longer than the plan.
_MORE_TIME: Final = 0.01


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
    note: str = ""  # what it sends, if that is not what the plan does

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
    cannot be written, with the reasons. What is written sends what the plan says; or else it holds no more, and a step
    takes at most a hundredth more time.
    """
    if plan.checkpoints:
        places = ", ".join(map(str, plan.checkpoints))
        raise ShardingTypeError(
            "the plan cannot be written into its file",
            why=f"it checkpoints the scan at {places}",
            hints=["jax.checkpoint around the function of that scan, and no checkpoint= of suggest"],
        )
    source = Source(f, "step" if plan.problem.argnums else "typed", _files(plan.problem.program))
    planned = Planned(plan, source)
    reasons: list[list[str]] = []
    close: list[tuple[float, Patch]] = []
    for free, pinned in itertools.product((False, True), repeat=2):  # the rules insert most free reshards anyway
        edits = planned.edits(free=free, pinned=pinned)
        if edits.refused:
            reasons.append([*edits.scopes.values(), *edits.refused])
            continue
        after, written = _typed(source, edits, plan)
        while (
            isinstance(written, ShardingTypeError)
            and (place := source.scope_at_fault(written)) is not None
            and place not in edits.scopes
        ):
            planned.add_scope(edits, place, f"it would not type: {written.what} ({written.where})")
            after, written = _typed(source, edits, plan)
        files = [FilePatch(x.path, x.bytes, after[path], x.encoding) for path, x in source.files.items()]
        patch = Patch(tuple([x for i, x in enumerate(files) if i == 0 or x.before != x.after]))
        if isinstance(written, ShardingTypeError):
            reasons.append([*edits.scopes.values(), f"it would not type: {written.what} ({written.where})"])
        elif written.ledger.total == plan.ledger.total:
            return patch
        elif (more := _more_time(written, plan)) <= _MORE_TIME and written.memory.peak <= plan.signature.memory.peak:
            time = f"{abs(more):.1%} {'more' if more > 0 else 'less'} time"
            close.append((more, patch._replace(note=f"{_sends('it sends', written, plan)}; a step takes {time}")))
        else:
            reasons.append([*edits.scopes.values(), _sends("it would send", written, plan)])
    if close:
        return min(close, key=operator.itemgetter(0))[1]
    fewest: list[str] = min(reasons, key=len)
    raise ShardingTypeError(
        f"the plan cannot be written into `{source.file.path.name}`",
        why="\n".join(dict.fromkeys(fewest)),
        hints=[source.apply],
    )


def _files(program: Program) -> set[str]:
    """The user's files whose lines a program has."""
    items: list[Op | Loop] = [*program.ops, *program.loops]
    files = {frame.file for item in items for frame in user_frames(item.eqn)}
    return {file for file in files if owner_of_file(file) is Owner.USERS}


def _typed(source: Source, edits: Edits, plan: Plan) -> tuple[Mapping[Path, bytes], Signature | ShardingTypeError]:
    """The edited files; and the signature of what they define, or the error if it does not type."""
    after = source.edited(edits, plan)
    space = source.loaded(after)
    try:
        with use_mesh(plan.problem.mesh):
            return after, check(space[source.step], *space[source.types]())
    except ShardingTypeError as error:
        return after, error


def _more_time(written: Signature, plan: Plan) -> float:
    """The part of a step's time by which patched files take longer than the plan."""
    model, device = plan.problem.model, plan.problem.device
    time, planned = (x.ledger.time(model) + x.compute(device).seconds() for x in (written, plan.signature))
    return time / planned - 1 if planned else 0.0


def _sends(sends: str, written: Signature, plan: Plan) -> str:
    sent, planned = (
        f"{t.bytes:,} B on each device in {how_many(t.launches, 'collective')}"
        for t in (written.ledger.total, plan.ledger.total)
    )
    return f"{sends} {sent}, and the plan sends {planned}"
