"""Rows of keys and random bits, and of calls to the host."""

from __future__ import annotations

from typing import Any, Final

import jax

from shtypes.control import debug
from shtypes.errors import ShardingTypeError
from shtypes.lifting.registry import equation_row, op
from shtypes.lifting.rows.generic import Bind, batched
from shtypes.ops.labelled import all_whole_tree
from shtypes.ops.whole import function

#: Functions of keys that act on each: how many dims, from the back, of the first operand are one key.
_KEYS: Final = {
    "random_clone": 0,
    "random_fold_in": 0,
    "random_gamma": 0,
    "random_seed": 0,
    "random_split": 0,
    "random_unwrap": 0,
    "random_wrap": 1,
    "threefry2x32": 0,
}


@equation_row(*_KEYS)
def _of_keys(eqn: Any, operands: list[Any]) -> list[Any]:
    return batched(eqn.primitive.name, eqn, operands, _KEYS[eqn.primitive.name])


@equation_row("random_bits")
def _random_bits(eqn: Any, operands: list[Any]) -> list[Any]:
    """Of one key each device makes its own part; of several, all bits of its own keys."""
    (key,) = operands
    if key.type.ndim:
        return batched("random_bits", eqn, operands, 0)
    return [op("random.bits")(key, tuple(eqn.params["shape"]), f"uint{eqn.params['bit_width']}")]


@equation_row("rng_bit_generator")
def _rng_bit_generator(eqn: Any, operands: list[Any]) -> list[Any]:
    """Each device makes all bits: they are no function of their place alone."""
    return list(all_whole_tree("rng_bit_generator", function("rng_bit_generator", Bind(eqn)), operands))


# calls to the host


@equation_row("pure_callback")
def _pure_callback(eqn: Any, operands: list[Any]) -> list[Any]:
    made = all_whole_tree("pure_callback", function("pure_callback", Bind(eqn)), operands)
    return list(made)


@equation_row("debug_callback", "debug_print")
def _debug(eqn: Any, operands: list[Any]) -> list[Any]:
    """Each device that has another part calls with its own, as `sh.debug` does."""
    p = eqn.params
    if eqn.primitive.name == "debug_print":
        args, kwargs = _filled_in(p, operands)
        debug.print(p["fmt"], *args, ordered=p["ordered"], **kwargs)
    else:
        bind = eqn.primitive.get_bind_params(p)
        callback = bind["callback"]
        debug.callback(callback, *operands, ordered=type(p.get("effect")).__name__.startswith("Ordered"))
    return []


def _filled_in(params: Any, operands: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a print: those that are arrays, and those that were known when it was traced."""
    known = dict(params["static_args"])
    rest = iter(operands)
    count = params["in_tree"].num_leaves
    leaves = [known[i] if i in known else next(rest) for i in range(count)]
    args, kwargs = jax.tree.unflatten(params["in_tree"], leaves)
    return list(args), dict(kwargs)


@equation_row("io_callback")
def _io_callback(eqn: Any, operands: list[Any]) -> list[Any]:
    raise ShardingTypeError(
        "`io_callback` of typed values would run once on each device",
        hints=["sh.debug.callback, which calls once for each part", "x.to_jax() before it, outside of `lift`"],
    )
