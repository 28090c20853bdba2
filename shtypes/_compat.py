"""Everything that differs between JAX releases, or that JAX does not publish. Nothing else imports ``jax._src``."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final, NamedTuple

import jax
from jax.experimental.hijax import HiType, Zero, aval_method, aval_property, instantiate_zeros, is_undefined_primal
from jax.experimental.hijax import register_hitype as register_hitype
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from shtypes.caches import Bounded

__all__ = [
    "Call",
    "Cond",
    "HiPrimitive",
    "HiType",
    "Scan",
    "UnknownEquationError",
    "While",
    "Zero",
    "aval_method",
    "aval_property",
    "bound",
    "captured",
    "control",
    "equation_context",
    "has_own_context",
    "inner_jaxprs",
    "install_shims",
    "instantiate_zeros",
    "is_literal",
    "is_transposing",
    "is_undefined_primal",
    "jaxpr_of",
    "no_trace_is_running",
    "print_as",
    "private",
    "register_hitype",
    "shim_custom_derivatives",
    "trace_context",
    "user_frames",
]

VERSION: tuple[int, ...] = tuple(int(part) for part in jax.__version__.split(".")[:3])


def private(module: str, name: str) -> Any:
    """A private JAX object, or None where this release has none."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


#: JAX's table of rules for linearizing; None where this release has none.
_linearizations: dict[Any, Any] | None = private("jax._src.interpreters.ad", "primitive_linearizations")
#: Whether such a rule gives residuals of two kinds, as from 0.11 on.
_STRUCTURED_RESIDUALS: Final = "structured_residuals" in getattr(
    private("jax._src.interpreters.ad", "LinearizeTrace"), "__annotations__", {}
)


class HiPrimitive(Primitive):
    """A primitive on typed values: what `jax.experimental.hijax` called so until 0.11.0, on every release.

    JAX asks ``is_high`` and ``to_lojax`` of it when it lowers; the other rules go into JAX's public tables.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        ad.primitive_jvps[self] = self.jvp
        ad.primitive_transposes[self] = self.transpose
        if _linearizations is not None and type(self).linearize is not HiPrimitive.linearize:
            _linearizations[self] = self._linearized
        batching.fancy_primitive_batchers[self] = self.batch

    def is_high(self, *avals: Any, **params: Any) -> bool:
        return True

    def is_effectful(self, params: Any) -> bool:  # type: ignore[override]  # JAX's annotation differs from its calls
        return False

    # The signatures are open, so that each primitive can name its operands.

    def abstract_eval(self, *avals: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` has no type rule")

    def to_lojax(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be lowered")

    def jvp(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be differentiated")

    def linearize(self, primals: Sequence[Any], nonzero: Sequence[bool], **params: Any) -> Any:
        """The results, which of them have a tangent, and the function from the operands' tangents to the results'.

        May be left out: JAX then traces the jvp and takes it apart, at twice the price.
        """
        raise NotImplementedError(f"`{self.name}` cannot be linearized")

    def _linearized(self, is_vjp: bool, nonzero: Sequence[bool], *primals: Any, **params: Any) -> Any:
        outs, carried, push = self.linearize(primals, nonzero, **params)
        if _STRUCTURED_RESIDUALS:
            return outs, carried, (), None, lambda residuals, structured, *tangents: push(tangents)
        return outs, carried, (), lambda residuals, *tangents: push(tangents)

    def transpose(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be transposed")

    def batch(self, *args: Any, **params: Any) -> Any:
        raise NotImplementedError(f"`{self.name}` cannot be mapped over")


_pp_rules: dict[Any, Any] | None = private("jax._src.core", "pp_eqn_rules")
_pp_eqn: Callable[..., Any] | None = private("jax._src.core", "_pp_eqn")


def print_as(primitive: Primitive, name: Callable[[dict[str, Any]], str]) -> None:
    """Has jaxprs print a primitive under a name that its parameters give, and without them."""
    if _pp_rules is None or _pp_eqn is None:
        return

    def rule(eqn: Any, context: Any, settings: Any) -> Any:
        return _pp_eqn(eqn.replace(primitive=Primitive(name(eqn.params)), params={}), context, settings)

    _pp_rules[primitive] = rule


_trace_state_clean: Callable[[], bool] | None = private("jax._src.core", "trace_state_clean")


def no_trace_is_running() -> bool:
    """Whether an operation on concrete values would run at once; False where this JAX cannot tell."""
    return _trace_state_clean is not None and _trace_state_clean()


def is_transposing() -> bool:
    """Whether JAX is in a backward pass here, of a program or of a body of one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "backward_pass" in frame.f_code.co_name and frame.f_globals.get("__name__") == "jax._src.interpreters.ad":
            return True
        frame = frame.f_back
    return False


