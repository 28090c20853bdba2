"""Trains, evaluates and samples from a language model of Python's sources, in any layout.

python -m examples.transformer train --layout dp_tp_sp --folder /tmp/run
python -m examples.transformer sample --folder /tmp/run --prompt "def "
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import re
import tomllib
import typing
from collections.abc import Callable, Iterator
from typing import Any

import click
import jax
import numpy as np
import rich.console
import rich.progress
import rich.table

import shtypes as sh
from examples.transformer import curve, generate, layouts, model, training

_SIZES = {field.name for field in dataclasses.fields(model.Sizes)} - {"vocab", "gather_again"}
_PLAIN = {field.name for field in dataclasses.fields(training.Run)} - {"layout", "sizes"}
#: What a run goes on with as it began, unless something else is said.
_FIRST = {"layout": "dp", "file": None, "policy": "partial"}
_file = click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="Layouts of your own; by default those of layouts.toml.",
)
_joined = click.option("--joined", is_flag=True, help="Be one of several processes, as jax.distributed finds them.")


def _run(command: Any) -> Any:
    """Options that say which run, and where it goes on."""
    policy = click.Choice(["partial", "jax"])
    command = click.option("--policy", type=policy, help="By default the one trained under, else partial.")(command)
    command = click.option("--layout", help="A name of the file; by default the one trained in, else dp.")(command)
    folder = click.Path(path_type=pathlib.Path)
    return click.option("--folder", type=folder, required=True, help="Where the run is.")(_file(command))


@click.group(help=__doc__.splitlines()[0] if __doc__ else None)
def main() -> None:
    """The commands."""


def _options(of: type, only: set[str] | None = None) -> Callable[[Any], Any]:
    """An option for each plain field of a dataclass, with its default and what its docstring says of it."""
    hints, lines = typing.get_type_hints(of), " ".join((of.__doc__ or "").split())

    def decorate(command: Any) -> Any:
        for f in reversed(dataclasses.fields(of)):
            if isinstance(f.default, (int, float, str)) and (only is None or f.name in only):
                choices = typing.get_args(hints[f.name])
                said = re.search(rf"\b{f.name}: (.+?\.)(?= |$)", lines)
                text = said[1].replace("`", "") if said else None
                kind = click.Choice(choices) if choices else type(f.default)
                name = f"--{f.name.replace('_', '-')}"
                command = click.option(name, type=kind, default=f.default, show_default=True, help=text)(command)
        return command

    return decorate


@contextlib.contextmanager
def _opened(
    folder: pathlib.Path, joined: bool = False, given: dict[str, Any] | None = None, **chosen: Any
) -> Iterator[Any]:
    """A run in its mesh: the one in a folder, or a new one of what is given."""
    if joined:
        jax.distributed.initialize()
    file = folder / "run.json"
    if file.exists():
        found = json.loads(file.read_text())
        for name, value in (given or {}).items():
            if _is_said(name) and value != found.get(name):
                raise click.ClickException(f"the run in {folder} has {name} {found.get(name)}, not {value}")
    elif given is None:
        raise click.ClickException(f"there is no run in {folder}")
    else:
        found = given
    where = {key: chosen[key] or found.get(key, first) for key, first in _FIRST.items()}
    try:
        known = layouts.read(pathlib.Path(where["file"] or layouts.FILE))
    except (sh.ShardingTypeError, tomllib.TOMLDecodeError, OSError) as error:
        raise click.ClickException(f"{where['file']}: {error}") from None
    layout = known.get(where["layout"])
    if layout is None:
        raise click.BadParameter(f"{where['layout']!r} is not one of {', '.join(known)}", param_hint="--layout")
    if layout.devices > len(jax.devices()):
        raise click.ClickException(f"{layout.name} needs {layout.devices} devices, and there are {len(jax.devices())}")
    try:
        run = training.Run(layout, model.Sizes(**_among(found, _SIZES)), **_among(found, _PLAIN))
    except sh.ShardingTypeError as error:
        raise click.ClickException(str(error)) from None
    if jax.process_index() == 0 and not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")  # whole or not at all, for who is killed and for other processes
        part.write_text(json.dumps({**found, **where}, indent=1))
        part.rename(file)
    with sh.policy(where["policy"]), layout.use():
        yield run


def _is_said(name: str) -> bool:
    """Whether the command line has an option."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _among(found: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name in names}


def _trained(run: training.Run, folder: pathlib.Path) -> tuple[int, Any]:
    """The steps done, and the weights, of the last checkpoint."""
    done, weights, _ = training.restored(run, folder)
    if not done:
        raise click.ClickException(f"the run in {folder} has no checkpoint yet")
    return done, weights


