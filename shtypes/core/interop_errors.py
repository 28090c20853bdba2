"""Errors for typed values that are used as plain arrays: in functions of JAX or numpy, or in libraries."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from shtypes._compat.plain_programs import closed_over
from shtypes._compat.program_mesh import sees_plain
from shtypes.caches import Bounded
from shtypes.context.frames import called_in, frames
from shtypes.context.unsupported import alternative_to
from shtypes.context.user_line import calling_library, frames_of_call, line_of, placed, user_line
from shtypes.core.host import refuse_hidden, without_data
from shtypes.core.meshes import AnyMesh, concrete_mesh, without_devices
from shtypes.core.physical import physical_spec
from shtypes.errors import ShardingTypeError, also
from shtypes.types import ShType, State

#: numpy's functions for operators, with the reflected method of the right operand.
_REFLECTED: Final = {
    "add": "__radd__",
    "subtract": "__rsub__",
    "multiply": "__rmul__",
    "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__",
    "remainder": "__rmod__",
    "divmod": "__rdivmod__",
    "power": "__rpow__",
    "matmul": "__rmatmul__",
    "bitwise_and": "__rand__",
    "bitwise_or": "__ror__",
    "bitwise_xor": "__rxor__",
    "left_shift": "__rlshift__",
    "right_shift": "__rrshift__",
    "less": "__gt__",
    "less_equal": "__ge__",
    "greater": "__lt__",
    "greater_equal": "__le__",
    "equal": "__eq__",
    "not_equal": "__ne__",
}

#: Alternatives to functions that shtypes does not have under the same name.
_INSTEAD: Final[dict[str, tuple[str, ...]]] = {
    "jax.lax.psum": ("sh.all_reduce(x, axis) sums a pending value", "sh.lax.psum in sh.shard_map"),
    "jax.lax.psum_scatter": ("sh.reduce_scatter(x, axis, dim)", "sh.lax.psum_scatter in sh.shard_map"),
    "jax.lax.all_gather": ("sh.all_gather(x, axis)", "sh.lax.all_gather in sh.shard_map"),
    "jax.lax.all_to_all": ("sh.all_to_all(x, axis, dim)", "sh.lax.all_to_all in sh.shard_map"),
    **{
        f"jax.lax.{name}": (f"sh.lax.{name} in sh.shard_map",)
        for name in ("pmean", "pmax", "pmin", "ppermute", "pshuffle", "pswapaxes", "pcast", "pbroadcast")
    },
    "jax.lax.ragged_all_to_all": ("sh.lax.ragged_all_to_all in sh.shard_map",),
    "jax.device_put": ("sh.reshard(x, type)",),
    "jax.pure_callback": ("sh.local_map(lambda x: jax.pure_callback(f, jax.typeof(x), x), out=type), on each shard",),
    "jax.experimental.io_callback": (
        "sh.local_map(lambda x: io_callback(f, jax.typeof(x), x), out=type), on each shard",
    ),
    "jax.debug.print": ("sh.debug.print",),
    "jax.debug.callback": ("sh.debug.callback",),
}
#: JAX's public modules, with the namespaces of their typed functions.
_MODULES: Final = {
    "jax.numpy": (jnp, ""),
    "jax.lax": (jax.lax, ""),
    "jax.nn": (jax.nn, "nn"),
    "jax.numpy.linalg": (jnp.linalg, "linalg"),
    "jax.numpy.fft": (jnp.fft, "fft"),
    "jax.scipy.special": (jax.scipy.special, ""),
    "jax.random": (jax.random, "random"),
}
#: Public names of functions that have other names in JAX's files.
_PUBLIC_NAMES: Final = {
    "debug_print": "jax.debug.print",
    "debug_callback": "jax.debug.callback",
    "pure_callback": "jax.pure_callback",
    "io_callback": "jax.experimental.io_callback",
    "jacrev": "jax.jacrev",
    "jacfwd": "jax.jacfwd",
    "device_put": "jax.device_put",
}


class MissingAttributeError(ShardingTypeError, AttributeError):
    """Raised for a missing attribute of a typed value or its type.

    JAX does many such lookups, so the user's line and library are determined lazily. In an installed library, whose
    lines the user cannot change, another call replaces the first hint.
    """

    of_plain = True

    def __init__(self, what: str, *, why: str, hints: Sequence[str]) -> None:
        super().__init__(what, why=why, hints=hints)
        self._where = ""
        self.name = ""  # suppresses Python's suggestion of another attribute

    @property
    def where(self) -> str:
        """The user's line."""
        return self._where or line_of(self.__traceback__)

    @where.setter
    def where(self, line: str) -> None:
        self._where = line

    @property
    def hints(self) -> tuple[str, ...]:
        """Advice that was neither typed nor priced."""
        running = [frame for frame, _ in traceback.walk_tb(self.__traceback__)]
        instead = _instead_of_library(calling_library(running[::-1]))
        return (*instead, *self._hints[1:]) if instead else self._hints

    @hints.setter
    def hints(self, hints: tuple[str, ...]) -> None:
        self._hints = hints


