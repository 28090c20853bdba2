"""Prints `rules.md` from the tables that the library reads: ``python docs/generate_rules.py > docs/rules.md``.

Which op is typed by which rules, and reads which tables, is found in the code: an op names its rules, and a rule its
tables.
"""

from __future__ import annotations

import dis
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from shtypes import NAMESPACES, api
from shtypes.ops.rules import local, tables
from shtypes.ops.rules.tables import Role
from shtypes.reshard.moves import MOVES, REINTERPRETATIONS, Grade, Kind
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


def sent_by(row: local.Row) -> str:
    """The bytes that a collective sends."""
    return "B" if row.kind is Kind.PERMUTE else sent(local.ROUNDS.get(row.kind, 0))


# which op reads which table


@functools.cache
def mentioned(fn: types.FunctionType) -> tuple[Any, ...]:
    """The objects that a function's code names: globals, closed-over values, attributes of modules, local imports."""
    return tuple(_mentioned(fn))


def _mentioned(fn: types.FunctionType) -> Iterator[Any]:
    known = {**fn.__globals__, **_closed_over(fn)}
    for code in _codes(fn.__code__):
        found: Any = None
        for step in dis.get_instructions(code):
            if step.opname == "IMPORT_NAME":
                found = importlib.import_module(step.argval)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                found = known.get(step.argval)
                yield found
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM") and isinstance(found, types.ModuleType):
                yield getattr(found, step.argval, None)
                found = found if step.opname == "IMPORT_FROM" else None


def _closed_over(fn: types.FunctionType) -> dict[str, Any]:
    return {
        name: cell.cell_contents
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        if cell != types.CellType()
    }


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def reached(start: Callable[..., Any], room: str, *, through_rules: bool = False) -> Iterator[Any]:
    """What a function names, directly or through functions of one room of the package; rules only where asked."""
    seen: set[int] = set()
    pending = [start]
    while pending:
        fn = inspect.unwrap(pending.pop())
        if not isinstance(fn, types.FunctionType) or id(fn) in seen or not fn.__module__.startswith(room):
            continue
        seen.add(id(fn))
        for value in mentioned(fn):
            yield value
            if callable(value) and (through_rules or not is_rule(value)):
                pending.append(value)


def is_rule(value: Any) -> bool:
    """Whether this is a typing rule: a cached function that gives a typing."""
    wrapped = getattr(value, "__wrapped__", None)
    return wrapped is not None and getattr(wrapped, "__annotations__", {}).get("return") == "Typing"


def public_ops() -> dict[str, Callable[..., Any]]:
    """Every public function of the ops, by the name that users write."""
    found: dict[str, Callable[..., Any]] = {}
    spaces = {"": api} | {f"{name}.": getattr(api, name) for name in sorted(NAMESPACES) if hasattr(api, name)}
    for prefix, space in spaces.items():
        for name, value in vars(space).items():
            if (
                callable(value)
                and name[0] != "_"
                and _is_op(inspect.unwrap(value))
                and (not prefix or name in getattr(space, "__all__", ()))
            ):
                found[prefix + name] = value
    return dict(sorted(found.items()))


def _is_op(fn: Any) -> bool:
    return isinstance(fn, types.FunctionType) and fn.__module__.startswith("shtypes.ops.")


@functools.cache
def ops_of_rules() -> dict[Callable[..., Any], list[str]]:
    """The ops that each rule types."""
    users: dict[Any, set[str]] = {}
    for name, op in public_ops().items():
        for value in reached(op, "shtypes.ops."):
            if is_rule(value):
                users.setdefault(value, set()).add(name)
    return {rule: sorted(users[rule]) for rule in sorted(users, key=lambda r: (r.__module__, r.__name__))}


def tables_of(rule: Callable[..., Any]) -> list[str]:
    """The tables that a rule reads."""
    found = {id(value) for value in reached(rule, "shtypes.ops.rules", through_rules=True)}
    return [name for name in TABLES if id(getattr(tables, name)) in found]


def rules_table() -> str:
    """Each rule with what it types and the tables that it reads."""
    body = []
    for rule in ops_of_rules():
        read = ", ".join(f"`{t}`" for t in tables_of(rule)) or NONE
        body.append([f"`{rule.__name__}`", f"`{rule.__module__.rsplit('.', 1)[1]}.py`", summary(rule), read])
    return grid(["rule", "in `ops/rules/`", "types", "tables"], body)


def summary(documented: object) -> str:
    """The first line of a docstring, as markdown."""
    return (inspect.getdoc(documented) or "").split("\n")[0].replace("``", "`")


def families() -> Iterator[str]:
    """The ops of each file of the package, by the rules that type them."""
    rules_of: dict[str, list[str]] = {}
    for rule, ops in ops_of_rules().items():
        for op in ops:
            rules_of.setdefault(op, []).append(rule.__name__)
    by_file: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for op, fn in public_ops().items():
        if op in rules_of:
            file = by_file.setdefault(inspect.unwrap(fn).__module__, {})
            file.setdefault(tuple(rules_of[op]), []).append(op)
    for module, groups in sorted(by_file.items()):
        yield f"### {module.rsplit('.', 1)[1].replace('_', ' ').capitalize()}"
        yield summary(importlib.import_module(module))
        yield grid(["ops", "rules"], [row for group in groups.items() for row in _rows(*group)])


def _rows(rules: Sequence[str], ops: Sequence[str]) -> Iterator[list[str]]:
    for i in range(0, len(ops), MOST_OPS):
        yield [", ".join(f"`{name}`" for name in names) for names in (ops[i : i + MOST_OPS], rules)]


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
        "By file of `shtypes/ops/`. An op with several rules is made of several steps, or typed by its operands.",
        *families(),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    print(page(), end="")