_trace_context: Callable[[], Any] | None = private("jax._src.config", "trace_context")


def trace_context() -> Any:
    """A hashable of all settings that JAX keys its traces on, our user context too; None where this JAX hides it."""
    return None if _trace_context is None else _trace_context()


def trace_of(tracer: Any) -> Any:
    """The trace that a tracer belongs to, which may be an outer one; None where this JAX does not tell."""
    return getattr(tracer, "_trace", None)


def trace_notes(trace: Any) -> dict[Any, Any] | None:
    """Notes that live as long as a trace; None where there is no place for them."""
    if getattr(jax.config, "jax_check_tracer_leaks", False):
        return None  # it counts what a trace itself holds as a leak
    frame = getattr(trace, "frame", None)
    # Jaxpr traces and their frames have slots; the function that names a frame's variables lives as long.
    holder: Any = trace if frame is None else getattr(frame, "gensym", None)
    notes: dict[Any, Any] | None = getattr(holder, "_shtypes_notes", None)
    if notes is None:
        notes = {}
        try:
            holder._shtypes_notes = notes
        except AttributeError:
            return None
    return notes


def _raise_all(avals: Sequence[Any], lo_values: Sequence[Any]) -> list[Any]:
    rest = iter(lo_values)
    return [a.raise_val(*[next(rest) for _ in a.lo_ty()]) if a.is_high else next(rest) for a in avals]


_installed = False


def install_shims() -> None:
    """Repairs what JAX lacks for typed values, on 0.10.2 to 0.12: around `jax.checkpoint`, in `cond`, in its words.

    Each repair acts only where a typed value is among the operands or results.
    """
    global _installed
    if _installed:
        return
    _installed = True
    from jax.extend.core import primitives

    _shim_remat(primitives.remat_p)
    barrier = private("jax._src.lax.lax", "optimization_barrier_p")
    if barrier is not None:
        _shim_barrier(barrier)
    _shim_jit_shardings()
    _shim_primitives()
    _shim_conversion()
    _shim_custom_lin(private("jax._src.interpreters.ad", "custom_lin_p"))
    closed_call = private("jax._src.core", "closed_call_p")
    if closed_call is not None:
        _shim_closed_call(closed_call)
    conditionals = private("jax._src.lax.control_flow", "conditionals")
    if hasattr(getattr(conditionals, "lax", None), "asarray"):
        conditionals.lax = _KeepsTyped(conditionals.lax)
        _shim_mapped_branches(conditionals)
    _shim_repetition(private("jax._src.interpreters", "batching"))


def _shim_remat(remat_p: Any) -> None:
    """`jax.checkpoint` evaluated outside jit returns its lowered results unraised."""
    original = remat_p.to_lojax

    def to_lojax(*args: Any, jaxpr: Any, **params: Any) -> Any:
        outs = original(*args, jaxpr=jaxpr, **params)
        avals = [v.aval for v in getattr(jaxpr, "jaxpr", jaxpr).outvars]
        return _raise_all(avals, outs) if any(a.is_high for a in avals) else outs

    remat_p.to_lojax = to_lojax


def _shim_primitives() -> None:
    """JAX's own primitives refuse typed values in words of its own; only those that take arrays and nothing else."""
    original: Any = Primitive.is_high

    def is_high(self: Any, *avals: Any, **params: Any) -> bool:
        for aval in avals:
            if aval.is_high and hasattr(aval, "refuse_native") and _takes_arrays_only(self):
                aval.refuse_native("")
        return bool(original(self, *avals, **params))

    Primitive.is_high = is_high  # type: ignore[method-assign]


@functools.cache
def _takes_arrays_only(primitive: Any) -> bool:
    """Whether a primitive's typing is that of JAX's functions of arrays, which raises at once for anything else."""
    cells = getattr(primitive.abstract_eval, "__closure__", None) or ()
    rules = (getattr(cell.cell_contents, "func", None) for cell in cells)
    return any(getattr(rule, "__name__", "").startswith("standard_") for rule in rules)


