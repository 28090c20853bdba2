"""The typed listing of a straight-line function: the type of every line, and of the cotangents that it sends back.

Forward lines carry the names that the user's source assigns to. Backward lines are those of JAX's own vjp of each
forward equation, in reverse; ``g_x`` is the cotangent of ``x``, and where several lines send one, their sum.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from shtypes._compat import is_literal, jaxpr_of
from shtypes.analysis.equations import Place, place_of
from shtypes.array import wrap
from shtypes.hitype import HiShType
from shtypes.primitives import Reshard


class Line(NamedTuple):
    """One line of a listing.

    Attributes:
        name: The value's name.
        type: Its type.
        op: How it is made, as the jaxpr prints it; empty for arguments.
        operands: The names of what it is made from.
        of: For a backward line, the name of the forward line that causes it.
    """

    name: str
    type: HiShType
    op: str = ""
    operands: tuple[str, ...] = ()
    of: str = ""

    def __str__(self) -> str:
        made = f" = {' '.join((self.op, *self.operands))}" if self.op else ""
        return f"{self.name}: {self.type}{made}"


class Listing(NamedTuple):
    """The typed listing of a function.

    Attributes:
        arguments: Its arguments.
        forward: Its equations, in order.
        backward: The cotangents, in the order in which they are made, from those of the results on.
    """

    arguments: tuple[Line, ...]
    forward: tuple[Line, ...]
    backward: tuple[Line, ...]

    def __str__(self) -> str:
        parts = ["\n".join(map(str, self.arguments)), "\n".join(map(str, self.forward))]
        if self.backward:
            parts.append(_backward_text(self.backward, {line.name: line for line in self.forward}))
        return "\n\n".join(parts)


def _backward_text(lines: Sequence[Line], forward: dict[str, Line]) -> str:
    text: list[str] = []
    last = None
    for line in lines:
        if line.of != last and line.of in forward:
            text += ["", f"# {forward[line.of]}"]
        elif line.of != last and text:
            text.append("")
        last = line.of
        text.append(str(line))
    return "\n".join(text)


def listing(f: Callable[..., Any], *args: Any) -> Listing:
    """The typed listing of a function of typed values; nothing runs.

    Args:
        f: A function without control flow.
        *args: Its arguments, typed values; `shtypes.abstract_array` makes ones that need no devices.
    """
    jaxpr = jaxpr_of(jax.make_jaxpr(f)(*args))
    names = _Names(f, jaxpr)
    arguments = tuple(Line(names[v], v.aval) for v in jaxpr.invars)
    forward, typed = [], []
    for eqn in jaxpr.eqns:
        operands = tuple(names[v] for v in eqn.invars)
        forward += [Line(names[v], v.aval, str(eqn.primitive), operands) for v in eqn.outvars]
        typed.append(eqn)
    return Listing(arguments, tuple(forward), tuple(_backward(jaxpr, typed, names)))


class _Names:
    """Names of a jaxpr's variables: of the parameters, of what the user's lines assign to, or made from the op."""

    def __init__(self, f: Callable[..., Any], jaxpr: Any) -> None:
        self._of: dict[int, str] = {}
        parameters = list(inspect.signature(f).parameters)
        for i, var in enumerate(jaxpr.invars):
            self._name(var, parameters[i] if len(parameters) == len(jaxpr.invars) else f"arg{i}")
        last = {place_of(eqn): eqn for eqn in jaxpr.eqns}  # the last equation of a line makes what the line assigns
        for eqn in jaxpr.eqns:
            place = place_of(eqn)
            assigned = _assigned(place) if last[place] is eqn else None
            for var in eqn.outvars:
                op = str(eqn.primitive).split("[")[0]
                self._name(var, assigned or "_".join((op, *(self[v] for v in eqn.invars[:1]))))

    def _name(self, var: Any, name: str) -> None:
        taken = set(self._of.values())
        free = (name if n == 0 else f"{name}_{n + 1}" for n in range(len(taken) + 1))
        self._of[id(var)] = next(n for n in free if n not in taken)

    def __getitem__(self, var: Any) -> str:
        return str(var.val) if is_literal(var) else self._of[id(var)]


@functools.cache
def _assignments(file: str) -> dict[int, str]:
    """The name that each line of a file assigns to, by every line number that the statement spans."""
    try:
        with open(file, encoding="utf-8") as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError):
        return {}
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                found[line] = node.targets[0].id
    return found


def _assigned(place: Place) -> str | None:
    return _assignments(place.file).get(place.line)


def _backward(jaxpr: Any, eqns: Sequence[Any], names: _Names) -> list[Line]:
    """The cotangent lines, from the results back to the arguments."""
    pending: dict[int, list[tuple[str, str]]] = {}  # variable -> its cotangents so far, and the lines that sent them
    lines: list[Line] = []
    for var in jaxpr.outvars:
        if not is_literal(var) and var.aval.differentiable:
            pending[id(var)] = [(f"g_{names[var]}", "")]
            lines.append(Line(f"g_{names[var]}", var.aval.to_ct_aval()))
    used = {
        id(v): sum(v is w for e in eqns for w in e.invars) + sum(v is w for w in jaxpr.outvars)
        for e in eqns
        for v in e.invars
    }
    for eqn in reversed(eqns):
        (out,) = eqn.outvars
        if id(out) not in pending:
            continue
        ct = _summed(out, pending, lines, names)
        for var, line in _transposed(eqn, ct, names):
            sent = f"g_{names[var]}" if used[id(var)] == 1 else f"g_{names[var]}_from_{names[out]}"
            pending.setdefault(id(var), []).append((sent, names[out]))
            lines.append(line._replace(name=sent))
    for var in jaxpr.invars:
        if id(var) in pending:
            _summed(var, pending, lines, names)
    return lines


def _summed(var: Any, pending: dict[int, list[tuple[str, str]]], lines: list[Line], names: _Names) -> str:
    """The name of a variable's whole cotangent; adds the line that sums several."""
    sent = pending[id(var)]
    if len(sent) > 1:
        name = f"g_{names[var]}"
        operands = tuple(n for n, _ in reversed(sent))
        lines.append(Line(name, var.aval.to_ct_aval(), "add", operands, of=""))
        pending[id(var)] = [(name, "")]
    return pending[id(var)][0][0]


