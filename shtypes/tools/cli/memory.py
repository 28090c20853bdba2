"""``shtypes memory``: what a target needs on each device."""

from __future__ import annotations

from typing import Any

import click

import shtypes as sh
from shtypes.tools.cli.guard import tracing
from shtypes.tools.cli.options import target_options
from shtypes.tools.cli.output import FAILED, emit, output_options
from shtypes.tools.cli.target import program


@click.command("memory")
@target_options
@click.option("--max-bytes", type=click.IntRange(min=0), default=None, help="Fail if a device needs more at the peak.")
@output_options
def command(max_bytes: int | None, form: str, output: str | None, **given: Any) -> None:
    r"""Estimates what a function needs on each device: arguments, results, what the backward pass needs, the peak.

    TARGET and TYPE are as for `shtypes check`; nothing runs, no device is needed, and the mesh may have any size.

    \b
      shtypes memory examples/gated_mlp.py:loss --mesh dp=2,tp=2 --grad
      shtypes memory model.py:step --arguments state --mesh dp=64,tp=8 --max-bytes 80000000000

    Exit codes: 0; 1 where the program does not type or needs more than --max-bytes; 2 for a wrong use.
    """
    one = program(**given)
    with one.scope(), tracing(one.name):
        found = sh.memory(one.function, *one.args, grad=one.grad)
    emit(found, form, output)
    if max_bytes is not None and found.peak > max_bytes:
        click.echo(f"failed: a device needs {found.peak} B, and at most {max_bytes} B is allowed", err=True)
        raise SystemExit(FAILED)
