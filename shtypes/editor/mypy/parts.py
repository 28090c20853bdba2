"""Calls whose list of results is taken apart where it is made: ``a, b = sh.split(x, 2)``.

Nothing else sees that list, so that each of its items may have a type of its own, as in a tuple.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy.nodes import AssignmentStmt, CallExpr, Context, Expression, ListExpr, MypyFile, StarExpr, TupleExpr

from shtypes.editor.mypy.regions import statements_in


class Parts:
    """Such calls of files, each walked once, when the first list is made in it."""

    def __init__(self) -> None:
        self._of: dict[str, dict[Context, int]] = {}

    def forget(self, path: str) -> None:
        """Walks a file again: it has changed."""
        self._of.pop(path, None)

    def of(self, tree: MypyFile | None, call: Context, count: int) -> bool:
        """Whether a call's list of so many is taken apart at once."""
        if tree is None:
            return False
        if tree.path not in self._of:
            self._of[tree.path] = dict(_taken_apart(tree))
        return self._of[tree.path].get(call) == count


def _taken_apart(tree: MypyFile) -> Iterator[tuple[Context, int]]:
    """Such calls, and how many names their results get."""
    for statement in statements_in(tree.defs):
        if isinstance(statement, AssignmentStmt) and isinstance(statement.rvalue, CallExpr):
            counts = set(map(_count, statement.lvalues))
            if len(counts) == 1:
                yield statement.rvalue, counts.pop()


def _count(target: Expression) -> int:
    """How many names are bound; 0 where they are not told."""
    if not isinstance(target, (TupleExpr, ListExpr)) or any(isinstance(i, StarExpr) for i in target.items):
        return 0
    return len(target.items)