def _shim_conversion() -> None:
    """A traced value has no data for numpy: that of a typed one is said as for eager ones."""
    tracer: Any = jax.core.Tracer
    original = tracer.__array__

    def to_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        t: Any = jax.typeof(self)
        if t.is_high and hasattr(t, "refuse_native"):
            t.refuse_native("a function of numpy")
        return original(self, *args, **kwargs)

    tracer.__array__ = to_numpy


def _shim_custom_lin(custom_lin_p: Any) -> None:
    """What a `custom_vjp` is in forward mode: JAX says that there is none, but for typed values not in these words."""
    if custom_lin_p is None:
        return

    def to_lojax(*args: Any, **_: Any) -> Any:
        next(t for t in map(jax.typeof, args) if t.is_high).refuse_forward()

    custom_lin_p.is_high = lambda *avals, **_: any(a.is_high for a in avals)
    custom_lin_p.to_lojax = to_lojax


def _shim_barrier(barrier_p: Any) -> None:
    """`optimization_barrier`, which checkpoint puts around its operands, does not know typed values."""

    def to_lojax(*args: Any) -> Any:
        avals = [jax.typeof(x) for x in args]
        lowered = [lo for a, x in zip(avals, args, strict=True) for lo in (a.lower_val(x) if a.is_high else [x])]
        return _raise_all(avals, barrier_p.bind(*lowered))

    barrier_p.is_high = lambda *avals, **_: any(a.is_high for a in avals)
    barrier_p.to_lojax = to_lojax


def _shim_jit_shardings() -> None:
    """`jax.jit` up to 0.11 takes shardings for typed values, and moves their carriers; `jax.reshard` asserts."""
    pjit: Any = importlib.import_module("jax._src.pjit")
    original = getattr(pjit, "pjit_check_aval_sharding", None)
    if original is None:
        return

    def check(shardings: Any, flat_avals: Any, *args: Any, **kwargs: Any) -> Any:
        for sharding, aval in zip(shardings, flat_avals, strict=False):
            if isinstance(sharding, jax.sharding.Sharding) and hasattr(aval, "refuse_sharding"):
                aval.refuse_sharding(by_jit="constraint" not in str(args))
        return original(shardings, flat_avals, *args, **kwargs)

    pjit.pjit_check_aval_sharding = check
    reshard_p: Any = getattr(pjit, "reshard_p", None)
    if reshard_p is not None:
        was_high = reshard_p.is_high

        def is_high(*avals: Any, **params: Any) -> bool:
            for aval in avals:
                if hasattr(aval, "refuse_sharding"):
                    aval.refuse_sharding(by_jit=False)
            return bool(was_high(*avals, **params))

        reshard_p.is_high = is_high


def shim_custom_derivatives(replaced: Callable[[Any, Any], Any]) -> None:
    """Lets JAX's own `custom_vjp` and `custom_jvp` run as another one, call by call.

    Args:
        replaced: From one of them and the arguments of a call to the one to run.
    """
    for kind in (jax.custom_vjp, jax.custom_jvp):
        _shim_call(kind, kind.__call__, replaced)


def _shim_call(kind: Any, original: Any, replaced: Callable[[Any, Any], Any]) -> None:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(replaced(self, (args, kwargs)), *args, **kwargs)

    kind.__call__ = call


def _shim_closed_call(closed_call_p: Any) -> None:
    """`checkpoint` of a `scan` evaluates a closed call that has no lowering for typed values."""

    def to_lojax(*args: Any, call_jaxpr: Any, **_: Any) -> Any:
        return jax.core.eval_jaxpr(call_jaxpr.jaxpr, call_jaxpr.consts, *args)

    closed_call_p.to_lojax = to_lojax


class _KeepsTyped:
    """JAX's module of operations as its `cond` and `switch` see it.

    What every branch passes on as it is goes past the conditional through ``asarray``, which refuses typed values.
    """

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def asarray(self, x: Any) -> Any:
        return x if jax.typeof(x).is_high else self._module.asarray(x)

    def stop_gradient(self, x: Any) -> Any:
        t: Any = jax.typeof(x)
        return t.stopped(x) if t.is_high else self._module.stop_gradient(x)