def _transposed(eqn: Any, ct: str, names: _Names) -> list[tuple[Any, Line]]:
    """JAX's own backward equations of one forward equation: for each operand, the equation that makes its cotangent."""
    avals = [v.aval for v in eqn.invars]
    out = eqn.outvars[0].aval

    def pull(*args: Any) -> Any:
        *operands, g = args
        bound = eqn.primitive.bind
        run = bound if isinstance(eqn.primitive, Reshard) else (lambda *xs: bound(*xs)[0])
        return jax.vjp(run, *operands)[1](g)

    inner = jaxpr_of(jax.make_jaxpr(pull)(*[wrap(t, None) for t in (*avals, out.to_ct_aval())]))
    known = {id(v): names[w] for v, w in zip(inner.invars[:-1], eqn.invars, strict=True)}
    known[id(inner.invars[-1])] = ct
    made = {id(v): e for e in inner.eqns for v in e.outvars}

    def name_of(var: Any) -> str:
        if is_literal(var):
            return str(var.val)
        if id(var) not in known:
            e = made[id(var)]
            known[id(var)] = f"({' '.join((str(e.primitive), *map(name_of, e.invars)))})"
        return known[id(var)]

    found = []
    for operand, var in zip(eqn.invars, inner.outvars, strict=True):
        if is_literal(operand) or not operand.aval.differentiable:
            continue
        e = made.get(id(var)) if not is_literal(var) else None
        op, operands = ("copy", (ct,)) if e is None else (str(e.primitive), tuple(map(name_of, e.invars)))
        found.append((operand, Line("", operand.aval.to_ct_aval(), op, operands, of=names[eqn.outvars[0]])))
    return found
