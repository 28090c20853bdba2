"""The function that a plan is written beside, with the source files of its program."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import pprint
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
from jax.ad_checkpoint import checkpoint_name

from shtypes.errors import ShardingTypeError, short
from shtypes.lifting.ways.moving import MARKED
from shtypes.suggestions.plan import Plan
from shtypes.tools.patch_literals import Literals
from shtypes.tools.patch_modules import imported_anew
from shtypes.tools.patch_source import MARK, Edit, Edits, Place, SourceFile
from shtypes.traced.equations import SourceLine


class Source:
    """The source of a function: its file, and the other ``files`` of its program that can be edited."""

    def __init__(self, f: Callable[..., Any], step: str, files: Collection[str] = ()) -> None:
        f = inspect.unwrap(f)
        self.name = str(getattr(f, "__qualname__", ""))
        self.types, self.step = (f"{self.name.replace('.', '_')}_{what}" for what in ("types", step))
        path = inspect.getsourcefile(f) if inspect.isfunction(f) else None
        if path is None or "<" in self.name or not Path(path).is_file():
            raise ShardingTypeError(
                "the plan cannot be written into a file",
                why="the target is no function that a file defines by its name",
            )
        self._globals = f.__globals__
        self.file = SourceFile(Path(path))
        self._unmarked: set[int] = set()
        self.files = {self.file.path.resolve(): self.file}
        for other in sorted({Path(name).resolve() for name in files} - self.files.keys()):
            with contextlib.suppress(OSError, SyntaxError, UnicodeError, ShardingTypeError):  # it stays as it is
                self.files[other] = SourceFile(other, first=max(file.numbers.stop for file in self.files.values()))
        first = self.name.partition(".")[0]
        top = [n for n in self.file.tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == first]
        if not top:
            raise ShardingTypeError(f"`{self.file.path.name}` does not define `{self.name}` where it can be edited")
        self.top = top[-1]
        comment = f"# Types of `{self.name}` by `shtypes suggest --patch`: "
        #: The first line of an earlier patch's code, or None.
        self.patched = next((i for i, line in enumerate(self.file.lines, 1) if line.decode().startswith(comment)), None)
        self.comment = comment
        taken = {self.types, self.step}.intersection(*([self._globals] if self.patched is None else [()]))
        if taken:
            raise ShardingTypeError(
                f"the plan cannot be written into `{self.file.path.name}`", why=f"`{min(taken)}` is there already"
            )

    @property
    def apply(self) -> str:
        """The advice for a plan that cannot be written."""
        return f'sh.apply({self.name}, "plan.json"), which needs no edit'

    def _of(self, k: int) -> SourceFile:
        """The file of an expression."""
        return next(file for file in self.files.values() if k in file.numbers)

    def _file_of(self, line: SourceLine) -> SourceFile | None:
        """The file of a line, if it can be edited."""
        return self.files.get(Path(line.file).resolve()) if line.file else None

    def _mark(self, k: int, x: Any) -> Any:
        """Marks the value of an expression in a trace."""
        if k in self._unmarked:
            return x
        self._of(k).run.add(k)
        return checkpoint_name(x, f"{MARKED}{k}") if isinstance(x, jax.core.Tracer) else x

    def unmark(self, lines: Collection[SourceLine], *, all_expressions: bool) -> bool:
        """Leaves the expressions of these lines unmarked; False if they are already.

        Names and the values of statements stay marked unless ``all_expressions``.
        """
        before = len(self._unmarked)
        for line in lines:
            if (file := self._file_of(line)) is not None:
                self._unmarked.update(file.expressions(line.line, all_expressions=all_expressions))
        return len(self._unmarked) > before

    def text(self, k: int) -> str:
        """The source of an expression."""
        return self._of(k).text(k)

    def scope_of(self, line: SourceLine) -> Place | None:
        """The statement or lambda that a scope of the line can go around; None if there is none."""
        file = self._file_of(line)
        at = None if file is None else file.scope_of(line.line, line.function)
        return None if file is None or at is None else (file.path, at)

    def scope_at_fault(self, error: ShardingTypeError) -> Place | None:
        """`scope_of` the line at which an edited file does not type."""
        place = re.match(r"(\S+\.py):(\d+)(?: in (\S+?))?(?::|$)", error.where)
        paths = [path for path in self.files if place and path.name == place[1]]
        if place is None or len(paths) != 1:
            return None
        line = self.files[paths[0]].source_line(int(place[2]))
        return self.scope_of(SourceLine(str(paths[0]), line, place[3] or ""))

    def value(self, place: Place) -> int:
        """The expression that is the value of a statement or lambda; -1 if it has no number."""
        path, at = place
        return self.files[path.resolve()].value(at)

    def loaded(self, codes: Mapping[Path, Any]) -> dict[str, Any]:
        """Runs the function's file with other code of these files, and returns its namespace."""
        return imported_anew(self._globals, self.file.path.resolve(), codes, {MARK: self._mark})

    def marked(self, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function with its expressions marked, and its arguments in the trees of the marked file's classes."""
        space, types = self.loaded({path: file.marked for path, file in self.files.items()}), self.types_of(arguments)
        f = functools.reduce(getattr, self.name.split("."), cast(Any, SimpleNamespace(**space)))
        try:
            tree = jax.tree.structure(eval(types, space))
            return f, jax.tree.unflatten(tree, jax.tree.leaves(arguments))
        except (TypeError, ValueError, NameError, AttributeError) as error:
            why = f"`{short(' '.join(types.split()))}` does not make its arguments: {error}"
            raise ShardingTypeError("the plan cannot be written into its file", why=why) from None

    def edited(self, edits: Edits, plan: Plan) -> dict[Path, bytes]:
        """The files with reshards around expressions, and the types and step after the function."""
        step = functools.partial(self._types_and_step, plan=plan)
        return {
            path: file.edited(edits, step if file is self.file else lambda sh: iter(()))
            for path, file in self.files.items()
        }

    def types_of(self, arguments: tuple[Any, ...]) -> str:
        """The expression of the arguments, with types as strings."""
        return pprint.pformat(Literals(self.file.path, self._globals).literal(arguments), width=100, sort_dicts=False)

    def _types_and_step(self, sh: str, plan: Plan) -> Iterator[Edit]:
        """The types of the arguments and the step, which replace those of an earlier patch."""
        if (head := self.patched) is not None:
            old = [n.end_lineno or 0 for n in self.file.tree.body if self._named(n) & {self.types, self.step}]
            last = max(old, default=head)
            before = next(i for i in range(head - 1, 0, -1) if self.file.lines[i - 1].strip())
            yield Edit(self.file.end_of_line(before), 2, 0, "", self.file.end_of_line(last))
        argnums = plan.problem.argnums
        which = "" if argnums == (0,) else f", {argnums[0] if len(argnums) == 1 else argnums}"
        step = f"{sh}.train_step({sh}.lift({self.name}){which})" if argnums else f"{sh}.lift({self.name})"
        mesh = ", ".join(f"{a}={n}" for a, n in plan.problem.mesh.shape.items())
        block = f"""


{self.comment}on {mesh}.
def {self.types}():
    return {textwrap.indent(self.types_of(plan.arguments), " " * 11).lstrip()}


{self.step} = {step}"""
        yield Edit(self.file.end_of_line(self.top.end_lineno or 0), 1, 0, block, 0)

    @staticmethod
    def _named(node: ast.stmt) -> set[str]:
        """The names that a statement defines."""
        if isinstance(node, ast.FunctionDef):
            return {node.name}
        return {t.id for t in node.targets if isinstance(t, ast.Name)} if isinstance(node, ast.Assign) else set()
