"""The rules of communication scopes, and those that are in force; needs no JAX. `comm` has the scopes."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

from shtypes.context import settings
from shtypes.context.settings import current, current_settings
from shtypes.resharding import Direction

#: What to minimize over a program.
Objective = Literal["bytes", "time"]


@dataclass(frozen=True)
class NoComm:
    """Forbids communication in a direction."""

    direction: Direction

    def __str__(self) -> str:
        return "no_comm" if self.direction == "both" else f'no_comm("{self.direction}")'


@dataclass(frozen=True)
class Budget:
    """A bound on the communication of a scope in each direction; None means no bound."""

    kinds: tuple[str, ...] | None
    axes: tuple[str, ...] | None
    bytes: int | None
    launches: int | None
    run: int = 0  # the run of the scope in a lifted program; other runs have trackers

    @property
    def bounds_sums(self) -> bool:
        """Whether bytes or launches are bounded, not only kinds and axes."""
        return self.bytes is not None or self.launches is not None

    def __str__(self) -> str:
        return "comm_budget"


@dataclass(frozen=True)
class Implicit:
    """Ops insert the reshards of least cost, in the direction to minimize, that make them type."""

    minimize: Direction = "both"
    by: Objective = "bytes"  # what to minimize over a program
    joint: bool = False  # whether it decorates a function: derivatives in it are then optimized jointly
    out: Any = None  # the result type that a call asks for; the reshard to it counts
    #: The index of the algorithm for ops along sharded dims that have several; -1 gathers.
    way: int | None = None


@dataclass(frozen=True)
class FinishesScalars:
    """Ops finish pending sums of one element, such as norms, where they would not type otherwise.

    Reductions to one element, such as whether all elements are finite, may be over sharded dims.
    """


@dataclass(frozen=True)
class FinishesSums:
    """Ops that may communicate finish pending sums first, before they try other reshards.

    For composite functions, so that they send one number for each row instead of the row.
    """


@dataclass(frozen=True)
class Recomputed:
    """Forward communication is repeated in the backward pass: inside `checkpoint`."""


@dataclass(frozen=True)
class InBackward:
    """Communication happens in the backward pass: the backward function of a `custom_vjp`."""


@dataclass(frozen=True)
class NotTransposed:
    """Communication has no backward pass: its gradient is computed, and checked, separately."""


ScopeRule = NoComm | Budget | Implicit | FinishesScalars | FinishesSums | Recomputed | InBackward | NotTransposed
Rules = tuple[ScopeRule, ...]


def rules_in_force() -> Rules:
    """The rules of all enclosing scopes, outermost first; in speculative tracing those that let ops communicate."""
    rules: Any = current.value.scopes
    if current.value.speculative:
        return tuple(rule for rule in rules if isinstance(rule, Implicit | FinishesScalars | FinishesSums))
    return rules  # type: ignore[no-any-return]


def in_force(rules: Rules) -> contextlib.AbstractContextManager[None]:
    """Context manager that replaces the rules."""
    return settings.scope(current_settings()._replace(scopes=rules))


def not_transposed() -> contextlib.AbstractContextManager[None]:
    """Context manager for ops whose results have no cotangents."""
    return settings.scope(current_settings()._replace(scopes=(*current.value.scopes, NotTransposed())))


def speculative_tracing() -> contextlib.AbstractContextManager[None]:
    """Context manager for speculative tracing: communication checks are off."""
    return settings.scope(current_settings()._replace(speculative=True))


def without_scopes() -> contextlib.AbstractContextManager[None]:
    """Context manager in which no communication scope applies, and tracing is not speculative."""
    return settings.scope(current_settings()._replace(scopes=(), speculative=False))


# questions about them


def allows_implicit() -> bool:
    """Whether ops may insert reshards."""
    return any(isinstance(rule, Implicit) for rule in rules_in_force())


def has_comm_scope() -> bool:
    """Whether a scope around limits or allows communication."""
    return any(isinstance(rule, NoComm | Budget | Implicit) for rule in current.value.scopes)


def minimizing() -> Direction:
    """The direction that the innermost `implicit_comm` minimizes."""
    return objective().minimize


def objective() -> Implicit:
    """The rule of the innermost `implicit_comm`, or the default one."""
    return next((rule for rule in reversed(rules_in_force()) if isinstance(rule, Implicit)), Implicit())


def finishes_scalars() -> bool:
    """Whether ops may finish pending scalars."""
    return any(isinstance(rule, FinishesScalars) for rule in rules_in_force())


def finishes_sums() -> bool:
    """Whether ops that may communicate finish pending sums first."""
    return any(isinstance(rule, FinishesSums) for rule in rules_in_force())
