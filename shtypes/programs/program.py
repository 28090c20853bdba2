"""A typed function as a `jax.jit` of plain arrays: what `jit` keeps for one structure and one set of types."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import jax
from jax.tree_util import tree_unflatten

from shtypes._compat import no_trace_is_running
from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes.context.signature_errors import name_of
from shtypes.context.user_line import placed
from shtypes.core.array import Array, wrap, wrap_all
from shtypes.core.jax_type import HiShType, without_data_error
from shtypes.core.meshes import concrete_mesh, jax_mesh
from shtypes.core.physical import physical_shape, physical_spec, put_right
from shtypes.core.region import Lowering
from shtypes.core.region_plan import UnknownReleaseError, UnsupportedError
from shtypes.errors import ShardingTypeError
from shtypes.programs.arguments import Arguments, Roles
from shtypes.traced.merging import merged


class Form(NamedTuple):
    """The form of the results that the user sees."""

    tree: Any  # their structure
    types: tuple[HiShType | None, ...]  # the type of each leaf; None for a plain one
    plain: tuple[int, ...]  # which leaves those are
    empty: tuple[int, ...]  # which typed leaves have no elements
    one: bool  # whether they are one typed value with elements, and nothing around it


class _Results:
    """Plain arrays that say what the user is to see of them."""

    __slots__ = ("data", "form")

    def __init__(self, form: Form, data: Sequence[Any]) -> None:
        self.form, self.data = form, data

    def typed(self) -> Any:
        """The results as the user sees them."""
        tree, leaf_types, plain, empty, one = self.form
        if one:
            return wrap(leaf_types[0], self.data[0])  # type: ignore[arg-type]
        values = wrap_all(leaf_types, self.data)
        for i in plain:
            values[i] = self.data[i]
        for i in empty:
            values[i].data = put_right(values[i].type, self.data[i])
        return tree_unflatten(tree, values)


class _Captured:
    """The arrays that a function captured, as an argument. Another set of arrays is another trace.

    Equality is identity of the arrays; the set holds them, so that no others can take their place.
    """

    __slots__ = ("_hash", "arrays")

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = tuple(arrays)
        self._hash = hash(tuple(map(id, self.arrays)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Captured) and [*map(id, self.arrays)] == [*map(id, other.arrays)]

    def __hash__(self) -> int:
        return self._hash


class _Constants:
    """Captured arrays with the data to use for them: their data, or JAX's tracers."""

    __slots__ = ("data", "origin")

    def __init__(self, origin: _Captured, data: Sequence[Any]) -> None:
        self.origin, self.data = origin, data


# What comes out of `jax.jit` must flatten to the arrays that went in, or JAX leaves its fast path.
jax.tree_util.register_pytree_node(_Results, lambda r: (r.data, r.form), _Results)
jax.tree_util.register_pytree_node(_Constants, lambda c: (c.data, c.origin), _Constants)


class _RecaptureError(Exception):
    """The function captures other arrays than those that it was passed."""

    def __init__(self, captured: _Constants | None) -> None:
        super().__init__("please report this")
        self.captured = captured


