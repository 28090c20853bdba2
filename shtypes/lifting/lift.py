"""`lift`: converts a plain JAX function to one of typed values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import jax

from shtypes._compat import JAX_ERRORS
from shtypes.caches import PROGRAMS, Bounded
from shtypes.context.eqn_source import TakesGradients, is_tracing_plain, tracing_typed
from shtypes.context.garbage import fewer_collections
from shtypes.context.settings import current_settings
from shtypes.context.signature_errors import check_function, name_of
from shtypes.context.user_line import placed, refuse
from shtypes.dispatch.apply import is_typed
from shtypes.dispatch.call_fixes import price_all_steps
from shtypes.errors import ShardingTypeError, short
from shtypes.evaluation.at_specs import AtSpecs
from shtypes.evaluation.rows import elementwise, lookups, matrices, shapes
from shtypes.evaluation.value_info import type_of
from shtypes.lifting import recorded_calls
from shtypes.lifting.recorded_calls import recorded
from shtypes.lifting.register import add_register
from shtypes.lifting.rows import collectives, control, derivatives, reductions
from shtypes.lifting.traced_program import Program, flatten_args, has_backward
from shtypes.lifting.ways import grouping, moves, order, positions, running, spectra, windows
from shtypes.lifting.ways import matrices as tall
from shtypes.local_mode.shard_map import connect_lift
from shtypes.scopes.comm import note_undecided

#: The modules that add rows to the table of primitives on import.
_ROW_MODULES: Final = (
    *(collectives, control, derivatives, elementwise, lookups, matrices, reductions, shapes),
    *(grouping, moves, order, positions, running, spectra, tall, windows),
    recorded_calls,
)


@add_register
def lift(
    f: Callable[..., Any],
    *,
    at: Mapping[str, Any] | None = None,
    pending: Literal["keep", "finish"] = "keep",
) -> Callable[..., Any]:
    """Converts a plain JAX function to one of typed values.

    Typed leaves of the arguments are traced as plain arrays of their global shape; the program is then evaluated with
    one typed op per primitive. So code written in `jax.numpy`, Flax, Equinox or optax is typed by the rules of this
    library, and the ledger has its communication.

    The program sees the mesh of its arguments (`jax.sharding.get_abstract_mesh`), and `jax.typeof` of an argument has
    its sharding. Sharding annotations are reshards: `jax.lax.with_sharding_constraint`, `jax.reshard`,
    ``out_sharding=``, the shardings of `jax.jit`, `jax.sharding.auto_axes` and `jax.device_put`.

    Scopes that the program opens (`no_comm`, `policy`, `jax.enable_x64`, ...) apply to what it computes in them.

    Each call traces ``f`` anew and sees the current values of its closure, which may be typed or traced. A call with
    typed arrays only runs as one compiled and cached program; with plain arrays among them the operations run one by
    one, and see their values.

    Args:
        f: A function of pytrees of arrays. Leaves that are no arrays are passed unchanged.
        at: Reshards for lines that cannot be edited: a mapping from places of the program to the types of their
            results, as `reshard` takes them (``"[...]"`` finishes pending sums). A place is a path of name scopes, as
            Flax linen, Haiku and `jax.named_scope` write them (``"encoder/Dense_0"``, or any part of one; ``*`` matches
            any letters), a function (``"MultiHeadAttention.__call__"``), or a line (``"linear.py:422"``). Its results
            are the values that it computes and the rest of the forward pass uses, on each run through the place;
            results whose shape the type does not fit are unchanged.
        pending: ``"keep"`` leaves sums pending. ``"finish"`` adds an all-reduce, to the replicated state of the policy,
            after each product or sum over a sharded dim.

    Returns:
        A function of the same arguments, typed or plain. Results that depend on no typed value are plain.

    Raises:
        ShardingTypeError: (when called) an operation does not type, with the line of ``f``, the JAX function called
            there, and fixes; JAX refuses a line, with the types of its operands; a primitive has no row; a place of
            ``at`` is not in the program, or its type fits none of its results.

    Communicates: as each operation does: nothing, unless the program, ``at`` or ``pending`` reshards, or
    `implicit_comm` allows it.

    Transpose: that of the typed ops, and of the reshards of ``at`` and ``pending``.

    Examples:
        >>> import jax.numpy as jnp
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return jnp.tanh(x @ w)
        >>> with sh.use_mesh(sh.make_mesh({"dp": 2})):
        ...     sh.lift(layer)(sh.ones("f32[4@dp, 8]"), sh.ones("f32[8, 8]")).type
        f32[4@dp,8]
    """
    check_function("lift", f)
    places, finish = _checked_options(at, pending)
    return _lifted(f, places, finish=finish, completes=not places and not finish)


def lift_op_by_op(f: Callable[..., Any]) -> Callable[..., Any]:
    """`lift` without the solver: under `implicit_comm` each op chooses its reshards."""
    return _lifted(f, {}, finish=False, completes=False)


#: Why the solver does not choose the reshards of a function that differentiates: it does for the functions inside.
_TAKES_GRADIENTS: Final = "it takes gradients itself"


class Completed:
    """A function whose `implicit_comm` reshards the solver chooses for all ops together, where it can trace it.

    Other calls run as they are: each op chooses its reshards, and a warning of the scope says why (`note_undecided`).
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f)
        self.f = f
        self._is_lifted = getattr(f, "completed", None) is f  # a wrapper has the attributes of what it wraps
        self._programs: Bounded[Program] = Bounded(PROGRAMS)
        self._undecided: Bounded[str] = Bounded(PROGRAMS)

    @fewer_collections()
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the function."""
        call_args = flatten_args(args, kwargs)
        key = (call_args.tree, call_args.static)
        if is_tracing_plain() or not any(map(is_typed, call_args.arrays)) or self._is_lifted:
            return self.f(*args, **kwargs)
        program = self._programs.get_or_create(
            key, lambda: Program(self.f, *key, AtSpecs(), completes=True, typed=True)
        )
        typed_key = (*key, current_settings(), tuple([type_of(x) or jax.typeof(x) for x in call_args.arrays]))
        why = self._undecided.get(typed_key)
        if why is None:
            try:
                traced = program.traced(call_args)
                # Gradients have cotangent types, which are fixed: only the differentiated function is solved.
                if has_backward(traced.jaxpr):
                    why = _TAKES_GRADIENTS
                else:
                    following = program.following(traced, call_args)
                    why = program.undecided(traced, following, call_args.arrays)
                    if not why:
                        return program.run(traced, following, call_args)
            except TakesGradients:
                why = _TAKES_GRADIENTS
            except Exception as error:  # it reads values or types, which a plain trace does not have
                cause = error.__cause__ or error
                message = cause.what if isinstance(cause, ShardingTypeError) else str(cause).partition("\n")[0]
                why = f"it wants values or types while Python runs it ({type(cause).__name__}: {short(message, 160)})"
            self._undecided.put(typed_key, why)
        if why is not _TAKES_GRADIENTS:
            note_undecided(self.f, why)
        return self.f(*args, **kwargs)


def _lifted(f: Callable[..., Any], places: dict[str, Any], *, finish: bool, completes: bool) -> Callable[..., Any]:
    """`lift` with its options checked; ``completes``: whether the solver chooses the reshards of `implicit_comm`."""
    programs: Bounded[Program] = Bounded(PROGRAMS)
    name = getattr(f, "__name__", "f")
    name = name if name.isidentifier() else "f"

    @functools.wraps(f)
    def lifted(*args: Any, **kwargs: Any) -> Any:
        if is_tracing_plain():
            if places or finish:
                return recorded(lifted, args, kwargs, plain=f)
            with tracing_typed(None):
                return f(*args, **kwargs)
        call_args = flatten_args(args, kwargs)
        key = (call_args.tree, call_args.static)
        program = programs.get_or_create(
            key, lambda: Program(f, *key, AtSpecs(name, places, finish=finish), completes=completes)
        )
        try:
            return program(call_args)
        except ShardingTypeError as error:
            price_all_steps(error)
            raise placed(error, name).with_traceback(None) from error.__cause__
        except JAX_ERRORS as error:
            refuse(error, f, args, kwargs, name_of(f) or name)
            raise

    if completes:
        lifted.completed = lifted  # type: ignore[attr-defined]
    return lifted


def _checked_options(at: Any, pending: Any) -> tuple[dict[str, Any], bool]:
    if at is not None and not (isinstance(at, Mapping) and all(isinstance(place, str) and place for place in at)):
        raise ShardingTypeError(
            "`at` of `lift` is no mapping from places to types", hints=['at={"MultiHeadAttention.__call__": "[...]"}']
        )
    if pending not in ("keep", "finish"):
        raise ShardingTypeError(f"`pending` of `lift` is {pending!r}", hints=['pending="keep"', 'pending="finish"'])
    return dict(at or {}), pending == "finish"


connect_lift(lift)
