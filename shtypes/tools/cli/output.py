"""What the commands write: reports as text, JSON or HTML, and progress while they trace."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

if TYPE_CHECKING:
    from rich.console import Console

F = TypeVar("F", bound=Callable[..., Any])

#: A check failed, or the program does not type.
FAILED: Final = 1

#: The format of a file, by the end of its name.
SUFFIXES: Final = {".txt": "text", ".json": "json", ".html": "html", ".htm": "html"}

#: The same of what can be drawn.
DRAWN: Final = {**SUFFIXES, ".svg": "svg"}


def output_options(f: F) -> F:
    """The options ``--format`` and ``--output``; the command gets a format that fits the name of the file."""
    return _options(f, SUFFIXES)


def drawn_output_options(f: F) -> F:
    """The same for a report that has ``to_svg`` too."""
    return _options(f, DRAWN)


def _options(f: F, suffixes: Mapping[str, str]) -> F:
    @functools.wraps(f)
    def command(*args: Any, form: str | None, output: str | None, **kwargs: Any) -> Any:
        return f(*args, form=_fitting(form, output, suffixes), output=output, **kwargs)

    form = click.option(
        "--format",
        "form",
        type=click.Choice([*dict.fromkeys(suffixes.values())]),
        default=None,
        help="How to print; by default as the name of the --output says, else text.",
    )
    output = click.option(
        "--output",
        "-o",
        type=click.Path(dir_okay=False, writable=True),
        default=None,
        help=f"A file to write to: {', '.join(suffixes)}.",
    )
    return cast(F, form(output(command)))


def _fitting(form: str | None, output: str | None, suffixes: Mapping[str, str]) -> str:
    """The format that is asked for, by its name or by that of the file."""
    name = Path(output or "").name
    suffix = (Path(name).suffix or (name if name.startswith(".") else "")).lower()
    if not suffix:
        return form or "text"
    if suffix not in suffixes:
        raise click.UsageError(f"`{output}` is of no known kind: its name may end in {', '.join(suffixes)}, or in none")
    if form not in (None, suffixes[suffix]):
        raise click.UsageError(f"`{output}` is for {suffixes[suffix]}, and --format says {form}")
    return suffixes[suffix]


def emit(report: Any, form: str, output: str | None = None) -> None:
    """Writes a report to a file or to the standard output: on a terminal with `rich`, where the report knows how.

    A report prints, and has ``to_json`` and ``to_html``; ``form`` is ``"text"``, ``"json"`` or ``"html"``, and
    ``"svg"`` where it has ``to_svg``.
    """
    if form == "text" and output is None and sys.stdout.isatty() and hasattr(report, "__rich__"):
        terminal(highlight=False).print(report)
        return
    if form == "json":
        write(report.to_json(indent=2), output)
    else:
        write(str(report) if form == "text" else getattr(report, f"to_{form}")(), output)


def terminal(**options: Any) -> Console:
    """A console of `rich`, which is loaded where there is a terminal to print on."""
    from rich.console import Console

    return Console(**options)


def write(text: str, output: str | None = None) -> None:
    """Writes a text to a file, or to the standard output."""
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
    """Shows on a terminal (the standard error, by default) what is going on, and for how long; elsewhere nothing."""
    if console is None and not sys.stderr.isatty():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console or terminal(stderr=True), transient=True) as progress:
        progress.add_task(what, total=None)
        yield
