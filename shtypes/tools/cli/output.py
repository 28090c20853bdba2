"""The output of commands: reports as text, JSON or HTML, progress, and errors of user code."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from shtypes.context.user_line import line_of
from shtypes.errors import TRACEBACK, ShardingTypeError, short

if TYPE_CHECKING:
    from rich.console import Console


F = TypeVar("F", bound=Callable[..., Any])

#: The exit code when a check fails or the program does not type.
FAILED: Final = 1

#: The format of an output file, by its suffix.
SUFFIXES: Final = {".txt": "text", ".json": "json", ".html": "html", ".htm": "html"}

#: The same for reports with ``to_svg``.
DRAWN: Final = {**SUFFIXES, ".svg": "svg"}


def output_options(f: F) -> F:
    """Adds ``--format`` and ``--output``; the command gets a format that matches the file's suffix."""
    return _options(f, SUFFIXES)


def drawn_output_options(f: F) -> F:
    """Adds the same for a report that has ``to_svg`` too."""
    return _options(f, DRAWN)


def _options(f: F, suffixes: Mapping[str, str]) -> F:
    @functools.wraps(f)
    def command(*args: Any, fmt: str | None, output: str | None, **kwargs: Any) -> Any:
        return f(*args, fmt=_fitting(fmt, output, suffixes), output=output, **kwargs)

    fmt = click.option(
        "--format",
        "fmt",
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
    return cast(F, fmt(output(command)))


def _fitting(fmt: str | None, output: str | None, suffixes: Mapping[str, str]) -> str:
    """The format, from ``--format`` or the file's suffix."""
    name = Path(output or "").name
    suffix = (Path(name).suffix or (name if name.startswith(".") else "")).lower()
    if not suffix:
        return fmt or "text"
    if suffix not in suffixes:
        raise click.UsageError(f"`{output}` is of no known kind: its name may end in {', '.join(suffixes)}, or in none")
    if fmt not in (None, suffixes[suffix]):
        raise click.UsageError(f"`{output}` is for {suffixes[suffix]}, and --format says {fmt}")
    return suffixes[suffix]


def emit(report: Any, fmt: str, output: str | None = None) -> None:
    """Writes a report to a file or standard output, on a terminal with `rich` where the report supports it.

    ``fmt`` is ``"text"``, ``"json"``, ``"html"``, or ``"svg"``, by ``str``, ``to_json``, ``to_html`` and ``to_svg``.
    """
    if fmt == "text" and output is None and sys.stdout.isatty() and hasattr(report, "__rich__"):
        terminal(highlight=False).print(report)
        return
    if fmt == "json":
        write(report.to_json(indent=2), output)
    else:
        write(str(report) if fmt == "text" else getattr(report, f"to_{fmt}")(), output)


def terminal(**options: Any) -> Console:
    """A `rich` console; imports rich only when needed."""
    from rich.console import Console

    return Console(**options)


def write(text: str, output: str | None = None) -> None:
    """Writes a string to a file or to standard output."""
    if output is None:
        click.echo(text)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text if text.endswith("\n") else f"{text}\n")
    except OSError as error:
        raise click.UsageError(f"`{output}` cannot be written: {error.strerror}") from None
    click.echo(f"wrote {output}", err=True)


#: Called with a description, the number of finished steps, and their total.
Update = Callable[[str, int, int], None]


