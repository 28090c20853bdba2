"""Prints `rules.md` from the tables that the library reads: ``python docs/generate_rules.py > docs/rules.md``.

Which rule types an op, the op's row says.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from shtypes import rules
from shtypes.ops.table import OPS
from shtypes.resharding.moves import MOVES, REINTERPRETATIONS, ROUNDS, Grade, Kind
from shtypes.rules import local, tables
from shtypes.rules.tables import Role
from shtypes.types import COTANGENT, State

Cells = Sequence[Sequence[str]]

NONE: Final = "–"
#: The ops that one row lists.
MOST_OPS: Final = 8
#: The tables of the rules, and what each is about.
TABLES: Final[Mapping[str, str]] = {
    "MULTILINEAR": "The state of a result from those of two factors. More than two are folded, left to right.",
    "ADDITIVE": "The state of a result from those of two terms.",
    "FACTOR": "What a factor becomes, by what the result is. *S, lacks it*: sharded on a dim that the factor lacks.",
    "TERM": "What a term becomes, by what the result is.",
    "LINEAR_UNARY": "Ops that are linear in their one operand.",
    "NONLINEAR": "Ops that are not linear, and what each operand of a nonlinear op must pass first.",
    "SUM": "Sums over dims.",
}

#: The tables that each rule reads.
READS: Final[Mapping[str, str]] = {
    "additive": "ADDITIVE TERM",
    "broadcast": "LINEAR_UNARY",
    "categorical": "MULTILINEAR FACTOR NONLINEAR",
    "sample": "",
    "cast": "MULTILINEAR FACTOR LINEAR_UNARY NONLINEAR",
    "concatenate": "ADDITIVE TERM",
    "contraction": "MULTILINEAR FACTOR NONLINEAR SUM",
    "divide": "MULTILINEAR FACTOR NONLINEAR",
    "dynamic_update_slice": "MULTILINEAR ADDITIVE FACTOR TERM NONLINEAR",
    "einsum": "MULTILINEAR FACTOR SUM",
    "gather": "MULTILINEAR FACTOR NONLINEAR SUM",
    "nonlinear_contraction": "MULTILINEAR FACTOR NONLINEAR",
    "linear_unary": "LINEAR_UNARY",
    "multilinear": "MULTILINEAR FACTOR",
    "nonlinear": "MULTILINEAR FACTOR NONLINEAR",
    "one_hot": "NONLINEAR",
    "reduce_nonlinear": "NONLINEAR",
    "reduce_sum": "SUM",
    "reshape": "LINEAR_UNARY",
    "scatter": "MULTILINEAR ADDITIVE FACTOR TERM NONLINEAR SUM",
    "segment_sum": "MULTILINEAR FACTOR NONLINEAR SUM",
    "select_n": "MULTILINEAR ADDITIVE FACTOR TERM",
    "slices": "MULTILINEAR FACTOR NONLINEAR SUM",
    "squeeze": "LINEAR_UNARY",
    "stack": "ADDITIVE TERM",
    "transpose": "LINEAR_UNARY",
    "unary_along": "LINEAR_UNARY NONLINEAR",
}


# tables as markdown


def word(state: State | Role) -> str:
    """A state or role as the page names it."""
    return state.value if isinstance(state, Role) else state.name.lower()


def grid(head: Sequence[str], rows: Cells) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pairs(table: Mapping[Any, State], rows: Sequence[Any], columns: Sequence[Any], corner: str) -> str:
    """A table whose keys are pairs, as a grid."""

    def cell(key: Any) -> str:
        return word(table[key]) if key in table else NONE

    body = [[f"**{word(row)}**", *(cell((row, column)) for column in columns)] for row in rows]
    return grid([corner, *map(word, columns)], body)


def unary() -> str:
    """The tables of one operand, side by side."""
    names = ("LINEAR_UNARY", "NONLINEAR", "SUM")
    roles = (*State, Role.ALONG)
    found = [getattr(tables, name) for name in names]
    body = [[f"**{word(role)}**", *(word(t[role]) if role in t else NONE for t in found)] for role in roles]
    return grid(["the operand", *(f"`{name}`" for name in names)], body)


def grade(grade: Grade) -> str:
    """A grade as the page names it."""
    return grade.name.lower().replace("_", " ")


def sent(rounds: int) -> str:
    """The bytes that so many rounds send."""
    return "0" if not rounds else f"{rounds if rounds > 1 else ''}(n−1)/n·B"


def moves() -> str:
    """Every move and reinterpretation."""
    body = []
    for (src, dst), move in MOVES.items():
        back = MOVES.get((COTANGENT[dst], COTANGENT[src]))
        backward = sent(back.rounds) if back is not None else "0"
        to = word(dst) + (", another dim" if src is dst else "")
        body.append([f"{word(src)} → {to}", move.kind.value, grade(move.grade), sent(move.rounds), backward])
    return grid(["from → to", "does", "grade", "forward", "backward"], body)


def reinterpretations() -> str:
    """What `reinterpret` changes."""
    body = [[f"{word(src)} → {word(dst)}", grade(g)] for (src, dst), g in REINTERPRETATIONS.items()]
    return grid(["from → to", "grade"], body)


def collectives() -> str:
    """Every collective of local mode, with what transposes it."""
    body = []
    for (name, src, dst), row in local.ROWS.items():
        back = None if row.transpose is None else local.ROWS[row.transpose, COTANGENT[dst], COTANGENT[src]]
        transposed = f"`{row.transpose}`: {word(COTANGENT[dst])} → {word(COTANGENT[src])}" if row.transpose else NONE
        states = f"{word(src)} → {word(dst)}"
        body.append([f"`{name}`", states, row.kind.value, sent_by(row), transposed, sent_by(back) if back else NONE])
    return grid(["collective", "states", "does", "forward", "transpose", "backward"], body)


def sent_by(row: local.CollectiveRow) -> str:
    """The bytes that a collective sends."""
    return "B" if row.kind is Kind.PERMUTE else sent(ROUNDS.get(row.kind, 0))


# which op is typed by which rule


def is_rule(value: Any) -> bool:
    """Whether this is a typing rule: a cached function that gives a typing."""
    wrapped = getattr(value, "__wrapped__", None)
    return wrapped is not None and getattr(wrapped, "__annotations__", {}).get("return") == "Typing"


@functools.cache
def rule_named(name: str) -> Callable[..., Any]:
    """The rule with a name, in whatever file of `shtypes.rules` it is."""
    modules = (importlib.import_module(m.name) for m in pkgutil.iter_modules(rules.__path__, "shtypes.rules."))
    found = {r for module in modules if is_rule(r := vars(module).get(name)) and r.__module__ == module.__name__}
    assert len(found) == 1, f"{name}: {found}"
    return cast("Callable[..., Any]", found.pop())


def ops_of_rules() -> dict[Callable[..., Any], list[str]]:
    """The ops that each rule types."""
    named = {op.rule for op in OPS.values() if op.rule}
    found = {rule_named(name): sorted(op.name for op in OPS.values() if op.rule == name) for name in named}
    return dict(sorted(found.items(), key=lambda item: (item[0].__module__, item[0].__name__)))


def rules_table() -> str:
    """Each rule with what it types and the tables that it reads."""
    body = []
    for rule in ops_of_rules():
        read = ", ".join(f"`{t}`" for t in READS[rule.__name__].split()) or NONE
        body.append([f"`{rule.__name__}`", f"`{rule.__module__.rsplit('.', 1)[1]}.py`", summary(rule), read])
    return grid(["rule", "in `shtypes/rules/`", "types", "tables"], body)


def summary(documented: object) -> str:
    """The first line of a docstring, as markdown."""
    return (inspect.getdoc(documented) or "").split("\n")[0].replace("``", "`")


def families() -> Iterator[str]:
    """The ops of each file of the package, with what types them and in which operands they are linear."""
    by_file: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, op in sorted(OPS.items()):
        by_file.setdefault(op.module, {}).setdefault((op.rule, op.linear), []).append(name)
    for module, groups in sorted(by_file.items()):
        yield f"### {module.rsplit('.', 1)[1].replace('_', ' ').capitalize()}"
        yield summary(importlib.import_module(module))
        yield grid(["ops", "rule", "linear in"], [row for group in sorted(groups.items()) for row in _rows(*group)])


def _rows(facts: tuple[str, str], ops: Sequence[str]) -> Iterator[list[str]]:
    shown = [f"`{fact}`" if fact else NONE for fact in facts]
    for i in range(0, len(ops), MOST_OPS):
        yield [", ".join(f"`{name}`" for name in ops[i : i + MOST_OPS]), *shown]


# the page


def page() -> str:
    """The page as text."""
    states, needs = tuple(State), (*State, Role.LACKS)
    sections = [
        "# The rules, as tables",
        "This page is printed from the tables in the code by `docs/generate_rules.py`, so it is what the library\n"
        f"does. A rule asks its tables for each mesh axis by itself; {NONE} is a type error. [Types](types.md) says\n"
        "what the states mean.",
        "## Operands that meet",
        f"**`MULTILINEAR`.** {TABLES['MULTILINEAR']}",
        pairs(tables.MULTILINEAR, states, states, "factors"),
        f"**`ADDITIVE`.** {TABLES['ADDITIVE']}",
        pairs(tables.ADDITIVE, states, states, "terms"),
        "## What operands are cast to",
        "Casts start from replicated states only, and each is visible in the typed program.",
        f"**`FACTOR`.** {TABLES['FACTOR']}",
        pairs(tables.FACTOR, states, needs, "a factor that is"),
        f"**`TERM`.** {TABLES['TERM']}",
        pairs(tables.TERM, states, needs, "a term that is"),
        "## One operand",
        "*S along* is sharded on a dim that the op acts along; *sharded* is sharded on another.",
        unary(),
        "## Gradients",
        grid(["a value that is", "has a gradient that is"], [[word(s), word(c)] for s, c in COTANGENT.items()]),
        "## Moves",
        "`n` is the size of the axis, `B` the bytes per device of the larger of the two local arrays. Backward is\n"
        "what the transpose sends.",
        moves(),
        "Reinterpretations keep the shards and change what they denote.",
        reinterpretations(),
        "## Collectives of local mode",
        "`pvary` and `pcast` to varying are `pbroadcast` from invariant, a reinterpretation from reduced. `pmean`\n"
        "is `psum` over the size, `pshuffle` a `ppermute`. `psum` from unreduced and `pplace` only transpose others.\n"
        "What is not here is a type error, such as a `psum` of a replicated value.",
        collectives(),
        "## The rules",
        "A rule types one step of an op, for all mesh axes together.",
        rules_table(),
        "## Which op is typed by which rules",
        "By file, as `shtypes/ops/table.py` lists them. An op without a rule is made of others, or makes its value\n"
        "from nothing. What an op is linear in may be a pending sum: `x*y` in each by itself, `x+y` in both together,\n"
        "`*` and `+` before a name in each or all of many.",
        *families(),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    print(page(), end="")
