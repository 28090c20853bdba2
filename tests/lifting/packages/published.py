"""How published programs are judged: values, gradients and communication, under both policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import shtypes as sh
from tests.traced.compiled import assert_compiled_as_said

EPS = float(np.finfo(np.float32).eps)


def check(loss: Callable[..., Any], operands: tuple[Any, ...], wanted: tuple[Any, Any], has_aux: bool = False) -> int:
    """Compares a loss, its gradients by the first operand, and what its compiled step sends.

    Args:
        loss: Typed, of typed operands.
        operands: Its operands.
        wanted: Its value and gradients on one device.
        has_aux: Whether it returns more than the loss.

    Returns:
        The bytes that each device sends.
    """
    step = sh.value_and_grad(loss, has_aux=has_aux, allow_int=True)
    found = jax.block_until_ready(sh.jit(step)(*operands))
    compare(found, wanted)
    return assert_compiled_as_said(step, *operands, jits=(sh.jit,)).bytes


def compare(found: Any, wanted: Any, terms: int = 2**12) -> None:
    """Compares two pytrees up to the roundings of sums of so many terms, each leaf relative to its largest element."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True))
    assert pairs
    for x, y in pairs:
        if y.dtype == jax.dtypes.float0:
            continue
        whole, one = (np.asarray(a, np.float64) for a in (sh.all_reduce(x) if isinstance(x, sh.Array) else x, y))
        assert whole.shape == one.shape
        assert float(np.abs(whole - one).max(initial=0)) <= terms * EPS * max(1e-3, float(np.abs(one).max(initial=0)))


def lifted(f: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function of typed arrays that may insert the reshards that are missing."""

    def run(*operands: Any) -> Any:
        with sh.implicit_comm():
            return sh.lift(f)(*operands)

    return run
