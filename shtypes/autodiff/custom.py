"""`custom_vjp`, which checks the types of the cotangents that backward functions return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import jax
from jax.custom_derivatives import CustomVJPPrimal

from shtypes._compat.derivative_rules import keeping_closed_over
from shtypes._compat.patches import run_custom_derivatives
from shtypes.caches import PROGRAMS, Bounded
from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.signature_errors import as_numbers, check_function, kind_of
from shtypes.context.user_line import public
from shtypes.core.reshard import move
from shtypes.dispatch.apply import is_typed
from shtypes.errors import ShardingTypeError
from shtypes.rules.cotangent import check_cotangent
from shtypes.scopes.comm import under_rules
from shtypes.scopes.scope_rules import InBackward, Rules, allows_implicit, rules_in_force
from shtypes.types import ShType

P = ParamSpec("P")
T = TypeVar("T")


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Types:
    """The types of the differentiated arguments, carried among the residuals: leaf by leaf, None for plain ones."""

    structure: Any
    leaves: tuple[ShType | None, ...]


class custom_vjp(Generic[P, T]):  # noqa: N801  # stands for `jax.custom_vjp`
    """A function with a custom backward pass, as `jax.custom_vjp`.

    The backward function returns a cotangent for each typed argument, in the argument's cotangent type, or None for
    zero; another type is an error that names the argument. (`jax.custom_vjp` takes typed values too, with less helpful
    errors.)

    Args:
        fun: The function.
        nondiff_argnums: The positions of arguments that are not differentiated; both functions get them first.

    Examples:
        >>> import shtypes as sh
        >>> @sh.custom_vjp
        ... def double(x):
        ...     return x * 2
        >>> _ = double.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 2,))
        >>> with sh.use_mesh(sh.make_mesh({"x": 2})):
        ...     sh.grad(lambda x: sh.sum(double(x)))(sh.array([1.0, 2.0], "f32[2@x]"))
        Array(f32[2@x], [2. 2.])
    """

    @public
    def __init__(self, fun: Callable[P, T], nondiff_argnums: int | Sequence[int] = ()) -> None:
        check_function("custom_vjp", fun)
        functools.update_wrapper(self, fun)
        self.name = getattr(fun, "__name__", "the function")
        self.nondiff = as_numbers("custom_vjp", "nondiff_argnums", nondiff_argnums)
        self._fun = fun
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        # For each set of scopes, JAX's `custom_vjp`, whose backward function runs in them.
        self._in_scopes: Bounded[Any] = Bounded(PROGRAMS)

    @public
    def defvjp(self, fwd: Callable[..., tuple[Any, Any]], bwd: Callable[..., Any]) -> Callable[..., Any]:
        """Sets the two functions; returns ``bwd``.

        Args:
            fwd: From the arguments to ``(result, residuals)``.
            bwd: From the undifferentiated arguments, the residuals and the result's cotangent to a tuple of the
                arguments' cotangents.
        """
        check_function("custom_vjp", fwd, "the forward function")
        check_function("custom_vjp", bwd, "the backward function")
        self._rules = _with_checked_types(self.name, fwd, bwd, self.nondiff)
        self._in_scopes.clear()
        return bwd

    def _under(self, rules: Rules) -> Any:
        """JAX's `custom_vjp`, whose functions run in these scopes, whenever JAX calls them."""
        native = self._in_scopes.get(rules)
        if native is None:
            native = jax.custom_vjp(
                functools.wraps(self._fun)(under_rules(rules, self._fun)), nondiff_argnums=self.nondiff
            )
            if self._rules is not None:
                fwd, bwd = self._rules
                native.defvjp(under_rules(rules, fwd), under_rules(rules, bwd, InBackward()))
            native.__dict__["runs_in_scopes"] = True
            self._in_scopes.put(rules, native)
        return native

    @public
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Applies the function."""
        if self._rules is None:
            raise ShardingTypeError(
                f"`{self.name}` is called without its backward pass", hints=[f"{self.name}.defvjp(forward, backward)"]
            )
        result: T = self._under(rules_in_force())(*args, **kwargs)
        return result


def _value(x: Any) -> Any:
    """Unwraps an argument of a forward function with `symbolic_zeros`."""
    return x.value if isinstance(x, CustomVJPPrimal) else x


def _with_checked_types(name: str, fwd: Callable[..., Any], bwd: Callable[..., Any], nondiff: Sequence[int]) -> Any:
    """Wraps the two functions of a `custom_vjp` to check cotangents against the types of the arguments."""

    def with_types(*args: Any) -> tuple[Any, Any]:
        out = fwd(*args)
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise ShardingTypeError(f"the forward function of `{name}` returns (result, residuals), not {kind_of(out)}")
        result, residuals = out
        leaves, structure = jax.tree.flatten([a for i, a in enumerate(args) if i not in nondiff])
        types = tuple(jax.typeof(x) if is_typed(x) else None for x in map(_value, leaves))
        return result, (residuals, _Types(structure, types))

    def checked(*args: Any) -> Any:
        *nondiff_args, (residuals, types), ct = args
        return _check_cotangents(name, bwd(*nondiff_args, residuals, ct), types)

    return with_types, checked


@dataclass
class _Leaf:
    """The type of a leaf, as a leaf of a pytree where None would be none."""

    type: ShType | None


def _check_cotangents(name: str, cts: Any, types: _Types) -> Any:
    """Checks the cotangents that a backward function returned; inside `implicit_comm` reshards them."""
    arguments = jax.tree.unflatten(types.structure, [_Leaf(t) for t in types.leaves])
    if not isinstance(cts, (tuple, list)) or len(cts) != len(arguments):
        raise ShardingTypeError(
            f"the backward function of `{name}` returns a tuple of {len(arguments)}, one for each argument"
        )
    checked = []
    for i, (ct, argument) in enumerate(zip(cts, arguments, strict=True)):
        what = f"the cotangent of argument {i} that the backward function of `{name}` returns"
        leaves, tree = jax.tree.flatten(ct, is_leaf=lambda leaf: leaf is None)
        primals = jax.tree.leaves(argument)  # JAX refuses another structure later
        leaves_in = [_check_leaf(x, p.type, what) for x, p in zip(leaves, primals, strict=False)]
        checked.append(jax.tree.unflatten(tree, [*leaves_in, *leaves[len(leaves_in) :]]))
    return tuple(checked)


def _check_leaf(ct: Any, primal: ShType | None, what: str) -> Any:
    if ct is None or (primal is None and not is_typed(ct)):
        return ct
    if primal is None:
        raise ShardingTypeError(f"{what} is typed, but the argument is a plain array", hints=["ct.to_jax()"])
    if not is_typed(ct):
        raise ShardingTypeError(f"{what} is a plain array, but the argument has type {primal}")
    if primal.differentiable:
        t, expected = jax.typeof(ct), primal.cotangent()
        if allows_implicit() and (t.mesh, t.shape, t.dtype_name) == (
            expected.mesh,
            expected.shape,
            expected.dtype_name,
        ):
            return move(ct, expected, inserted=True)
        check_cotangent(t, primal, what)
    return ct


def _run_in_scopes(f: Callable[..., Any], part: str, native: Any, static: Sequence[Any]) -> Callable[..., Any]:
    """Wraps a function of JAX's `custom_vjp` or `custom_jvp` to run in the scopes of the call, for typed values.

    In a trace of a plain program, values that the rules close over become operands, since rules run after the trace.

    Args:
        f: The function.
        part: Which one it is: ``"fun"``, ``"jvp"``, ``"fwd"`` or ``"bwd"``.
        native: JAX's `custom_vjp` or `custom_jvp`.
        static: The arguments that are not differentiated.
    """
    if is_tracing_plain():
        rules_of_native = [getattr(native, name, None) for name in ("jvp", "fwd", "bwd")]
        return keeping_closed_over(f, [*rules_of_native, *static]) if part == "fun" else f
    rules = rules_in_force()
    if not rules or getattr(native, "runs_in_scopes", False) or (part == "bwd" and f is not native.bwd):
        return f
    checked = f
    if part in ("fwd", "bwd") and allows_implicit():
        name = getattr(native.fun, "__name__", "the function")
        checked = dict(zip(("fwd", "bwd"), _with_checked_types(name, f, f, native.nondiff_argnums), strict=True))[part]
    run = under_rules(rules, checked, *[InBackward()] if part == "bwd" else [])

    def scoped(*args: Any, **kwargs: Any) -> Any:
        typed = checked is not f or any(is_typed(_value(x)) for x in jax.tree.leaves((args, kwargs)))
        return (run if typed else f)(*args, **kwargs)

    return functools.wraps(f)(scoped)


run_custom_derivatives(_run_in_scopes)
