"""What JAX's own tools see of typed programs: source lines, names, checks, export, references, and its debug flags."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax import export
from jax.extend import source_info_util
from jax.extend.core import check_jaxpr

import shtypes as sh
from shtypes.core.operation import applied_by
from tests import small_models as p

ALL = (0, 1, 2)
VERSION = tuple(int(n) for n in jax.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def on_a_mesh() -> Any:
    return p.mesh()


@contextlib.contextmanager
def flag(name: str) -> Iterator[None]:
    """A debug flag of JAX, on for a while."""
    jax.config.update(name, True)
    try:
        yield
    finally:
        jax.config.update(name, False)


def scoped_loss(*args: Any) -> Any:
    with jax.named_scope("layer0"):
        out = p.mlp(*args)
    return sh.sum(out * out)


def test_each_equation_has_the_line_that_the_user_wrote_forward_and_backward() -> None:
    jaxpr = jax.make_jaxpr(sh.grad(p.loss, argnums=ALL))(*p.values())
    lines, first = inspect.getsourcelines(p.mlp)
    body = range(first, first + len(lines))
    found = [(str(applied_by(e)), source_info_util.summarize(e.source_info)) for e in jaxpr.jaxpr.eqns]
    reshards = [place for name, place in found if name == "reshard[tp: U->R]"]
    assert len(reshards) == 2, "forward and backward"
    for place in reshards:
        match = re.search(r"small_models\.py:(\d+)", place)
        assert match is not None
        assert int(match[1]) in body
    assert not [place for _, place in found if "/shtypes/" in place]


def test_each_equation_knows_its_scope_and_its_direction() -> None:
    jaxpr = jax.make_jaxpr(sh.grad(scoped_loss, argnums=ALL))(*p.values())
    stacks = [str(e.source_info.name_stack) for e in jaxpr.jaxpr.eqns if str(applied_by(e)) == "reshard[tp: U->R]"]
    assert [s.count("layer0") for s in stacks] == [1, 1]
    assert ["transpose" in s for s in stacks] == [False, True]


def test_the_compiled_program_names_scopes() -> None:
    text = str(jax.jit(sh.grad(scoped_loss)).lower(*p.values()).compile().as_text())
    names = [re.search(r'op_name="([^"]*)"', line) for line in text.splitlines() if " all-reduce(" in line]
    assert names
    assert all(match and "layer0" in match[1] for match in names)


def test_jax_finds_the_traced_programs_well_formed() -> None:
    for jaxpr in (
        jax.make_jaxpr(sh.grad(p.loss, argnums=ALL))(*p.values()),
        jax.make_jaxpr(sh.grad(p.looped_loss))(p.stack(), p.values()[0]),
    ):
        check_jaxpr(jaxpr.jaxpr)


def test_programs_pass_the_checks_of_jax() -> None:
    args = p.values()
    with flag("jax_enable_checks"):
        grads = jax.jit(sh.grad(lambda *a: p.loss(*a), argnums=ALL))(*args)  # noqa: PLW0108  # a new function: a new trace
        looped = jax.jit(sh.grad(lambda *a: p.looped_loss(*a)))(p.stack(), args[0])  # noqa: PLW0108
    p.assert_gradients(grads, args, p.expected()[1])
    p.assert_close(looped, p.expected_looped()[0])


@pytest.mark.skipif(VERSION < (0, 11), reason="this JAX reports a leak for every type of this kind")
def test_programs_leak_no_tracers() -> None:
    args = p.values()
    with flag("jax_check_tracer_leaks"):
        grads = jax.jit(sh.grad(lambda *a: p.loss(*a), argnums=ALL))(*args)  # noqa: PLW0108
    p.assert_gradients(grads, args, p.expected()[1])


def test_the_nan_checker_lets_good_values_pass_and_stops_bad_ones() -> None:
    x, _, _ = p.values()
    with flag("jax_debug_nans"):
        jax.block_until_ready(jax.jit(lambda x: sh.silu(x) * 1.0)(x))
        with pytest.raises(FloatingPointError):
            jax.block_until_ready(sh.log(x * 0.0 - 1.0))


def test_a_reference_holds_a_typed_value() -> None:
    x, _, _ = p.values()

    @jax.jit
    def f(x: Any) -> Any:
        ref = jax.new_ref(x)
        ref[...] = sh.silu(ref[...])
        return ref[...]

    p.assert_close(f(x), p.one_device(jax.nn.silu, p.X))


def test_a_program_with_plain_ends_is_exported() -> None:
    x, w_in, w_out = p.values()

    def plain(x: Any) -> Any:
        return p.mlp(sh.from_jax(x), w_in, w_out).to_jax()

    exported = export.export(jax.jit(plain))(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.data.sharding))
    p.assert_close(exported.call(x.data), p.one_device(p.reference_mlp, p.X, p.W_IN, p.W_OUT))