# users see the public class
MissingAttributeError.__name__ = MissingAttributeError.__qualname__ = ShardingTypeError.__name__
MissingAttributeError.__module__ = ShardingTypeError.__module__


def refuse_plain_use(x: Any, called: str = "") -> NoReturn:
    """Raises for a typed value, or its type, in a function of `jax.numpy`, `jax.lax` or numpy, with alternatives.

    ``called`` is the function, or its description; by default the one that the user called, if it can be determined.
    """
    t = x if isinstance(x, ShType) else jax.typeof(x)
    name = called or _called_function()
    function = f"`{name}`" if name and " " not in name else name or "a function of jax.numpy, jax.lax or numpy"
    hints = [*(_instead_of_library(calling_library()) or _instead(name, t)), *plain_hints(t)]
    if name.startswith("numpy.") or name.endswith(" numpy"):
        hints += [f"outside of traced code, np.asarray({x}) reads the value" for x in _without_sums(t)]
    elif " " in name:
        hints = ["write the typed one first: x * a, not a * x", "sh.from_jax(a) gives the plain one a type"]
    why = "it does not know the value's type"
    if sees_plain():
        why = "a lifted program has the typed value that it closes over as a constant only"
        hints = ["give the value to the lifted function as an argument"]
    kind = also(jax.errors.TracerArrayConversionError) if name.endswith(" numpy") else ShardingTypeError
    error = kind(f"a typed value, {t}, was given to {function}", why=why, hints=hints)
    error.of_plain = True
    if name and " " not in name:
        raise placed(error, f"{name}({t})")
    error.where, error.placed = user_line(), True
    raise error


def plain_hints(t: ShType) -> list[str]:
    """How to convert a value of a type to a plain array, if possible."""
    return [f"{x}.to_jax() gives a plain jax.Array" for x in _without_sums(t)]


def _without_sums(t: ShType) -> list[str]:
    """An expression for a value ``x`` of a type without its pending sums; none for one that varies."""
    return [] if t.axes(State.VARYING) else ["sh.all_reduce(x)" if t.axes(State.UNREDUCED) else "x"]


def _instead(name: str, t: ShType) -> Sequence[str]:
    """Alternatives to a JAX function for a value of a type."""
    module, _, function = name.rpartition(".")
    if name in _INSTEAD:
        collective = f"sh.lax.{function}"
        in_shards = t.axes(State.VARYING) and any(collective in hint for hint in _INSTEAD[name])
        return (collective,) if in_shards else _INSTEAD[name]
    namespace = _MODULES.get(module, (None, ""))[1]
    sh: Any = importlib.import_module("shtypes")
    for path in (f"{namespace}.{function}", function) if namespace else (function,):
        if function and _has(sh, path):
            return (f"sh.{path}", "sh.lift(f) for a function f that is written with JAX's")
    return (alternative_to(function) or "use the function of the same name in shtypes",)


