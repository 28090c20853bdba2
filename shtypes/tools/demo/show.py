"""``shtypes demo``: prints the gated MLP's types, runs and checks it, and compares the policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

import shtypes as sh
from shtypes.analysis.explain.explanation import explain
from shtypes.tools.demo import gated_mlp as model
from shtypes.traced.ledger import ledger
from shtypes.types.tables import rich_table

MESH = {"dp": 2, "tp": 2}
SIZES = {"seq": model.SEQ, "batch": model.BATCH, "hidden": model.HIDDEN, "intermediate": model.INTERMEDIATE}
NAMES = ("x", "w1", "w3", "w2")
TYPES = (model.X, model.W1, model.W3, model.W2)
ARGNUMS = (0, 1, 2, 3)
#: The maximum relative error in float32.
TOLERANCE = 1e-5


class Run:
    """A version of the block under a policy: its listing, its collectives, its errors against one device."""

    def __init__(self, title: str, policy: str, block: Callable[..., Any], loss: Callable[..., Any]) -> None:
        self.title, self.policy = title, policy
        host = host_arrays()
        with sh.policy(policy):
            args = [sh.array(a, t) for a, t in zip(host, TYPES, strict=True)]
            self.listing = explain(block, *args, grad=True)
            step = sh.jit(sh.value_and_grad(loss, argnums=ARGNUMS))
            self.ledger = ledger(step, *args)
            out = sh.jit(block)(*args)
            value, grads = step(*args)
            self.gradient_types = [str(g.type) for g in grads]
            self.pending_bytes = ledger(lambda *pending: [_summed(g) for g in pending], *grads).bytes
        self.errors = _errors([out, value, *grads], _reference(*host))

    @property
    def correct(self) -> bool:
        """Whether every output and gradient equals that of one device."""
        return max(self.errors.values()) < TOLERANCE


def host_arrays() -> list[np.ndarray[Any, Any]]:
    """The operands on the host, equal on each call."""
    rng = np.random.default_rng(0)
    s, b, h, i = (SIZES[name] for name in ("seq", "batch", "hidden", "intermediate"))
    shapes = ((s, b, h), (h, i), (h, i), (i, h))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def _reference(*host: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """The output, loss and gradients on one device, in plain JAX."""

    def block(x: Any, w1: Any, w3: Any, w2: Any) -> Any:
        return (jax.nn.silu(x @ w1) * (x @ w3)) @ w2

    def total(*args: Any) -> Any:
        return block(*args).sum()

    device = jax.devices()[0]
    alone = jax.sharding.Mesh(np.array([device]), ("one",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(alone):
        args = [jax.device_put(jnp.asarray(a), device) for a in host]
        value, grads = jax.jit(jax.value_and_grad(total, argnums=ARGNUMS))(*args)
        return [np.asarray(a) for a in (jax.jit(block)(*args), value, *grads)]


def _errors(values: list[Any], expected: list[np.ndarray[Any, Any]]) -> dict[str, float]:
    """The largest error of each output and gradient, relative to its largest element."""
    names = ("out", "loss", *(f"g_{name}" for name in NAMES))
    errors = {}
    for name, value, reference in zip(names, values, expected, strict=True):
        array = np.asarray(_summed(value))
        errors[name] = float(np.abs(array - reference).max() / np.abs(reference).max())
    return errors


def _summed(value: Any) -> Any:
    """The value, all-reduced if it is a pending sum."""
    return sh.all_reduce(value) if value.type.axes(sh.State.UNREDUCED) else value


def runs() -> list[Run]:
    """The versions in the demo: the same code under both policies, and with the post's casts."""
    return [
        Run("partial", "partial", model.mlp, model.loss),
        Run("jax", "jax", model.mlp, model.loss),
        Run("jax, with casts", "jax", model.mlp_with_casts, model.loss_with_casts),
    ]


def show(console: Console) -> bool:
    """Prints the demo; returns whether every value was correct."""
    with sh.use_mesh(sh.make_mesh(MESH)):
        all_runs = runs()
        partial, jax_run, casts = all_runs
        _heading(console, f"A gated MLP on the mesh {', '.join(f'{a}={n}' for a, n in MESH.items())}")
        _plain(console, ", ".join(f"{name}={n}" for name, n in SIZES.items()) + "; the model: examples/gated_mlp.py")
        _section(console, 'Policy "partial": replicate forwards, partial backwards. No annotation in the model.')
        _plain(console, _listing(partial))
        _section(console, 'Policy "jax": JAX\'s own, with the casts that the post writes by hand.')
        _plain(console, _listing(casts))
        _section(console, "Values and gradients against one device: the largest relative error")
        console.print(_error_table(all_runs))
        _section(
            console, "The same model under both policies: bytes that each device sends for the loss and all gradients"
        )
        console.print(_ledger_table([partial, jax_run]))
        _plain(console, _conclusion(partial, jax_run))
    return all(run.correct for run in all_runs)


def _listing(run: Run) -> str:
    return run.listing.text(source=False, totals=False).partition("\n\n")[2]


def _heading(console: Console, title: str) -> None:
    console.print(title, style="bold", highlight=False)


def _section(console: Console, title: str) -> None:
    console.print()
    _heading(console, title)
    console.print()


def _plain(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _error_table(all_runs: list[Run]) -> Any:
    titles = [run.title for run in all_runs]
    rows = [(name, *(f"{run.errors[name]:.1e}" for run in all_runs)) for name in all_runs[0].errors]
    return rich_table(["", *titles], rows, titles)


def _ledger_table(all_runs: list[Run]) -> Any:
    """A row for each collective under any policy, in program order."""
    policies = [run.policy for run in all_runs]
    rows: dict[tuple[str, str, str], dict[str, int]] = {}
    for run in all_runs:
        for entry in run.ledger:
            row = rows.setdefault((str(entry.place), entry.direction, f"{entry.kind} over {', '.join(entry.axes)}"), {})
            row[run.policy] = row.get(run.policy, 0) + entry.bytes
    cells = [(*key, *(str(sent.get(policy, "-")) for policy in policies)) for key, sent in rows.items()]
    table = rich_table(["line", "direction", "collective", *policies], cells, policies)
    for direction in ("forward", "backward"):
        parts = [getattr(run.ledger, direction)() for run in all_runs]
        table.add_row("total", direction, "", *(f"{part.bytes}" for part in parts), style="bold")
    return table


def _conclusion(partial: Run, jax_run: Run) -> str:
    over_dp = [len(run.ledger.select(lambda entry: "dp" in entry.axes)) for run in (partial, jax_run)]
    pending = ", ".join(f"g_{name}: {t}" for name, t in zip(NAMES, partial.gradient_types, strict=True))
    return (
        f'\nUnder "partial" {over_dp[0]} collectives run over dp, under "jax" {over_dp[1]} in every backward pass.\n'
        f"The gradients stay pending sums,\n  {pending},\n"
        f"which all_reduce takes once, {partial.pending_bytes} bytes per device, where the program says: "
        "after the last of any number of microbatches."
    )