@contextlib.contextmanager
def working(what: str, console: Any = None, *, bar: bool = False) -> Iterator[Update]:
    """Shows progress and elapsed time on a terminal (standard error by default); elsewhere nothing."""
    if console is None and not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    bars = [BarColumn(bar_width=20)] * bar
    columns = (SpinnerColumn(), TextColumn("{task.description}"), *bars, TimeElapsedColumn())
    with Progress(*columns, console=console or terminal(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total)


_SHOWS_MORE: Final = f"{TRACEBACK}=1 shows the traceback"
#: The maximum length of printed text of the user's code, such as an error message.
_LONGEST: Final = 500


def clipped(name: str) -> str:
    """A target or a part of one, shortened for messages; long enough for a path."""
    return short(name, 300)


class WrongUse(click.UsageError):
    """A usage error in the shape of all messages: exit code 2, without the usage line."""

    def __init__(self, what: str, *, where: str = "", why: str = "", hints: Iterable[str] = ()) -> None:
        super().__init__(str(ShardingTypeError(what, where=where, why=why, hints=hints)))

    @classmethod
    def of(cls, error: ShardingTypeError) -> WrongUse:
        """Converts an error to a usage error."""
        return cls(error.what, where=error.where, why=error.why, hints=(*map(str, error.fixes), *error.hints))

    def show(self, file: IO[Any] | None = None) -> None:
        """Prints the message."""
        click.echo(f"error: {self.message}", file=file or sys.stderr)


@contextlib.contextmanager
def loading(place: str) -> Iterator[None]:
    """Runs the user's module or file ``place``; any exception becomes a usage error."""

    def refused(error: BaseException) -> click.ClickException:
        what, where = f"`{clipped(place)}` cannot be loaded", _line(error)
        if isinstance(error, ShardingTypeError):
            error.what = f"{what}: {error.what}"
            return WrongUse.of(error)
        if isinstance(error, SystemExit):
            why = "a target is loaded to find the function in it, so its module must not end the process"
            hints = ['put what runs the program under `if __name__ == "__main__":`']
            return WrongUse(f"{what}: it exits, by {_described(error)}", where=where, why=why, hints=hints)
        if isinstance(error, ModuleNotFoundError) and error.name:
            why = f"a target is loaded by the Python that runs shtypes: {sys.executable}"
            hints = [f"install `{error.name}` for that Python", "run the shtypes that is installed beside it"]
            return WrongUse(f"{what}: there is no module `{error.name}`", where=where, why=why, hints=hints)
        return WrongUse(f"{what}: {_described(error)}", where=where, hints=[_SHOWS_MORE])

    with _caught(refused):
        yield


@contextlib.contextmanager
def tracing(target: str, *, bar: bool = False) -> Iterator[Update]:
    """Runs the user's function; any exception or `sys.exit` becomes exit code 1."""

    def failed(error: BaseException) -> ShardingTypeError:
        if isinstance(error, ShardingTypeError):
            return for_the_shell(error)
        name = f"`{clipped(target)}`"
        ended = f"{name} ended the process while it was traced: {_described(error)}"
        what = ended if isinstance(error, SystemExit) else f"{name} failed while it was traced: {_described(error)}"
        return ShardingTypeError(what, where=_line(error), hints=[_SHOWS_MORE])

    with _caught(failed), working(f"typing {clipped(target)}", bar=bar) as update:
        yield update


@contextlib.contextmanager
def _caught(as_error: Callable[[BaseException], Exception]) -> Iterator[None]:
    """Converts exceptions of user code, so that none chooses the exit code."""
    try:
        yield
    except (KeyboardInterrupt, WrongUse):
        raise
    except BaseException as error:
        message = as_error(error)
        if message is not error:
            _show(error)
        raise message from None


def internal_error(error: Exception) -> ShardingTypeError:
    """The report of an internal error, a bug of shtypes."""
    _show(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"
    hints = [f"report it, please, with what {TRACEBACK}=1 shows"]
    return ShardingTypeError(
        f"shtypes itself failed: {_described(error)}", where=where, why="this is a bug of shtypes", hints=hints
    )


def _show(error: BaseException) -> None:
    """Prints the traceback if the user enabled that."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)


def _described(error: BaseException) -> str:
    """The class and message of an error; ``str`` of it may run user code."""
    try:
        message = str(error.msg or "") if isinstance(error, SyntaxError) else str(error)
    except BaseException:  # even SystemExit
        message = ""
    return f"{type(error).__name__}: {short(' '.join(message.split()), _LONGEST) or '(no message)'}"


def _line(error: BaseException) -> str:
    """The user's innermost line."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{os.path.basename(str(error.filename))}:{error.lineno}"
    line = line_of(error.__traceback__)
    return "" if line.endswith(" in import_module") else line


def for_the_shell(error: ShardingTypeError) -> ShardingTypeError:
    """Rewrites an error's advice for the command line, in place."""
    hints = [_SCOPE.sub(r"--dims \1", hint) for hint in error.hints]
    error.hints = tuple(hint for hint in hints if not hint.startswith("sh.check"))
    return error


#: The advice to set sizes of dim names in a program.
_SCOPE: Final = re.compile(r"^with sh\.dims\((.*)\): \.\.\.$")