def _instead_of_library(frame: FrameType | None) -> Sequence[str]:
    """What to call instead of an installed library's function, whose frame this is; empty for none."""
    if frame is None:
        return ()
    function = called_in(frame)
    if frame.f_code.co_name in ("init_fn", "update_fn"):  # a transformation's
        return ("sh.optim.lift(tx), whose init and update take typed values",)
    is_public = "." not in frame.f_code.co_qualname  # not a method, or what another function returned
    return (f"sh.lift({function})" if is_public else f"sh.lift(f) for a function f that calls `{function}`",)


def _has(module: Any, path: str) -> bool:
    """Whether a module has a public attribute at a dotted path."""
    for name in path.split("."):
        if name not in dir(module):
            return False
        module = getattr(module, name)
    return True


def _called_function() -> str:
    """The JAX function that the user called, or empty if it cannot be determined."""
    for frame in frames_of_call():
        name = frame.f_code.co_qualname.split(".")[0]
        home = str(frame.f_globals.get("__name__", ""))
        if not home.startswith("jax.") or home.startswith(("jax._src.tree", "jax._src.interpreters")):
            continue
        if name in _PUBLIC_NAMES:
            return _PUBLIC_NAMES[name]
        if isinstance(frame.f_locals.get("self"), jnp.ufunc):  # such as `jax.numpy.add`
            name = frame.f_locals["self"].__name__
        for path, (module, _) in _MODULES.items():
            if name[0] != "_" and callable(getattr(module, name, None)):
                return f"{path}.{name}"
    return ""


#: Stands for a typed value in an operator of a plain array, which then defers to the reflected operator.
_NO_ARRAY: Final = object()


def as_jax_array(x: Any) -> Any:
    """What JAX gets where it converts a typed value to an array (``__jax_array__``): an error, with three exceptions.

    A lifted program's trace converts a captured value. An operator of a plain array gets `_NO_ARRAY`, and so defers to
    our reflected operator. A library that tests which leaves are arrays gets the value itself, which its functions
    refuse.
    """
    if sees_plain():
        return closed_over(x)
    frame: FrameType | None = sys._getframe(1)
    callers = (frame, frame and frame.f_back)  # tracers call it through a lambda
    outside = callers[frame is not None and frame.f_code.co_name == "<lambda>"]
    if outside is not None and not str(outside.f_globals.get("__name__", "")).startswith("jax."):
        return x
    for frame in callers:
        if frame is not None and frame.f_code.co_name.startswith("_operator_"):
            if type(frame.f_locals.get("self")) is not type(x):
                return _NO_ARRAY
            refuse_plain_use(x, "an operator of a traced plain array")  # no reflected call for operands of one class
    refuse_plain_use(x)


def refuse_lowering(x: Any) -> Any:
    """The plain array's type, for a plain program being traced that captures the value; an error to JAX's lowering."""
    if sees_plain():
        return jax.core.ShapedArray(x.shape, x.dtype)
    for frame in frames(1):
        if frame.f_globals.get("__name__") != "jax._src.interpreters.partial_eval":
            break
        if getattr(getattr(frame.f_locals.get("eqn"), "primitive", None), "name", "") == "custom_lin":
            jax.typeof(x).refuse_forward()
    refuse_plain_use(x)