@main.command()
@_run
@_joined
@click.option("--capacity", type=float, help="Places of experts for each choice; by default no token is left out.")
@click.option("--group", type=int, help="How many positions share these places; by default those of a sequence.")
@_options(training.Run)
@_options(model.Sizes, _SIZES)
def train(
    folder: pathlib.Path, layout: str | None, file: str | None, policy: str | None, joined: bool, **given: Any
) -> None:
    """Train, or go on training: the run in a folder goes on from its last checkpoint, in any layout."""
    console = rich.console.Console()
    with _opened(folder, joined, given, layout=layout, file=file, policy=policy) as run:
        sent = sh.ledger(sh.jit(training.step(run)), *training.abstract(run)).bytes
        shown = rich.progress.Progress(
            rich.progress.TextColumn("step {task.completed}/{task.total}"),
            rich.progress.BarColumn(),
            rich.progress.TextColumn("loss {task.fields[loss]:.3f}"),
            rich.progress.TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            rich.progress.TextColumn(f"{sent / 1e6:,.2f} MB sent/step and device"),
            rich.progress.TimeRemainingColumn(),
            console=console,
            disable=jax.process_index() > 0,
        )
        last = None
        with shown:
            task = shown.add_task("", total=run.steps, loss=float("nan"), rate=0.0)
            for number, loss, weights in training.train(run, folder):
                speed = (shown.tasks[0].speed or 0.0) * run.batch * run.seq
                shown.update(task, completed=number, loss=loss, rate=speed)
                last = weights
        if last is None:
            console.print(f"the run has done its {run.steps} steps")
            return
        held = training.evaluate(run, last)
        if jax.process_index() == 0:
            (folder / "losses.svg").write_text(curve.svg(training.losses(folder)))
            console.print(f"loss {loss:.4f}; of text held back {held:.4f}, {held / np.log(2):.2f} bits a byte")
            console.print(f"the curve: {folder / 'losses.svg'}")


@main.command()
@_run
@_joined
def evaluate(folder: pathlib.Path, joined: bool, **chosen: Any) -> None:
    """The loss of the text that is held back, by the last checkpoint."""
    with _opened(folder, joined, **chosen) as run:
        done, weights = _trained(run, folder)
        found = training.evaluate(run, weights)
        click.echo(f"after {done} steps: loss {found:.4f}, {found / np.log(2):.2f} bits a byte")


@main.command()
@_run
@click.option("--prompt", multiple=True, default=["def ", "import ", "class ", "    return "], show_default=True)
@click.option("--tokens", default=120, show_default=True, help="How many bytes to sample.")
@click.option("--temperature", default=0.7, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--ledger", is_flag=True, help="Print what a token sends.")
def sample(
    folder: pathlib.Path,
    prompt: tuple[str, ...],
    tokens: int,
    temperature: float,
    seed: int,
    ledger: bool,
    **chosen: Any,
) -> None:
    """Go on with prompts, all at once."""
    with _opened(folder, **chosen) as run, run.layout.for_tokens():
        if run.layout.schedule:
            raise click.ClickException(f"{run.layout.name} has its layers in stages; --layout tp, or another, samples")
        _, weights = _trained(run, folder)
        texts = [text.encode() for text in prompt]
        rows, lengths = generate.padded(
            texts, math.prod(run.layout.mesh[axis] for axis in run.layout.dims.get("batch", ()))
        )
        args = weights, sh.array(rows, "i32[batch, seq]"), sh.array(lengths, "i32[batch]"), sh.random.key(seed)
        if ledger:
            kept = generate.cache(run.sizes, len(rows), rows.shape[1] + tokens)
            decode = sh.jit(functools.partial(generate.decode, sizes=run.sizes))
            click.echo(sh.ledger(decode, weights, kept, args[2], args[2], args[3]))
        run_once = functools.partial(generate.generate, sizes=run.sizes, new=tokens, temperature=temperature)
        made = sh.jit(run_once)(*args)
        for text, row in zip(texts, np.asarray(made), strict=False):
            click.echo((text + bytes(row.astype(np.uint8))).decode(errors="replace"))
            click.echo("-" * 40)


def run_of(layout: layouts.Layout) -> training.Run:
    """The run by which a layout is listed: where it has an axis for experts with experts, in groups of one device."""
    mixture: dict[str, Any] = {"experts": 8, "capacity": 1.25, "group": 16} if "expert" in layout.dims else {}
    return training.Run(layout, model.Sizes(layers=8, **mixture))


@main.command(name="layouts")
@_file
def listed(file: str | None) -> None:
    """All layouts, with what a step sends, by the types alone."""
    table = rich.table.Table("layout", "mesh", "bytes sent/step and device", "of them in the backward pass", box=None)
    for layout in layouts.read(pathlib.Path(file or layouts.FILE)).values():
        with layout.use(abstract=True):
            run = run_of(layout)
            found = sh.ledger(sh.jit(training.step(run)), *training.abstract(run))
            mesh = " x ".join(f"{axis}={size}" for axis, size in layout.mesh.items()) or "one device"
            table.add_row(layout.name, mesh, f"{found.bytes:,}", f"{found.backward().bytes:,}")
    rich.console.Console().print(table)


if __name__ == "__main__":
    main()
