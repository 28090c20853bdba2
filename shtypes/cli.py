"""The command ``shtypes``."""

from __future__ import annotations

import sys

import click

from shtypes.errors import ShardingTypeError


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shtypes")
def cli() -> None:
    """Sharding types for JAX."""


@cli.command()
@click.option("--width", type=int, default=None, help="Columns to print in; by default those of the terminal.")
def demo(width: int | None) -> None:
    """Type, run and differentiate a gated MLP, and show what it communicates under both policies.

    Needs nothing but CPU devices: a mesh of two by two of them is made. Exits with 1 if a value is wrong.
    """
    import jax
    from rich.console import Console

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_platforms", "cpu")
    from shtypes.demo.show import show

    if not show(Console(width=width or (None if sys.stdout.isatty() else 140), highlight=False)):
        raise SystemExit(1)


def main() -> None:
    """Runs the command; what a user did wrong is said in one message, without a traceback."""
    try:
        cli()
    except ShardingTypeError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
