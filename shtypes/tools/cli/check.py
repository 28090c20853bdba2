"""``shtypes check``: the types and communication of a target, or of all targets that a repository pins."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shtypes.errors import ShardingTypeError, how_many
from shtypes.tools.cli.config import Config, TargetConfig, config
from shtypes.tools.cli.options import target_options
from shtypes.tools.cli.output import FAILED, WrongUse, emit, output_options, tracing, write
from shtypes.tools.cli.target import LoadedTarget, load_target
from shtypes.types.tables import Report, Table, rich_group, rich_text

if TYPE_CHECKING:
    from rich.console import Group

    from shtypes.traced.ledger import Ledger


@click.command("check")
@functools.partial(target_options, required=False)
@click.option("--update", is_flag=True, help="Write what the configured targets communicate to the file.")
@click.option(
    "--no-comm",
    type=click.Choice(["both", "forward", "backward"]),
    default=None,
    help="Fail if anything communicates in that direction, or at all.",
)
@click.option("--max-bytes", type=click.IntRange(min=0), default=None, help="Fail if each device sends more in all.")
@output_options
def command(
    target: str | None,
    types: tuple[str, ...],
    update: bool,
    no_comm: str | None,
    max_bytes: int | None,
    fmt: str,
    output: str | None,
    **given_options: Any,
) -> None:
    """Types a function and lists its communication; nothing runs, and no device is needed.

    TARGET is module:function or path/to/file.py:function, and TYPE the type of each argument, such as "f32[8@dp, 16]";
    by default those of the annotations. Without TARGET, every target in [tool.shtypes] of pyproject.toml is compared
    with the file that pins the repository's communication, which --update writes; so is a TARGET of that table, unless
    other options ask something about it.

    Exit codes: 0; 1 where a program does not type, communicates what it must not, or not what the file says; 2 for a
    wrong use.
    """
    settings = config()
    configured = None if target is None else settings.named(target)
    options = types or any(given_options.values()) or no_comm or max_bytes is not None or fmt == "html"
    if target is None and options:
        raise click.UsageError(
            "types, --mesh and the like, --no-comm, --max-bytes and --format html are for one TARGET; what all targets "
            "of pyproject.toml have is said there"
        )
    if target is None or (configured is not None and not options):
        if update and output:
            raise click.UsageError("--update writes the file of the repository, and no --output")
        raise SystemExit(_check_pinned(settings, configured, update=update, fmt=fmt, output=output))
    if update and configured is not None:
        raise click.UsageError(f"--update pins `{target}` as pyproject.toml has it: leave out the other options")
    if update:
        raise click.UsageError(
            f"--update is for targets of [tool.shtypes] in pyproject.toml; `{target}` is none of them"
        )
    raise SystemExit(_check_one(load_target(target, types, **given_options), no_comm, max_bytes, fmt, output))


# one target


@dataclasses.dataclass
class _Checked(Report):
    """A signature with its ledger and its failed checks."""

    target: str
    mesh: str
    signature: Any
    failures: list[str]

    def __str__(self) -> str:
        return "\n".join(
            [str(self.signature), "", str(self.signature.ledger), *(f"failed: {f}" for f in self.failures)]
        )

    def __rich__(self) -> Group:
        return rich_group(rich_text(str(self)))

    @property
    def title(self) -> str:
        """The heading of its page."""
        return f"{self.target} on {self.mesh}"

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON, as described in the docs (command line)."""
        return {
            "schema": 1,
            "target": self.target,
            "mesh": self.mesh,
            "ok": not self.failures,
            "failures": self.failures,
            "signature": self.signature.to_dict(),
            "ledger": self.signature.ledger.to_dict(),
        }

    def tables(self) -> list[Table]:
        """Tables of the types, the communication and the failures."""
        (types,), (sent,) = self.signature.tables(), self.signature.ledger.tables()
        lines = zip(sent.rows, self.signature.ledger, strict=True)
        rows = tuple((*row, entry.place.text) for row, entry in lines)
        tables = [
            dataclasses.replace(types, title="Types"),
            dataclasses.replace(sent, title="Communication", headings=(*sent.headings, "source"), rows=rows),
            Table("Failed", ("why",), tuple((f,) for f in self.failures)),
        ]
        return [t for t in tables if t.rows or t.note]