def _shim_mapped_branches(conditionals: Any) -> None:
    """`cond` under `vmap` with a mapped predicate selects among the results of all branches."""
    for name, order in (("_bcast_select", (1, 0)), ("_bcast_select_n", None)):
        original = getattr(conditionals, name, None)
        if original is not None:
            setattr(conditionals, name, _selecting(original, order))


def _shim_repetition(batching: Any) -> None:
    """`vmap` repeats what is not mapped where a loop, a branch or a result has to be."""
    original = getattr(batching, "broadcast", None)
    if original is None:
        return

    def broadcast(x: Any, size: int, axis: int, *args: Any, **kwargs: Any) -> Any:
        t: Any = jax.typeof(x)
        return t.repeated(x, size, axis) if t.is_high else original(x, size, axis, *args, **kwargs)

    batching.broadcast = broadcast


def _selecting(original: Any, order: tuple[int, ...] | None) -> Any:
    def select(which: Any, *cases: Any) -> Any:
        t: Any = jax.typeof(cases[0])
        if not t.is_high:
            return original(which, *cases)
        return t.selected(which, cases if order is None else [cases[i] for i in order])

    return select


# reading jaxprs


def jaxpr_of(jaxpr: Any) -> Any:
    """The open jaxpr of a closed one; 0.12 has one class for both."""
    return getattr(jaxpr, "jaxpr", jaxpr)


class UserFrame(NamedTuple):
    """An expression of the user's that was being evaluated; one object for each place in a program.

    Attributes:
        file: Its file.
        function: The function that it is in, as Python qualifies it.
        line: The first line of the expression.
        column: Its first column, in bytes.
        end_line: Its last line.
        end_column: The column after its end.
        parameters: The names of the function's positional parameters.
    """

    file: str
    function: str
    line: int
    column: int
    end_line: int
    end_column: int
    parameters: tuple[str, ...]


_is_user_filename: Callable[[str], bool] | None = private("jax._src.source_info_util", "is_user_filename")
_raw_frame_to_frame: Callable[..., Any] | None = private("jax._src.source_info_util", "raw_frame_to_frame")
#: By the id of a code object, which it holds so that the id stays its own.
_frames: Bounded[tuple[Any, UserFrame | None]] = Bounded(1 << 14)


def user_frames(eqn: Any) -> tuple[UserFrame, ...]:
    """The user's frames of an equation, innermost first; none where this JAX hides them."""
    traceback = eqn.source_info.traceback
    if traceback is None or _raw_frame_to_frame is None or _is_user_filename is None:
        return ()
    found = []
    for code, last in zip(*traceback.raw_frames(), strict=True):
        known = _frames.get((id(code), last))
        if known is None:
            known = _frames.put((id(code), last), (code, _user_frame(code, last)))
        if known[1] is not None:
            found.append(known[1])
    return tuple(found)


