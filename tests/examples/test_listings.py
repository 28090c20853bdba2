"""The types of every program of the examples, line by line, forward and backward, as golden text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

import shtypes as sh
from examples import jep_14273, jep_17111, shard_map_tutorial
from shtypes._compat import HiPrimitive
from shtypes.core.operation import applied_by
from shtypes.traced.equations import equations
from tests.examples.test_printed import compared
from tests.local_mode.test_examples import NETWORKS, PROGRAMS
from tests.local_mode.test_transposition import factors, operand


def lines(program: Any, direction: str) -> list[str]:
    """Our equations that run in one direction, in bodies too: the types of the results, and the operation."""
    return [
        f"  {', '.join(str(v.aval) for v in found.eqn.outvars)} = {applied_by(found.eqn)}"
        + (f"  ({found.times} times)" if found.times != 1 else "")
        for found in equations(program)
        if found.direction == direction and isinstance(found.eqn.primitive, HiPrimitive)
    ]


def listed(name: str, f: Callable[..., Any], *args: Any) -> str:
    """A program's operands, equations, and results."""
    program = jax.make_jaxpr(f)(*args)
    return (
        "\n".join([f"{name}: {_types(program.jaxpr.invars)} -> {_types(program.jaxpr.outvars)}", *_body(program)])
        + "\n"
    )


def _types(variables: Any) -> str:
    return ", ".join(str(v.aval) for v in variables)


def _body(program: Any) -> list[str]:
    back = lines(program, "backward")
    return [*lines(program, "forward"), *(["  backward:", *back] if back else [])]


def with_gradient(name: str, f: Callable[..., Any], *args: Any) -> str:
    """A program with its vector-Jacobian product."""
    y = jax.eval_shape(f, *args)

    def both(ct: Any, *args: Any) -> Any:
        y, pull = jax.vjp(f, *args)
        return y, pull(ct)

    program = jax.make_jaxpr(both)(sh.abstract_array(y.cotangent()), *args)
    result, *grads = program.jaxpr.outvars
    heads = [f"{name}: {', '.join(str(x.type) for x in args)} -> {result.aval}; gradients {_types(grads)}"]
    return "\n".join(heads + _body(program)) + "\n"


@pytest.mark.parametrize("module", [shard_map_tutorial, jep_14273], ids=lambda m: m.__name__[9:])
def test_each_program_has_the_types_that_it_had(module: Any) -> None:
    text = []
    for owner, name, mesh, operands, *_ in PROGRAMS:
        if owner is module:
            sh.set_mesh(sh.make_mesh(mesh))
            text.append(with_gradient(name, getattr(owner, name), *map(sh.abstract_array, operands)))
    compared(module.__name__[9:], "\n".join(text))


def test_each_network_sends_what_it_sent() -> None:
    """Types of the loss and the gradients, and every collective, under both policies."""
    text = []
    for name, mesh, weights, bias, inputs, targets, *_ in NETWORKS:
        sh.set_mesh(sh.make_mesh(mesh))
        for policy in ("partial", "jax"):
            with sh.policy(policy):
                layers = [(16, 16), (16, 8)]
                abstract = sh.abstract_array
                params = [(abstract(weights.format(n, m)), abstract(bias.format(m))) for n, m in layers]
                step = sh.value_and_grad(getattr(shard_map_tutorial, name))
                loss, grads = jax.eval_shape(step, params, (abstract(inputs), abstract(targets)))
                shown = ", ".join(map(str, jax.tree.leaves(grads)))
                text.append(f"{name} under {policy}: loss {loss}; gradients {shown}\n")
                for e in sh.ledger(step, params, (abstract(inputs), abstract(targets))):
                    text.append(f"  {e.direction}: {e}, {e.bytes} B/device: {e.src} -> {e.dst}\n")
    compared("networks", "".join(text))


def test_the_transformer_layer_has_the_types_that_it_had() -> None:
    sh.set_mesh(sh.make_mesh({"X": 2, "Y": 2, "Z": 2}))
    with sh.dims(batch=2, time=4, embed=8, heads=8):
        params = {name: sh.abstract_array(text) for name, text in jep_14273.LAYER.items()}
        x, angles = params.pop("x"), sh.abstract_array("f32[4, 1]")
        compared("transformer_layer", listed("layer", jep_14273.transformer_layer, params, x, angles, angles))


def test_each_example_of_efficient_transposition_has_the_types_that_it_had() -> None:
    """Under the policy of the design, with the transpose and the transpose of the transpose."""
    sh.set_mesh(sh.make_mesh({"i": 4}))
    text = []
    with sh.policy("jax"):
        for name in ("f1", "f2", "cursed_identity", "f4", "f5"):
            x, others = operand(name), factors(name)

            def f(x: Any, name: str = name, others: Any = others) -> Any:
                return getattr(jep_17111, name)(x, *others)

            y, pull = jax.vjp(f, x)
            ct = sh.abstract_array(y.type.cotangent())

            def once(ct: Any, pull: Any = pull) -> Any:
                return pull(ct)[0]

            twice = jax.vjp(once, sh.zeros_like(sh.reshard(y, y.type.cotangent())))[1]
            text += [listed(name, f, x), listed(f"  t({name})", once, ct), listed(f"  t(t({name}))", twice, x)]
    compared("jep_17111", "\n".join(text))
