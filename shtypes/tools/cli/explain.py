"""``shtypes explain``: the typed listing of a target."""

from __future__ import annotations

from typing import Any

import click

from shtypes.tools.cli.guard import tracing
from shtypes.tools.cli.options import target_options
from shtypes.tools.cli.output import emit, output_options
from shtypes.tools.cli.target import program


@click.command("explain")
@target_options
@output_options
@click.option(
    "--fold/--no-fold",
    default=True,
    help="Show once what is repeated, such as unrolled layers, and how often; JSON has all of it.  [default: fold]",
)
@click.option("--plot", type=click.Path(dir_okay=False), help="Also plot the bytes by axes and direction, to a file.")
def command(form: str, output: str | None, fold: bool, plot: str | None, **given: Any) -> None:
    r"""Lists a function with the type of every value, and with --grad of every cotangent under the line that causes it.

    TARGET and TYPE are as for `shtypes check`; nothing runs, and no device is needed.

    \b
      shtypes explain examples/gated_mlp.py:loss --mesh dp=2,tp=2 --grad
      shtypes explain model.py:loss "f32[8@dp, 16]" "f32[16, 32@tp]" --mesh dp=4,tp=2 -o loss.html
    """
    one = program(**given)
    with one.scope(), tracing(one.name):
        from shtypes.analysis.explain.explanation import explain

        found = explain(one.function, *one.args, grad=one.grad, fold=fold)
    if plot is not None:
        try:
            found.plot(plot)
        except (ImportError, OSError, ValueError) as error:
            raise click.UsageError(str(error)) from None
    emit(found, form, output)