def _user_frame(code: Any, last: int) -> UserFrame | None:
    if _raw_frame_to_frame is None or _is_user_filename is None or not _is_user_filename(code.co_filename):
        return None
    frame = _raw_frame_to_frame(code, last)
    place = (frame.start_line, frame.start_column, frame.end_line, frame.end_column)
    return UserFrame(frame.file_name, frame.function_name, *place, code.co_varnames[: code.co_argcount])


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand is a literal and not a variable."""
    return hasattr(atom, "val")


def inner_jaxprs(eqn: Any) -> list[tuple[Any, int | None]]:
    """The jaxprs inside an equation, and how often each runs: None where a while loop decides."""
    trips: int | None = 1
    if eqn.primitive.name == "scan":
        trips = int(eqn.params["length"])
    elif eqn.primitive.name == "while":
        trips = None
    found = []
    for value in eqn.params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(jaxpr_of(item), "eqns"):
                found.append((item, trips))
    return found


# what control flow does with its bodies


class UnknownEquationError(Exception):
    """An equation whose parameters are not those of any JAX release that is known here."""


class Scan(NamedTuple):
    """`lax.scan`: ``body(*consts, *carry, *x)`` gives the next carry and a slice of the results."""

    body: Any
    consts: int
    carry: int
    length: int
    reverse: bool
    unroll: int


class While(NamedTuple):
    """`lax.while_loop`: operands are the constants of ``cond``, those of ``body``, and the state."""

    cond: Any
    body: Any
    cond_consts: int
    body_consts: int


class Cond(NamedTuple):
    """`lax.cond` and `lax.switch`: the first operand is the index of the branch."""

    branches: tuple[Any, ...]


class Call(NamedTuple):
    """A body that runs once: jit, custom derivatives (already applied), `jax.checkpoint`.

    Attributes:
        body: Its jaxpr.
        scope: What the body's operations are named under; may be empty.
        barrier: For each operand, whether the compiler must not merge the body's work with work outside.
    """

    body: Any
    scope: str = ""
    barrier: tuple[bool, ...] = ()


Control = Scan | While | Cond | Call

_JIT: Final = {
    *("jaxpr", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh", "name"),
    *("keep_unused", "inline", "compiler_options_kvs"),
}
_CUSTOM: Final = {"call_jaxpr", "num_consts", "symbolic_zeros"}
_SCAN: Final = {"reverse", "length", "jaxpr", "unroll"}

#: The parameters that each primitive has, in the releases from 0.10.2 to 0.12.
_PARAMETERS: Final[dict[str, tuple[set[str], ...]]] = {
    "scan": (_SCAN | {"num_consts", "num_carry"}, _SCAN | {"ft_in", "ft_out"}),
    "while": ({"cond_nconsts", "cond_jaxpr", "body_nconsts", "body_jaxpr"},),
    "cond": ({"branches"},),
    "jit": (_JIT,),
    "closed_call": ({"call_jaxpr"},),
    "core_call": ({"call_jaxpr"},),
    "eval_jaxpr": ({"call_jaxpr"},),
    "custom_jvp_call": (_CUSTOM | {"jvp_jaxpr_fun"},),
    "custom_vjp_call": (_CUSTOM | {"fwd_jaxpr_thunk", "bwd", "out_trees"},),
    "remat2": ({"jaxpr", "prevent_cse", "differentiated", "policy"},),
}


def control(eqn: Any) -> Control | None:
    """What an equation that has bodies does with them, or None if it has none that are known.

    Raises:
        UnknownEquationError: it has the name of one, and other parameters.
    """
    name, params = eqn.primitive.name, eqn.params
    layouts = _PARAMETERS.get(name)
    if layouts is None:
        return None
    if set(params) not in layouts:
        raise UnknownEquationError(f"`{name}` has the parameters {sorted(params)}")
    if name == "scan":
        return Scan(params["jaxpr"], *_scan_counts(params), params["length"], params["reverse"], params["unroll"])
    if name == "while":
        return While(params["cond_jaxpr"], params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"])
    if name == "cond":
        return Cond(tuple(params["branches"]))
    if name == "remat2":
        return Call(params["jaxpr"], "checkpoint", _barrier(params, len(eqn.invars)))
    if name == "jit":
        return Call(params["jaxpr"], f"jit({params['name']})")
    return Call(params["call_jaxpr"])


def _scan_counts(params: Any) -> tuple[int, int]:
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    try:
        consts, carry, _ = (len(list(part)) for part in params["ft_in"].unpack())
    except (AttributeError, TypeError, ValueError) as err:
        raise UnknownEquationError("`scan` divides its operands in another way") from err
    return consts, carry


def _barrier(params: Any, operands: int) -> tuple[bool, ...]:
    """Which operands of a checkpoint pass an optimization barrier: JAX's own rule for lowering it."""
    prevent = params["prevent_cse"]
    flags = tuple(prevent) if isinstance(prevent, (tuple, list)) else (bool(prevent),) * operands
    return flags if params["differentiated"] and any(flags) else ()


def captured(body: Any) -> tuple[Any, ...]:
    """The constants that a body captured."""
    return tuple(getattr(body, "consts", ()))


def equation_context(eqn: Any) -> AbstractContextManager[Any]:
    """The settings under which an equation was traced."""
    manager: AbstractContextManager[Any] = eqn.ctx.manager
    return manager


def has_own_context(eqn: Any) -> bool:
    """Whether an equation was traced to run in a special way (offloaded, or with metadata for XLA)."""
    return any(getattr(eqn.ctx, name, None) for name in ("compute_type", "xla_metadata"))


def bound(eqn: Any, operands: Sequence[Any], **changed: Any) -> list[Any]:
    """An equation's primitive applied to other operands, with some parameters changed."""
    primitive = eqn.primitive
    outs = primitive.bind(*operands, **primitive.get_bind_params({**eqn.params, **changed}))
    return list(outs) if primitive.multiple_results else [outs]
