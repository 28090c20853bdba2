"""What the commands write: reports as text, JSON or HTML, progress while they trace, and what went wrong."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click

from shtypes.errors import ShardingTypeError

F = TypeVar("F", bound=Callable[..., Any])

#: A check failed, or the program does not type.
FAILED: Final = 1
#: The environment variable that asks for tracebacks.
TRACEBACK: Final = "SHTYPES_TRACEBACK"

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="How to print.",
)
output_option = click.option(
    "--output", "-o", type=click.Path(dir_okay=False, writable=True), default=None, help="A file to write to."
)


def output_options(f: F) -> F:
    """The options ``--format`` and ``--output``."""
    return format_option(output_option(f))


def emit(report: Any, form: str, output: str | None = None) -> None:
    """Writes a report.

    Args:
        report: What has ``to_json`` and ``to_html``, and prints; on a terminal with `rich`, where it knows how.
        form: ``"text"``, ``"json"`` or ``"html"``.
        output: A file; the standard output by default.
    """
    if form == "text" and output is None and sys.stdout.isatty() and hasattr(report, "__rich__"):
        from rich.console import Console

        Console(highlight=False).print(report)
        return
    text = str(report) if form == "text" else report.to_html() if form == "html" else report.to_json(indent=2)
    if output is None:
        click.echo(text)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
    except OSError as error:
        raise click.UsageError(f"`{output}` cannot be written: {error.strerror}") from None
    click.echo(f"wrote {output}", err=True)


@contextlib.contextmanager
def working(what: str, console: Any = None) -> Iterator[None]:
    """Shows on a terminal that something is going on, and for how long; elsewhere nothing.

    Args:
        what: What is going on: ``typing loss``.
        console: Where to show it; the standard error by default.
    """
    if console is None and not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console or Console(stderr=True), transient=True) as progress:
        progress.add_task(what, total=None)
        yield


@contextlib.contextmanager
def tracing(target: str) -> Iterator[None]:
    """Runs the user's code: what it raises is one message and exit code 1, without a traceback.

    Args:
        target: What is traced.
    """
    try:
        with working(f"typing {target}"):
            yield
    except (click.ClickException, click.exceptions.Exit, ShardingTypeError, KeyboardInterrupt):
        raise
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        raise ShardingTypeError(
            f"`{target}` failed while it was traced: {type(error).__name__}: {str(error).strip() or '(no message)'}",
            where=_place(error),
            hints=[f"{TRACEBACK}=1 shows the traceback"],
        ) from None


def _place(error: BaseException) -> str:
    """The innermost line of the user's."""
    from shtypes.where import OURS

    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if not f.filename.startswith(OURS)
        and not {"jax", "site-packages"} & set(f.filename.replace("\\", "/").split("/"))
    ]
    last = frames[-1] if frames else None
    return "" if last is None else f"{os.path.basename(last.filename)}:{last.lineno} in {last.name}"


__all__ = ["FAILED", "emit", "format_option", "output_option", "output_options", "tracing", "working"]
