"""The command ``shtypes`` itself: its subcommands, found when they are asked for, and its exit codes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

import click

from shtypes.errors import ShardingTypeError
from shtypes.tools.cli.guard import own_fault
from shtypes.tools.cli.output import FAILED

#: The subcommands, in the order of the help text, and the file of each. Loading one loads no JAX.
COMMANDS: Final = {
    "explain": "shtypes.tools.cli.explain",
    "check": "shtypes.tools.cli.check",
    "memory": "shtypes.tools.cli.memory",
    "compare": "shtypes.tools.cli.compare",
    "reshard": "shtypes.tools.cli.reshard",
    "demo": "shtypes.tools.cli.demo",
}


class _Commands(click.Group):
    """Subcommands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shtypes")
def cli() -> None:
    """Sharding types for JAX: what a program communicates, before anything runs.

    Exit codes: 0 for a success, 1 where a check fails or a program does not type, 2 for a wrong use.
    """


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command; what a user did wrong is said in one message, without a traceback."""
    try:
        cli(args, prog_name="shtypes")
    except ShardingTypeError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(FAILED) from None
    except Exception as error:
        click.echo(f"error: {own_fault(error)}", err=True)
        raise SystemExit(FAILED) from None
