"""A call of a typed program with custom derivative, transpose and batching rules, like a primitive of JAX.

The body is evaluated and analysed like the body of any call. Its rules are functions of typed values, and may bind such
calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import jax

from shtypes._compat import HiPrimitive, Zero, is_undefined_primal, print_as
from shtypes._compat.derivative_rules import trace_typed


class Rules(Protocol):
    """Differentiation, transpose and batching rules, with operands and results as in JAX's rules."""

    @property
    def name(self) -> str:
        """The name in jaxprs."""
        ...

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The results and their tangents; None for a zero tangent."""
        ...

    def transpose(self, cts: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """The cotangents of the linear operands, which are `UndefinedPrimal`; None for zeros and other operands."""
        ...

    def batch(self, size: int, operands: Sequence[Any], dims: Sequence[int | None]) -> list[Any]:
        """The results mapped over a leading dim of size ``size``."""
        ...


class CallWithRules(HiPrimitive):
    """The primitive; its first ``num_consts`` operands are captured by the body, and not passed to the rules."""

    multiple_results = True

    def abstract_eval(self, *types: Any, call_jaxpr: Any, num_consts: int, rules: Rules) -> Any:
        return [v.aval for v in call_jaxpr.outvars], set(call_jaxpr.effects)

    def to_lojax(self, *operands: Any, call_jaxpr: Any, num_consts: int, rules: Rules) -> Any:
        return jax.core.eval_jaxpr(call_jaxpr, (), *operands)

    def jvp(self, primals: Any, tangents: Any, *, call_jaxpr: Any, num_consts: int, rules: Rules) -> Any:
        live = [None if type(t) is Zero else t for t in tangents[num_consts:]]
        outs, dots = rules.jvp(primals[num_consts:], live)
        zeros = [Zero(jax.typeof(y).to_tangent_aval()) for y in outs]
        return outs, [z if t is None else t for z, t in zip(zeros, dots, strict=True)]

    def transpose(self, cts: Any, *operands: Any, call_jaxpr: Any, num_consts: int, rules: Rules) -> Any:
        args = operands[num_consts:]
        results = rules.transpose([None if type(ct) is Zero else ct for ct in cts], args)
        pairs = zip(args, results, strict=True)
        cts_in = [Zero(x.aval) if is_undefined_primal(x) and ct is None else ct for x, ct in pairs]
        return [None] * num_consts + cts_in

    def batch(
        self, axis_data: Any, operands: Any, dims: Any, *, call_jaxpr: Any, num_consts: int, rules: Rules
    ) -> tuple[list[Any], list[Any]]:
        places = [None if d is None else int(d) for d in dims[num_consts:]]
        outs = rules.batch(axis_data.size, operands[num_consts:], places)
        return outs, [0] * len(outs)


call_with_rules_p: Final = CallWithRules("call_with_rules")
print_as(call_with_rules_p, lambda params: params["rules"].name, ("call_jaxpr",))


def call_with_rules(body: Callable[..., list[Any]], operands: Sequence[Any], rules: Rules) -> list[Any]:
    """Calls ``body``, differentiated, transposed and mapped by ``rules``."""
    jaxpr, consts = trace_typed(body, operands)
    results: list[Any] = call_with_rules_p.bind(
        *consts, *operands, call_jaxpr=jaxpr, num_consts=len(consts), rules=rules
    )
    return results