class Program:
    """A function for arguments of one structure and of certain types.

    Plain arguments may still differ in shape, and the context may change: then JAX traces ``fn`` again.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        plain: Any,
        roles: Roles,
        options: dict[str, Any],
        *,
        tree: Any,
        leaf_types: list[HiShType | None],
        static: tuple[Any, ...],
        mode: str,
    ) -> None:
        self.tree, self.leaf_types, self.static, self.mode = tree, leaf_types, static, mode
        self._latest = (
            leaf_types  # of the last call: equal types may be other objects, and identical ones compare at once
        )
        self.left_to_jax = mode == "off"
        self._f, self._plain, self._roles = f, plain, roles
        self._constants: _Constants | None = None
        everything = range(len(leaf_types))
        flags = roles.donated(tree_unflatten(tree, list(everything)), static) if roles.any_donated else []
        #: The leaves whose memory the results may take.
        self.donated: Final = frozenset(i for i, flag in zip(everything, flags, strict=False) if flag)

        def low(constants: _Constants | None, *data: Any) -> Any:
            return self._low(constants, data)

        low.__name__ = low.__qualname__ = name_of(f) or "f"
        self.fn: Any = jax.jit(low, donate_argnums=[1 + i for i in self.donated], **options)

    def leave_to_jax(self, why: UnsupportedError) -> None:
        """From now on the program is JAX's to lower, op by op; an unsupported release of JAX is reported."""
        self.left_to_jax = True
        if isinstance(why, UnknownReleaseError):
            said = f"shtypes does not know how this release of JAX writes the program: {why}"
            warnings.warn(f"{said}. It runs op by op, which is right but slower.", RuntimeWarning, stacklevel=2)

    def answers(self, tree: Any, leaf_types: list[Any], static: tuple[Any, ...], mode: str) -> bool:
        """Whether a call is one for this program."""
        if mode != self.mode or leaf_types != self._latest or tree != self.tree or static != self.static:
            return False
        self._latest = leaf_types
        return True

    def data_of(self, call: Arguments, static: tuple[Any, ...], mode: str) -> list[Any] | None:
        """The physical arrays of a call that this program answers, if that takes no flattening; else None."""
        return None if mode != self.mode or static != self.static else self.physical_arrays(call)

    def physical_arrays(self, call: Arguments) -> list[Any] | None:
        """The physical arrays of a call without static arguments, if its structure and types are this program's."""
        try:
            leaves = None if self.read is None else self.read(call)
        except KeyError:  # a dict with other keys
            return None
        if leaves is None:
            return None
        leaf_types: list[HiShType | None] = [x.type for x in leaves if type(x) is Array]
        if leaf_types != self._latest:
            return None
        self._latest = leaf_types
        return [x.data for x in leaves]

    @functools.cached_property
    def read(self) -> Callable[[Arguments], list[Any] | None] | None:
        """Made when the program is called again; only for typed leaves, which look like nothing else."""
        return reader(self.tree) if None not in self.leaf_types else None

    def __call__(self, data: list[Any]) -> Any:
        """The results for the physical arrays and plain arrays of a call."""
        constants = self._constants
        try:
            results = self.fn(constants, *data)
            return results.typed() if type(results) is _Results else results  # `typed`, without a call
        except _RecaptureError as err:
            constants = err.captured
        for x in () if constants is None else constants.origin.arrays:
            if type(x) is Array and x.data is None:
                raise placed(without_data_error(x.type), f"data of {x.type}, which the function captures")
        return typed(self._again(self.fn, constants, data))

    def trace(self, data: list[Any]) -> tuple[Any, Callable[[list[Any]], tuple[Any, ...]]]:
        """JAX's trace of the lowered function, and what turns the data of a call into its arguments."""
        data = [specimen(x, t) for x, t in zip(data, self.leaf_types, strict=True)]
        constants: _Constants | None = None
        try:
            traced = self.fn.trace(constants, *data)
        except _RecaptureError as err:
            constants = err.captured
            traced = self._again(self.fn.trace, constants, data)
        return traced, lambda data: (constants, *data)

    def _again(self, run: Callable[..., Any], constants: _Constants | None, data: list[Any]) -> Any:
        """A call or a trace with the arrays that the function captures; later calls start with them."""
        try:
            result = run(constants, *data)
        except _RecaptureError:
            raise UnsupportedError("it captures other arrays each time that it is traced") from None
        self._constants = constants
        return result

    def _low(self, constants: _Constants | None, data: Sequence[Any]) -> Any:
        """The program on plain arrays; runs while JAX traces it."""
        for x, t in zip(data, self.leaf_types, strict=True):
            if x is None and t is not None:
                raise placed(without_data_error(t), f"data of {t}")
        if no_trace_is_running():  # under jax.disable_jit
            args, kwargs = self.call(x if t is None else wrap(t, x) for t, x in zip(self.leaf_types, data, strict=True))
            return self._f(*args, **kwargs)
        args, kwargs = self.call(x if t is None else wrap(t, None) for t, x in zip(self.leaf_types, data, strict=True))
        program = self._plain.trace(*args, **kwargs)
        constants_of_program = captured(program.jaxpr)
        arrays = [x for x in constants_of_program if isinstance(x, (Array, jax.Array))]
        if _Captured(arrays) != (_Captured(()) if constants is None else constants.origin):
            data = [specimen(x.data, x.type) if type(x) is Array else x for x in arrays]
            raise _RecaptureError(_Constants(_Captured(arrays), data) if arrays else None)
        data_of_constants = iter(() if constants is None else constants.data)
        values = [next(data_of_constants) if isinstance(x, (Array, jax.Array)) else x for x in constants_of_program]
        outs = Lowering(one_region=self.mode == "require").lower(merged(program.jaxpr), values, data)
        avals = [v.aval for v in jaxpr_of(program.jaxpr).outvars]
        types = tuple(t if type(t) is HiShType else None for t in avals)
        plain = tuple(i for i, t in enumerate(types) if t is None)
        empty = tuple(i for i, t in enumerate(types) if t is not None and t.size == 0)
        tree: Any = jax.tree.structure(program.out_info)
        one = tree == LEAF and not plain and not empty
        return _Results(Form(tree, types, plain, empty, one), outs)

    def call(self, leaves: Iterable[Any]) -> Arguments:
        """The arguments of the user's function."""
        return self._roles.join(tree_unflatten(self.tree, list(leaves)), self.static)


