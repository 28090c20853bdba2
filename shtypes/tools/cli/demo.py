"""``shtypes demo``."""

from __future__ import annotations

import sys

import click

from shtypes.tools.cli.output import terminal


@click.command("demo")
@click.option("--width", type=int, default=None, help="Columns to print in; by default those of the terminal.")
def command(width: int | None) -> None:
    """Type, run and differentiate a gated MLP, and show what it communicates under both policies.

    Needs nothing but CPU devices: a mesh of two by two of them is made. Exits with 1 if a value is wrong.
    """
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_platforms", "cpu")
    from shtypes.tools.demo.show import show

    if not show(terminal(width=width or (None if sys.stdout.isatty() else 140), highlight=False)):
        raise SystemExit(1)