def _check_one(loaded: LoadedTarget, no_comm: str | None, max_bytes: int | None, fmt: str, output: str | None) -> int:
    from shtypes.analysis.check import signature_of

    with loaded.scope():
        with tracing(loaded.name):
            signature = signature_of(loaded.target, grad=loaded.grad)
            failures = list(_failures(signature.ledger, no_comm, max_bytes))
        emit(_Checked(loaded.name, str(loaded.mesh), signature, failures), fmt, output)
    return FAILED if failures else 0


def _failures(ledger: Ledger, no_comm: str | None, max_bytes: int | None) -> Iterator[str]:
    """Forbidden communication of a program, in words."""
    for direction in ("forward", "backward") if no_comm == "both" else filter(None, [no_comm]):
        part = getattr(ledger, direction)()
        if part.launches:
            yield f"{how_many(part.launches, 'collective')} in the {direction} pass, {part.bytes} B/device"
    if no_comm and ledger.not_covered:
        yield f"{len(ledger.not_covered)} operations are not covered"
    if max_bytes is not None and (ledger.bytes > max_bytes or not ledger.known):
        more = "" if ledger.known else ", or more"
        yield f"each device sends {ledger.bytes} B{more}, and at most {max_bytes} B is allowed"


# the pinned file of a repository


def _check_pinned(settings: Config, only: TargetConfig | None, *, update: bool, fmt: str, output: str | None) -> int:
    from shtypes.analysis import golden

    if not settings.targets:
        raise click.UsageError(
            "there is nothing to check: give a TARGET, or list `targets` in [tool.shtypes] of pyproject.toml"
        )
    path = settings.root / settings.golden
    pinned = golden.read(path)
    targets = settings.targets if only is None else (only,)
    records: dict[str, golden.Pinned] = {}
    broken: dict[str, str] = {}
    for target in targets:
        try:
            records[target.name] = _record(settings, target)
        except ShardingTypeError as error:
            broken[target.name] = str(error)
        except click.UsageError as error:
            raise WrongUse(f"target `{target.name}`: {error.message}") from None
    if update and not broken:
        names = {t.name for t in settings.targets}
        changed = golden.write(path, {**{k: r for k, r in pinned.items() if only and k in names}, **records})
        click.echo(f"{settings.golden}: {how_many(len(records), 'target')}, {'written' if changed else 'as it was'}")
        return 0
    stale = [] if only else [name for name in pinned if name not in records and name not in broken]
    lines = {name: golden.differences(name, pinned.get(name), records.get(name)) for name in (*records, *stale)}
    problems = {name: text for name, text in lines.items() if text}
    if fmt == "json":
        text = json.dumps(
            {"schema": 1, "ok": not (problems or broken), "differences": problems, "errors": broken}, indent=2
        )
    else:
        text = _differing(settings, broken, problems, len(records) + len(broken) + len(stale))
    write(text, output)
    return FAILED if problems or broken else 0


def _differing(settings: Config, broken: dict[str, str], problems: dict[str, list[str]], count: int) -> str:
    """The differences from the file, target by target, and advice."""
    parts = [f"{name}: does not type\n{textwrap.indent(message, '  ')}\n" for name, message in broken.items()]
    parts += ["\n".join(lines) + "\n" for lines in problems.values()]
    failed = len(problems) + len(broken)
    advice = "" if broken else "; if that is meant, run: shtypes check --update"
    passed = f"{how_many(count, 'target')}: communication as in {settings.golden}"
    return "\n".join([*parts, f"{failed} of {how_many(count, 'target')} failed{advice}" if failed else passed])


def _record(settings: Config, target: TargetConfig) -> dict[str, Any]:
    from shtypes.analysis import golden
    from shtypes.analysis.check import signature_of

    if target.mesh is None:
        raise click.UsageError(f"`{target.name}` has no mesh: add one to [tool.shtypes]")
    loaded = load_target(
        target.target,
        target.types,
        mesh=target.mesh,
        policy_name=target.policy,
        dims=target.dims,
        grad=target.grad,
        lift=target.lift,
        root=settings.root,
        maker=target.arguments,
    )
    with loaded.scope(), tracing(target.name):
        ledger = signature_of(loaded.target, grad=loaded.grad).ledger
        return golden.record(
            ledger,
            Path(settings.root),
            mesh=str(target.mesh),
            policy=loaded.policy,
            dims=dict(target.dims),
            types=list(target.types),
            arguments=target.arguments,
            grad=target.grad,
        )
