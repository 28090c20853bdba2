"""The command ``shtypes``: its subcommands and exit codes. JAX is imported only when a command needs it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

import shtypes as sh
from shtypes.analysis.explain_reshard import Resharding
from shtypes.errors import ShardingTypeError
from shtypes.resharding.devices import DEVICES
from shtypes.resharding.transport import CommArguments
from shtypes.solver.progress import Progress, watching
from shtypes.tools.cli import check
from shtypes.tools.cli.config import config
from shtypes.tools.cli.options import (
    dims_option,
    lift_option,
    link_option,
    mesh_option,
    policy_option,
    read_links,
    target_arguments,
    target_options,
)
from shtypes.tools.cli.output import (
    FAILED,
    Update,
    clipped,
    drawn_output_options,
    emit,
    for_the_shell,
    internal_error,
    output_options,
    terminal,
    tracing,
    write,
)
from shtypes.tools.cli.target import load_target
from shtypes.types import ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import policy
from shtypes.types.target import parse

T = TypeVar("T")


class _InOrder(click.Group):
    """A group that lists its subcommands in the order in which they were added."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        if cmd.help is not None:
            cmd.help = cmd.help.replace(r"\b", "\b")  # click's mark of lines that are not filled, in a raw docstring
        super().add_command(cmd, name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shtypes")
def cli() -> None:
    """Sharding types for JAX: what a program communicates, before anything runs.

    Exit codes: 0 for a success, 1 where a check fails or a program does not type, 2 for a wrong use.
    """


@cli.command()
@target_options
@output_options
@click.option(
    "--fold/--no-fold",
    default=True,
    help="Show once what is repeated, such as unrolled layers, and how often; JSON has all of it.  [default: fold]",
)
@click.option("--plot", type=click.Path(dir_okay=False), help="Also plot the bytes by axes and direction, to a file.")
def explain(fmt: str, output: str | None, fold: bool, plot: str | None, **options: Any) -> None:
    r"""Lists a function with the type of every value, and with --grad of every cotangent under the line that causes it.

    TARGET and TYPE are as for `shtypes check`; nothing runs, and no device is needed.

    \b
      shtypes explain examples/gated_mlp.py:loss --mesh dp=2,tp=2 --grad
      shtypes explain model.py:loss "f32[8@dp, 16]" "f32[16, 32@tp]" --mesh dp=4,tp=2 -o loss.html
    """
    loaded = load_target(**options)
    with loaded.scope(), tracing(loaded.name):
        listing = sh.explain(loaded.function, *loaded.args, grad=loaded.grad, fold=fold)
    if plot is not None:
        try:
            listing.plot(plot)
        except (ImportError, OSError, ValueError) as error:
            raise click.UsageError(str(error)) from None
    emit(listing, fmt, output)


cli.add_command(check.command)


@cli.command()
@target_options
@click.option("--max-bytes", type=click.IntRange(min=0), default=None, help="Fail if a device needs more at the peak.")
@output_options
def memory(max_bytes: int | None, fmt: str, output: str | None, **options: Any) -> None:
    r"""Estimates what a function needs on each device: arguments, results, what the backward pass needs, the peak.

    TARGET and TYPE are as for `shtypes check`; nothing runs, no device is needed, and the mesh may have any size.

    \b
      shtypes memory examples/gated_mlp.py:loss --mesh dp=2,tp=2 --grad
      shtypes memory model.py:step --arguments state --mesh dp=64,tp=8 --max-bytes 80000000000

    Exit codes: 0; 1 where the program does not type or needs more than --max-bytes; 2 for a wrong use.
    """
    loaded = load_target(**options)
    with loaded.scope(), tracing(loaded.name):
        report = sh.memory(loaded.function, *loaded.args, grad=loaded.grad)
    emit(report, fmt, output)
    if max_bytes is not None and report.peak > max_bytes:
        click.echo(f"failed: a device needs {report.peak} B, and at most {max_bytes} B is allowed", err=True)
        raise SystemExit(FAILED)


@cli.command()
@target_options
@click.option(
    "--device", metavar="DEVICE", help=f"Predict times: one of {', '.join(DEVICES)}, or a .toml file (docs: compute)."
)
@output_options
def compute(device: str | None, fmt: str, output: str | None, **options: Any) -> None:
    r"""The work of one device: operations of products and of all else, and bytes through its memory.

    TARGET and TYPE are as for `shtypes check`; nothing runs, no device is needed, and the mesh may have any size.

    \b
      shtypes compute examples/gated_mlp.py:loss --mesh dp=2,tp=2 --grad --device h100-sxm
    """
    loaded = load_target(**options)
    with loaded.scope(), tracing(loaded.name):
        report = sh.compute(loaded.function, *loaded.args, grad=loaded.grad, device=device)
    emit(report, fmt, output)


def _types_by_path(ctx: click.Context, param: click.Parameter, texts: Sequence[str]) -> dict[str, str]:
    """Parses the values of an option such as ``--fixed path=type``."""
    wrong = next((text for text in texts if "=" not in text), None)
    if wrong is not None:
        raise click.BadParameter(f"`{wrong}` is not PATH=TYPE, such as 'layers/*/up=[_, _@tp]'")
    return dict(text.split("=", 1) for text in texts)


def _by_path(option: str, text: str, *parameter: str) -> Callable[[Any], Any]:
    return click.option(option, *parameter, multiple=True, metavar="PATH=TYPE", callback=_types_by_path, help=text)


#: The options that are passed to `sh.suggest` unchanged.
_SEARCH_OPTIONS: Final = (
    "memory",
    "fixed",
    "inputs",
    "compute",
    "state",
    "checkpoint",
    "overlap",
    "time_limit",
    "seed",
)


@cli.command()
@target_arguments
@mesh_option
@policy_option
@dims_option
@lift_option
@click.option("--memory", metavar="SIZE", help="The memory of a device, such as 80GiB; unlimited by default.")
@_by_path("--fixed", "The type of the arguments with a path: 'layers/*/up=[_, _@tp]'.")
@_by_path("--input", "The same, for arguments that arrive in this type, such as data.", "inputs")
@link_option
@click.option(
    "--device",
    "compute",
    default="h100-sxm",
    metavar="DEVICE",
    help="The device model, as for compute.",
)
@click.option("--state", default=2.0, help="Bytes of optimizer state for each byte of a parameter.", show_default=True)
@click.option("--no-grad", is_flag=True, help="Only the forward pass; else the first argument is differentiated.")
@click.option(
    "--checkpoint", is_flag=True, help="The bodies of scans may be checkpointed, too, if that fits or is quicker."
)
@click.option(
    "--overlap",
    default=0.0,
    metavar="PART",
    help="The part of the shorter of computing and communication that hides behind the other.",
    show_default=True,
)
@click.option(
    "--time-limit",
    type=float,
    metavar="SECONDS",
    help="Print the best plan after so long, optimal or not.",
)
@click.option("--seed", default=0, help="Seeds the order of axes of the search.", show_default=True)
@click.option("--html", type=click.Path(dir_okay=False), help="Also a page of all plans of the front, to a file.")
@click.option("--patch", is_flag=True, help="Write the first plan into the source, and print the diff.")
@click.option("--dry-run", is_flag=True, help="With --patch: only print the diff.")
@_by_path("--why-not", "What it would cost if the arguments with a path had a type, and what would differ.")
@output_options
def suggest(
    links: tuple[str, ...],
    no_grad: bool,
    html: str | None,
    patch: bool,
    dry_run: bool,
    why_not: dict[str, str],
    fmt: str,
    output: str | None,
    **options: Any,
) -> None:
    r"""Finds the types of a plain JAX function's arguments, and the reshards in it, by which a step takes least time.

    TARGET is a plain function, and TYPE the shapes of its arguments; those with axes are fixed. JSON has the decisions,
    which `sh.apply` takes.

    \b
      shtypes suggest model.py:loss --lift --arguments shapes --mesh dp=16,tp=16 --memory 80GiB
      shtypes suggest model.py:loss "f32[256, 1024]" "f32[4096, 256]" --mesh dp=8 --output loss.json
      shtypes suggest model.py:loss --arguments shapes --mesh dp=16,tp=16 --patch --dry-run
    """
    if dry_run and not patch:
        raise click.UsageError("--dry-run is for --patch")
    if why_not and (patch or html is not None or fmt != "text"):
        raise click.UsageError(
            "--why-not prints what differs from the first plan, as text: leave out --patch, --html and JSON"
        )
    search = {name: options.pop(name) for name in _SEARCH_OPTIONS}
    loaded = load_target(**options)
    model = read_links(links) or "h100-nvlink"
    with loaded.scope(), tracing(loaded.name, bar=True) as update, watching(_shown(loaded.name, update)):
        plans = sh.suggest(loaded.function, *loaded.args, grad=not no_grad, links=model, **search)
        if why_not:
            write(plans[0].diff(plans.why_not(why_not)), output)
            return
        written = _patched(loaded.function, plans[0], dry_run=dry_run) if patch else None
    if written is None or output is not None:
        emit(plans, fmt, output)
    if html is not None:
        write(plans.to_html(), html)
    if written is not None:
        click.echo(written.diff, nl=False)
        if written.note:
            click.echo(written.note, err=True)
        if not dry_run:
            for file in written.files:
                click.echo(f"wrote {file.path}", err=True)


def _patched(f: Callable[..., Any], plan: Any, *, dry_run: bool) -> Any:
    """Inserts a plan into the source file of a function, and writes the file unless it is a dry run."""
    from shtypes.tools.patch import patched

    patch = patched(f, plan)
    if not dry_run:
        patch.write()
    return patch


def _shown(name: str, update: Update) -> Callable[[Progress], None]:
    """A callback that shows the progress of the search."""

    def show(now: Progress) -> None:
        best = "" if now.best is None else f", best {1e3 * now.best:.4g} ms"
        settled = f"{now.settled} of {now.pairs} pairs of axes settled" if now.pairs > 1 else f"minimum {now.minima}"
        update(f"solving {clipped(name)}: {settled}{best}", now.settled, now.pairs)

    return show


@cli.command()
@target_arguments
@mesh_option
@dims_option
@lift_option
@click.option("--no-grad", is_flag=True, help="Only the forward pass.")
@link_option
@output_options
def compare(no_grad: bool, links: tuple[str, ...], fmt: str, output: str | None, **options: Any) -> None:
    """Types one function under the policies "jax" and "partial", and shows what differs.

    The backward pass is in it, unless --no-grad is given or the function takes gradients itself. TARGET and TYPE are as
    for `shtypes check`; a type means, under each policy, what its text means there.
    """
    model = read_links(links)
    loaded = load_target(**options)
    with tracing(loaded.name), loaded.scope():
        comparison = sh.compare(loaded.function, *loaded.args, grad=not no_grad, model=model)
    emit(comparison, fmt, output)


@cli.command()
@click.argument("source", metavar="FROM")
@click.argument("goal", metavar="TO")
@mesh_option
@policy_option
@dims_option
@link_option
@click.option("--comm-dtype", metavar="DTYPE", help="A narrower float to send the value in: bf16.")
@click.option("--ct-comm-dtype", metavar="DTYPE", help="A narrower float to send its cotangent in.")
@click.option("--narrow-sums", is_flag=True, help="Sums may be added in the narrower dtype, too.")
@drawn_output_options
def reshard(
    source: str,
    goal: str,
    mesh: Mesh | None,
    policy_name: str | None,
    dims: dict[str, int],
    links: tuple[str, ...],
    fmt: str,
    output: str | None,
    **dtypes: Any,
) -> None:
    """The cheapest plan from one type to another: its steps in words, bytes, time and memory, and who holds what.

    Also the plan of the backward pass. FROM is a type such as "f32[8@dp, 16]"; TO may leave out what stays:
    "[8, 16@dp]", "[_, _@dp]", "{U:tp}". An SVG has pictures of what each device holds before, between and after.
    """
    settings = config()
    mesh = mesh or settings.mesh
    if mesh is None:
        raise click.UsageError("no mesh is given: say --mesh dp=2,tp=4")
    chosen = policy_name or settings.policy
    with policy(chosen) if chosen else contextlib.nullcontext():
        sizes = {**settings.dims, **dims}
        src: ShType = _read("FROM", parse, source, mesh=mesh, dims=sizes)
        dst: ShType = _read("TO", parse, goal, like=src, dims=sizes)
        transport = _read("--comm-dtype", CommArguments(**dtypes).transport, "reshard", src, dst)
        emit(Resharding(src, dst, read_links(links), transport), fmt, output)


def _read(name: str, read: Callable[..., T], *args: Any, **options: Any) -> T:
    try:
        return read(*args, **options)
    except ShardingTypeError as error:
        raise click.BadParameter(str(for_the_shell(error)), param_hint=name) from None


@cli.command()
@click.option("--width", type=int, default=None, help="Columns to print in; by default those of the terminal.")
def demo(width: int | None) -> None:
    """Type, run and differentiate a gated MLP, and show what it communicates under both policies.

    Needs nothing but CPU devices: a mesh of two by two of them is made. Exits with 1 if a value is wrong.
    """
    import jax

    jax.config.update("jax_num_cpu_devices", 4)
    jax.config.update("jax_platforms", "cpu")
    from shtypes.tools.demo.show import show

    if not show(terminal(width=width or (None if sys.stdout.isatty() else 140), highlight=False)):
        raise SystemExit(FAILED)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command; a user's mistake prints one message without a traceback."""
    try:
        cli(args, prog_name="shtypes")
    except ShardingTypeError as error:
        click.echo(f"error: {error}", err=True)
        raise SystemExit(FAILED) from None
    except Exception as error:
        click.echo(f"error: {internal_error(error)}", err=True)
        raise SystemExit(FAILED) from None
