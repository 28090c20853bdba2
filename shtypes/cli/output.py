"""What the commands write: reports as text, JSON or HTML, and progress while they trace."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

#: A check failed, or the program does not type.
FAILED: Final = 1

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


__all__ = ["FAILED", "emit", "format_option", "output_option", "output_options", "working"]