def as_numpy_ufunc(x: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """``__array_ufunc__``: applies numpy's operators by reflection, and refuses its other functions."""
    reflected = _REFLECTED.get(ufunc.__name__)
    if reflected is not None and method == "__call__" and not options and inputs[-1] is x is not inputs[0]:
        return getattr(x, reflected)(inputs[0])
    refuse_plain_use(x, f"numpy.{ufunc.__name__}")


def refuse_setting(x: Any, key: Any, value: Any) -> NoReturn:
    """Refuses an assignment to a part of a value, and shows the alternative."""
    del value
    index = "..." if key is Ellipsis else f"{key!r:.40}" if isinstance(key, int) else "i"
    error = ShardingTypeError(
        f"a typed value, {jax.typeof(x)}, does not change in place", hints=[f"x = x.at[{index}].set(value)"]
    )
    raise placed(error, f"x[{index}] = value")


#: Attributes of jax.Array that a typed value does not have, because its type has its sharding.
OF_ARRAYS: Final = (
    *("device", "to_device", "flat", "byteswap", "format", "platform", "traceback", "unsafe_buffer_pointer"),
    *("__dlpack__", "__array_namespace__"),
)


#: Attributes of the physical array, except of an unreduced or varying value; refused to JAX, which would take it for a
#: plain array.
OF_PHYSICAL: Final = (
    *("addressable_data", "addressable_shards", "committed", "devices", "global_shards"),
    "on_device_size_in_bytes",
)


#: The purpose of orbax's accesses, for errors.
IN_CHECKPOINTS: Final = "be in a checkpoint"


#: The packages that would take an object with a sharding for a plain array.
FOR_PLAIN: Final = ("jax", "shtypes")


def reading_package() -> str:
    """The package of the code that reads a property, in the caller's caller."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0]


def sharding_of(t: ShType, what: str = "have a `sharding`", mesh: AnyMesh | None = None) -> NamedSharding:
    """The sharding of values of a type; on an abstract mesh if there are no devices.

    Its devices are by default those of the context, or the last ones used with the mesh. No sharding represents an
    unreduced or varying type: an error then says that it cannot ``what``.
    """
    try:
        refuse_hidden(t, what)
    except ShardingTypeError as error:
        raise placed(error, "sharding") from None
    try:
        devices: Any = mesh or concrete_mesh(t.mesh)
    except ShardingTypeError:
        devices = without_devices(t.mesh)
    return NamedSharding(devices, physical_spec(t))


def sharding_of_value(x: Any, what: str = "have a `sharding`") -> NamedSharding:
    """The sharding of a typed value, on its devices; see `sharding_of`."""
    sharding = None if x.data is None else x.data.sharding
    return sharding_of(x.type, what, sharding.mesh if isinstance(sharding, NamedSharding) else None)


def attribute(name: str) -> property:
    """A property of the physical array; refused for an unreduced or varying value, and to JAX."""

    def answer(x: Any) -> Any:
        package = reading_package()
        if package in FOR_PLAIN:
            refuse_attribute(x, name)
        try:
            if x.data is None:
                raise without_data(x.type)
            refuse_hidden(x.type, IN_CHECKPOINTS if package == "orbax" else f"have `{name}`")
        except ShardingTypeError as error:
            raise placed(error, name) from None
        return getattr(x.data, name)

    return property(answer)


def refused_attribute(name: str) -> property:
    """An attribute of arrays that a typed value does not have."""
    return property(lambda x: refuse_attribute(x, name))


def refuse_attribute(x: Any, name: str) -> NoReturn:
    """Raises for an attribute of arrays that a typed value does not have."""
    t = jax.typeof(x)
    what, hints = _refusals.get((t.exact, name)) or _refusals.put((t.exact, name), _refusal(t, name))
    raise MissingAttributeError(what, why="its type says how it lies on the devices", hints=hints)


#: Cached refusals: JAX looks up missing attributes of a jitted function's arguments more than once.
_refusals: Final[Bounded[tuple[str, list[str]]]] = Bounded()


def _refusal(t: ShType, name: str) -> tuple[str, list[str]]:
    hints = [h.replace(" gives a plain jax.Array", f".{name}") for h in plain_hints(t)]
    return f"a typed value, {t}, has no `{name}`", ["x.type", *hints]
