"""`compare`: a program under both policies, line by line, as text, JSON and HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import jax

from shtypes.analysis.changes import POLICIES, Change, TypeChange, Use, changes_of, type_changes, uses_of
from shtypes.analysis.check import Signature, signature_of
from shtypes.analysis.target import mesh_of, scopes, target_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.conversion import abstract_array
from shtypes.core.meshes import AnyMesh, to_mesh
from shtypes.errors import ShardingTypeError
from shtypes.resharding.costs import CostModel, cost_model
from shtypes.traced.equations import equations
from shtypes.traced.ledger import Ledger, Total
from shtypes.types import ShType
from shtypes.types.mesh import current_mesh
from shtypes.types.notation.printing import show
from shtypes.types.policy import current_policy
from shtypes.types.tables import Report, Table, Text
from shtypes.types.target import parse

#: The version of the format of `Comparison.to_json`.
SCHEMA: Final = 1


@dataclass(frozen=True)
class Side:
    """The program under one policy: its signature, or the error if it does not type."""

    policy: str
    signature: Signature | None = None
    error: ShardingTypeError | None = None

    @property
    def ledger(self) -> Ledger:
        """Its collectives; none if it does not type."""
        return Ledger() if self.signature is None else self.signature.ledger


class Comparison(Report):
    """A program under both policies, as a report.

    Attributes:
        name: The function's name.
        mesh: The mesh, as text.
        jax: The program under "jax".
        partial: The program under "partial".
        model: The cost model of the predicted times, or None.
        grad: Whether a backward pass was added.
        takes: Whether the function takes gradients itself.
    """

    titled: ClassVar[bool] = True

    def __init__(
        self, name: str, mesh: str, jax: Side, partial: Side, model: CostModel | None, *, grad: bool, takes: bool
    ) -> None:
        self.name, self.mesh, self.jax, self.partial, self.model = name, mesh, jax, partial, model
        self.grad, self.takes = grad, takes
        self.types = tuple(type_changes(jax.signature, partial.signature))
        self.collectives = tuple(changes_of(uses_of(jax.ledger), uses_of(partial.ledger)))

    @property
    def typed(self) -> bool:
        """Whether the program types under both policies."""
        return self.jax.error is None and self.partial.error is None

    def seconds(self) -> tuple[float, float] | None:
        """The predicted times of all collectives in sequence, under "jax" and "partial"."""
        if self.model is None:
            return None
        return self.jax.ledger.time(self.model), self.partial.ledger.time(self.model)

    # output

    @property
    def title(self) -> str:
        """The heading of the report."""
        passes = (
            "forward and backward" if self.grad else "with the gradients that it takes" if self.takes else "forward"
        )
        return f'{self.name} on {self.mesh}, {passes}: policy "jax" against "partial"'

    def tables(self) -> list[Table]:
        """The parts of the report."""
        return [_type_table(self.types), _collective_table(self.collectives), self._totals()]

    def _totals(self) -> Table:
        sides = (self.jax.ledger, self.partial.ledger)
        rows = [_total_row("total", "", [ledger.total for ledger in sides])]
        for what, of in (("direction", Ledger.by_direction), ("kind", Ledger.by_kind), ("axes", Ledger.by_axes)):
            parts: list[Mapping[Any, Any]] = [of(ledger) for ledger in sides]
            for key in dict.fromkeys(k for part in parts for k in part):
                label = key if isinstance(key, str) else ",".join(key)
                rows.append(_total_row(what, label, [part.get(key) for part in parts]))
        seconds = self.seconds()
        if seconds is not None:
            rows.append(("predicted time", "", *(f"{s:.2e} s" for s in seconds), "", ""))
        notes = [f"{s.policy}: totals are lower bounds" for s in (self.jax, self.partial) if not s.ledger.known]
        headings = ("by", "", "jax B/device", "partial B/device", "jax launches", "partial launches")
        return Table("Totals", headings, tuple(rows), frozenset(headings[2:]), "; ".join(notes))

    def parts(self) -> list[Table | Text]:
        """Errors of programs that do not type, and the tables."""
        sides = (self.jax, self.partial)
        errors = [Text(f'Under "{s.policy}" it does not type: {s.error}', "red") for s in sides if s.error]
        return [*errors, *self.tables()]

    def __repr__(self) -> str:
        jax_total, partial_total = self.jax.ledger.bytes, self.partial.ledger.bytes
        return f"<Comparison of {self.name}: jax {jax_total} B/device, partial {partial_total} B/device>"

    def to_dict(self) -> dict[str, Any]:
        """The comparison for JSON, as described in the docs (communication)."""
        return {
            "schema": SCHEMA,
            "function": self.name,
            "mesh": self.mesh,
            "grad": self.grad,
            **{
                side.policy: {
                    "error": None if side.error is None else str(side.error),
                    "signature": None if side.signature is None else side.signature.to_dict(),
                    "seconds": time,
                    "ledger": side.ledger.to_dict(),
                }
                for side, time in zip((self.jax, self.partial), (self.seconds() or (None, None)), strict=True)
            },
            "types": [{**c._asdict(), "place": c.place.to_json()} for c in self.types],
            "collectives": [
                {"what": c.what, "jax": _use_json(c.jax), "partial": _use_json(c.partial)} for c in self.collectives
            ],
        }


# tables


def _type_table(changes: Iterable[TypeChange]) -> Table:
    rows = tuple(
        (
            str(c.place) or c.direction,
            c.direction if c.place.file else "",
            c.what if c.values == 1 else f"{c.what} ({c.values} times)",
            c.jax,
            c.partial,
            c.place.text,
        )
        for c in changes
    )
    note = "" if rows else "none, as each policy prints them"
    return Table("Types that differ", ("line", "direction", "value", "jax", "partial", "source"), rows, note=note)


def _collective_table(changes: Iterable[Change]) -> Table:
    changes = tuple(changes)
    rows = tuple(_change_row(c) for c in changes if c.what != "same")
    same = sum(c.what == "same" for c in changes)
    parts = ["none differ"] if not rows else []
    parts += [f"{same} {'is' if same == 1 else 'are'} the same"] if same else []
    headings = ("jax to partial", "collective", "jax", "partial", "source")
    return Table("Collectives that differ", headings, rows, note="; ".join(parts))


def _change_row(change: Change) -> tuple[str, ...]:
    (use, *_) = (use for use in (change.partial, change.jax) if use is not None)
    texts = (_sent(change.jax), _sent(change.partial))
    narrow = f" in {use.dtype}" if use.dtype else ""
    return change.what, f"{use.kind} over {', '.join(use.axes)}{narrow}", *texts, use.place.text


def _sent(use: Use | None) -> str:
    if use is None:
        return "-"
    times = "" if use.known and use.launches == 1 else f" in {use.launches}{'' if use.known else ' or more'}"
    return f"{str(use.place) or '(no line)'} {use.direction}: {use.bytes} B/device{times}"


def _total_row(what: str, key: str, totals: Iterable[Total | None]) -> tuple[str, ...]:
    rows = [t or Total(0, 0) for t in totals]
    return what, key, *(str(t.bytes) for t in rows), *(str(t.launches) for t in rows)


def _use_json(use: Use | None) -> dict[str, Any] | None:
    return None if use is None else {**use._asdict(), "axes": list(use.axes), "place": use.place.to_json()}


@public
def compare(
    f: Callable[..., Any],
    *args: Any,
    grad: bool = True,
    model: CostModel | str | None = None,
    mesh: AnyMesh | None = None,
    dims: Mapping[str, int] | None = None,
    **kwargs: Any,
) -> Comparison:
    """Compares a program under the policies "jax" and "partial": types, collectives, totals and times.

    Args:
        f: A function of pytrees of typed values.
        *args: Its arguments: types, also as strings, values, or pytrees of these. A string is parsed under each policy;
            axes that are replicated by the current policy in a type or value are replicated by the other policy too. By
            default those of the annotations of ``f``.
        grad: Whether to compare the backward pass too, to all differentiable arguments. A function that takes gradients
            itself is compared as it is.
        model: A cost model, or the name of a link, to predict times.
        mesh: The mesh of strings; by default the one in context.
        dims: Sizes of dim names.
        **kwargs: More arguments of ``f``.

    Returns:
        The comparison. If the program types under one policy only, the other side has the error.

    Raises:
        ShardingTypeError: the program types under neither policy.

    Communicates: nothing, and runs nothing.

    Examples:
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return sh.silu(x @ w)
        >>> mesh = sh.abstract_mesh({"dp": 2, "tp": 4})
        >>> comparison = compare(layer, "f32[8@dp, 16]", "f32[16, 32@tp]", mesh=mesh)
        >>> comparison.jax.ledger.bytes, comparison.partial.ledger.bytes
        (896, 0)
    """
    cost = cost_model(model) if isinstance(model, str) else model
    from_policy = current_policy()
    sides, takes = {}, False
    for policy in POLICIES:
        with scopes(mesh, policy, dims):
            try:
                target = target_of(f, *_translated((args, kwargs), from_policy, policy))
                with scopes(mesh_of((target.args, target.kwargs)), None, None):
                    typed = signature_of(target, grad=False)
                    takes = any(e.direction != "forward" for e in equations(typed.program))
                    sides[policy] = Side(policy, signature_of(target, grad=True) if grad and not takes else typed)
            except ShardingTypeError as error:
                sides[policy] = Side(policy, error=error)
    signature = next((s.signature for s in sides.values() if s.signature is not None), None)
    if signature is None:
        raise next(s.error for s in sides.values() if s.error is not None)
    typed_mesh = next((x.mesh for x in jax.tree.leaves(signature.arguments) if isinstance(x, ShType)), None)
    where = typed_mesh or (current_mesh() if mesh is None else to_mesh(mesh))
    return Comparison(
        signature.name, str(where), sides["jax"], sides["partial"], cost, grad=grad and not takes, takes=takes
    )


def _translated(tree: Any, src: str, dst: str) -> Any:
    """Converts typed values to abstract ones, with the replicated state of the other policy."""

    def one(x: Any) -> Any:
        t = x.type if isinstance(x, Array) else x if isinstance(x, ShType) else None
        if t is None:
            return x
        return abstract_array(parse(show(t, src), t.mesh, dims={d.name: d.size for d in t.dims if d.name}, policy=dst))

    return jax.tree.map(one, tree)
