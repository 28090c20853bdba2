"""`explain`: the typed listing of a program, with its source, communication and residuals."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shtypes.analysis.explain.document import (
    Line,
    Lister,
    Listing,
    document,
    equations_in,
    saved_by,
    use_merged_equations,
)
from shtypes.analysis.explain.page import framed, plot, to_html
from shtypes.analysis.explain.text import plain, rich, table
from shtypes.analysis.explain.values import BodyRun, Value, name_cotangents, resolve
from shtypes.analysis.explain.walk import Walker
from shtypes.analysis.target import Target, target_in_scope
from shtypes.core.meshes import AnyMesh
from shtypes.core.shard_fn import is_inexact
from shtypes.scopes.comm import noting_undecided
from shtypes.traced.ledger import ledger_from
from shtypes.traced.program import backward_pass, is_array, leaf_paths, split, zero_seed
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import current_policy
from shtypes.types.policy import policy as under
from shtypes.types.tables import Report, Table, notebook


@dataclass(frozen=True)
class Explanation(Listing, Report):
    """The typed listing of a program.

    ``str()`` is its text, `rich` prints it in colours, notebooks show its lines as a table, with the page below; see
    `to_json`, `to_html` and `plot`.

    Attributes:
        function: The name of the function.
        policy: The policy of the trace and of printed types.
        mesh: The mesh of its types, or None.
        gradient: Whether the backward pass is listed too.
        arguments: The arguments.
        results: The results.
        seeds: The first cotangents of the backward pass, one for each differentiable result.
        gradients: The cotangents of the arguments; one listed under another name is computed from that.
        items: The listing: lines, and blocks of loops and conditionals, in program order.
        ledger: The collectives.
        saved: The residuals of the backward pass.
        fold: Whether text and page show repeats, such as the layers of a model, once.
        undecided: Why functions under `implicit_comm` were not optimized jointly, so that their ops chose for
            themselves.
    """

    def text(self, *, source: bool = True, totals: bool = True) -> str:
        """The listing as plain text.

        Args:
            source: Whether to show the source beside the lines.
            totals: Whether to append the communication and the residuals.
        """
        with under(self.policy):
            return plain(self, source=source, totals=totals)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Explanation of {self.function}: {len(self.lines)} lines, {self.ledger.bytes} B/device>"

    def __rich__(self) -> Any:
        """The listing for `rich`, with collectives and casts highlighted."""
        with under(self.policy):
            return rich(self)

    @property
    def title(self) -> str:
        """The name of the function."""
        return self.function

    def tables(self) -> list[Table]:
        """The lines as a table."""
        with under(self.policy):
            return [table(self)]

    def to_dict(self) -> dict[str, Any]:
        """The listing for JSON, as described in the docs (explain)."""
        with under(self.policy):
            return document(self)

    def to_html(self) -> str:
        """The listing as a self-contained page: the source with its types, the mesh, the totals."""
        with under(self.policy):
            return to_html(self)

    def _repr_html_(self) -> str:
        frame = framed(self.to_html())
        return notebook(*self.tables(), f"<details><summary>source and types</summary>{frame}</details>")

    def plot(self, path: str | Path | None = None) -> Any:
        """A plot of the bytes that each device sends, for each group of mesh axes and each direction.

        Args:
            path: A file to write: png, svg or pdf.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed; the message says how to install it.
        """
        return plot(self, path)


def explain(
    f: Callable[..., Any],
    *args: Any,
    grad: bool = False,
    mesh: AnyMesh | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    fold: bool = True,
    **kwargs: Any,
) -> Explanation:
    """Lists the types of every line of a function, and with ``grad`` of every cotangent; nothing runs.

    Lines have the names that the source assigns to. A cotangent of ``x`` is ``g_x``; if several lines contribute, each
    part is ``g_x_from_y`` and their sum ``g_x``. Backward lines are the equations of JAX's gradient of ``f``, each
    under the forward line that causes it.

    Args:
        f: A function of any pytrees of typed values and plain arrays, jitted or not; loops, branches, checkpoints,
            custom derivatives, mapped functions and local mode are all listed.
        *args: Its arguments: values, abstract values, types, or types as strings. By default those of the annotations.
        grad: Whether to list the backward pass too, from cotangents of all results to every differentiable argument.
            The function need not return a scalar.
        mesh: The mesh of strings; by default the one in context.
        policy: The policy; by default the current one.
        dims: Sizes of dim names.
        fold: Whether text and page show repeats, such as layers that Python unrolls, once with their number. JSON and
            the attributes of the result have all of them.
        **kwargs: More arguments of ``f``.

    Returns:
        The listing, with the ledger of the same program and the residuals of the backward pass.

    Raises:
        ShardingTypeError: the function does not type.

    Examples:
        >>> import shtypes as sh
        >>> def square(x):
        ...     return sh.sum(x * x)
        >>> listing = sh.explain(square, "f32[8@dp]", mesh=sh.abstract_mesh({"dp": 2}))
        >>> print(listing.text(source=False, totals=False))
        square on the mesh dp=2, policy "partial"
        <BLANKLINE>
        x: f32[8@dp]
        <BLANKLINE>
        mul_x: f32[8@dp] = mul x x
        square: f32[]{U:dp} = sum[0] mul_x
    """
    with target_in_scope(f, args, kwargs, mesh, policy, dims) as target:
        with noting_undecided() as undecided:
            traced = trace(target, grad=grad)
        listing = explained(target.name, traced, grad=grad, fold=fold, merges=target.merges)
        return dataclasses.replace(listing, undecided=tuple(undecided))


def explained(name: str, traced: TracedProgram, *, grad: bool, fold: bool = True, merges: bool = False) -> Explanation:
    """The listing of a traced program, with or without its backward pass and merged reshards."""
    walker = Walker()
    scope = walker.program(traced.jaxpr, traced.arguments)
    seeds = _name_seeds(scope, traced)
    walker.backward_bodies(scope)
    name_cotangents(scope)
    gradients = _gradients(scope, traced)
    if merges:
        use_merged_equations(scope, traced.jaxpr)
    ledger = ledger_from(equations_in(scope))
    saved = saved_by(scope)
    seed_equations = {id(v.producer) for seed in seeds for v in (seed, *_numbers(seed)) if v.producer is not None}
    scope.records = [r for r in scope.records if id(r) not in seed_equations]
    return Explanation(
        function=name,
        policy=current_policy(),
        mesh=_mesh(scope),
        gradient=grad,
        arguments=tuple(Line(v.name, v.type) for v in scope.inputs),
        results=tuple(Line(v.name, v.type) for v in scope.results[: len(traced.results)] if isinstance(v, Value)),
        seeds=tuple(Line(v.name, v.type, direction="backward") for v in seeds),
        gradients=gradients,
        items=Lister().items(scope),
        ledger=ledger,
        saved=saved,
        fold=fold,
    )


def _name_seeds(scope: BodyRun, traced: TracedProgram) -> list[Value]:
    """The first cotangents of the backward pass, named; links each cotangent to its value."""
    first_seed, seeds = len(traced.results), []
    for i, source in enumerate(traced.sources, first_seed):
        seed, result = scope.results[i], scope.results[source]
        if isinstance(seed, Value) and isinstance(result, Value):
            seed.primal = result
            seed.name = scope.unique(f"g_{result.name or f'result{traced.results[source]}'}")
            for number in _numbers(seed):
                number.name = "1"
            seeds.append(seed)
    first_gradient = first_seed + len(traced.sources)
    resolve(scope, {i: scope.inputs[argument] for i, argument in enumerate(traced.differentiated, first_gradient)})
    for seed in seeds:  # a result that is also used has further cotangents
        if any(use.sums and use.outs[0].primal is seed.primal for use in seed.uses):
            scope.unique.release(seed.name)
            seed.name = scope.unique(f"{seed.name}_given")
    return seeds


def _numbers(seed: Value) -> list[Value]:
    """The replicated number from which the seed of a scalar was cast, if it was."""
    return [] if seed.producer is None else seed.producer.values


def _gradients(scope: BodyRun, traced: TracedProgram) -> tuple[Line, ...]:
    """A line for each differentiated argument; its op is ``zeros``, or the name of its cotangent if that differs."""
    lines = []
    first = len(traced.results) + len(traced.sources)
    for value, position in zip(scope.results[first:], traced.differentiated, strict=True):
        argument = scope.inputs[position]
        name, t = f"g_{argument.name}", value.type if isinstance(value, Value) else argument.type
        op = "zeros" if not isinstance(value, Value) or not value.gradient else "" if value.name == name else value.name
        lines.append(Line(name, t, op=op, direction="backward"))
    return tuple(lines)


def _mesh(scope: BodyRun) -> Mesh | None:
    values = [*scope.inputs, *(v for r in scope.records for v in r.outs)]
    return next((v.type.mesh for v in values if isinstance(v.type, ShType)), None)


class TracedProgram(NamedTuple):
    """A traced program; its outputs are the results, the first cotangents and the gradients, in this order."""

    jaxpr: Any
    arguments: tuple[str, ...]  # names
    results: tuple[str, ...]  # names
    sources: tuple[int, ...]  # the result of each first cotangent
    differentiated: tuple[int, ...]  # the argument of each gradient


def trace(target: Target, *, grad: bool) -> TracedProgram:
    """Traces a function, optionally with its backward pass to every differentiable argument."""
    arrays, rebuild = split((target.args, target.kwargs), is_array)
    paths: list[str] = []
    sources: list[int] = []

    @functools.wraps(target.function)
    def function(*args: Any, **kwargs: Any) -> Any:
        results = target.function(*args, **kwargs)
        paths[:] = leaf_paths(results)
        return results

    def run(*values: Any) -> Any:
        args, kwargs = rebuild(values)
        if not grad:
            return jax.tree.leaves(function(*args, **kwargs))
        results, seeds, cotangents = backward_pass(function, args, kwargs, zero_seed)
        sources[:] = [i for i, x in enumerate(results) if is_inexact(x)]
        return results, seeds, cotangents

    jaxpr = jax.make_jaxpr(run)(*arrays)
    named = zip(target.leaf_names(), jax.tree.leaves((target.args, target.kwargs)), strict=True)
    arguments = tuple(name for name, x in named if is_array(x))
    differentiated = tuple(i for i, x in enumerate(arrays) if is_inexact(x)) if grad else ()
    return TracedProgram(jaxpr, arguments, tuple(paths), tuple(sources), differentiated)