def typed(results: Any) -> Any:
    """The results of a program's ``fn`` as typed values."""
    return results.typed() if type(results) is _Results else results  # under jax.disable_jit it was the user's function


def specimen(x: Any, t: HiShType | None) -> Any:
    """A leaf's stand-in in a trace: its data, or the shape and sharding of its physical array."""
    if t is None or x is not None:
        return x
    try:
        mesh: Any = concrete_mesh(t.mesh)
    except ShardingTypeError:
        mesh = jax_mesh(t.mesh)
    return jax.ShapeDtypeStruct(physical_shape(t), t.dtype, sharding=jax.NamedSharding(mesh, physical_spec(t)))


# trees of arguments


#: The structure of one leaf.
LEAF: Final = jax.tree.structure(0)


def reader(tree: Any) -> Callable[[Any], list[Any] | None] | None:
    """A function that lists the leaves of a pytree of structure ``tree``, in the order of `jax.tree.leaves`.

    It is one expression, such as ``[x0["a"], x0["b"]] if type(x0 := call) is dict and len(x0) == 2 else None``. Of a
    value of another structure it gives None or raises a KeyError. It takes anything for a leaf: look at those.
    """
    checks: list[str] = []
    leaves: list[str] = []
    names: dict[str, Any] = {}  # the classes and keys

    def read(node: Any, value: str) -> bool:
        kind, keys = node.node_data() or (object, None)  # a leaf
        if node == LEAF:
            leaves.append(value)
        elif kind is type(None):
            checks.append(f"{value} is None")
        elif kind in (dict, list, tuple) or _is_named_tuple(kind):
            children, x = node.children(), f"x{len(checks)}"
            checks.append(f"type({x} := {value}) is kind_{x} and len({x}) == {len(children)}")
            names[f"kind_{x}"] = kind
            names.update({f"key_{x}_{i}": key for i, key in enumerate(keys or range(len(children)))})
            return all(read(child, f"{x}[key_{x}_{i}]") for i, child in enumerate(children))
        else:
            return False
        return True

    if not read(tree, "call"):
        return None
    read_leaves: Callable[[Any], list[Any] | None] = eval(
        f"lambda call: [{', '.join(leaves)}] if {' and '.join(checks) or 'True'} else None", names
    )
    return read_leaves


def _is_named_tuple(kind: type) -> bool:
    """Whether a class is a named tuple that JAX opens as one, and not as a node with other rules."""
    places = [*range(len(getattr(kind, "_fields", ())))]
    return issubclass(kind, tuple) and hasattr(kind, "_make") and jax.tree.leaves(kind._make(places)) == places
