"""`Program`: a typed function as a `jax.jit` of plain arrays, for one structure and one set of types."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import jax
from jax.tree_util import tree_unflatten

from shtypes._compat import no_trace_is_running
from shtypes._compat.jaxprs import captured, jaxpr_of
from shtypes._compat.tracing import refuse_closure
from shtypes._compat.typed_once import inlined
from shtypes.context.signature_errors import as_numbers, name_of
from shtypes.context.user_line import placed
from shtypes.core.array import Array, wrap, wrap_all
from shtypes.core.jax_type import HiShType, without_data_error
from shtypes.core.meshes import concrete_mesh, jax_mesh
from shtypes.core.physical import fix_empty_shards, physical_shape, physical_spec
from shtypes.core.region import Lowering
from shtypes.core.region_plan import UnknownReleaseError, UnsupportedError
from shtypes.errors import ShardingTypeError
from shtypes.traced.merging import merged

Indices = int | Sequence[int] | None
Names = str | Sequence[str] | None

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Roles:
    """The static and the donated arguments of one function.

    As in `jax.jit`, if only positions or only names are passed, the others are inferred from the signature.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnums: Indices = None,
        static_argnames: Names = None,
        donate_argnums: Indices = None,
        donate_argnames: Names = None,
    ) -> None:
        parameters = _parameter_names(f)
        self._static = _nums_and_names("static", parameters, static_argnums, static_argnames)
        self._donated = _nums_and_names("donate", parameters, donate_argnums, donate_argnames)
        self.any_static = any(self._static)
        self.any_donated = any(self._donated)

    def split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Arguments, tuple[Any, ...]]:
        """Splits the arguments into dynamic ones, and a hashable tuple of (key, class, value) of the static ones."""
        places, names = self._places(self._static[0], len(args)), self._static[1]
        dynamic = tuple(x for i, x in enumerate(args) if i not in places)
        named = {k: x for k, x in kwargs.items() if k not in names}
        static_values = {i: args[i] for i in places} | {k: x for k, x in kwargs.items() if k in names}
        return (dynamic, named), tuple((k, type(x), x) for k, x in static_values.items())

    def join(self, call: Arguments, static: tuple[Any, ...]) -> Arguments:
        """The inverse of `split`."""
        args, kwargs = list(call[0]), dict(call[1])
        for key, _, value in sorted((s for s in static if isinstance(s[0], int)), key=lambda s: s[0]):
            args.insert(key, value)
        return tuple(args), kwargs | {k: x for k, _, x in static if isinstance(k, str)}

    def donated(self, call: Arguments, static: tuple[Any, ...]) -> list[bool]:
        """For each leaf of a call without static arguments, whether it is donated."""
        args, kwargs = self.join(call, static)
        places, names = self._places(self._donated[0], len(args)), self._donated[1]
        static_values = {key for key, _, _ in static}
        flags = [(i in places, x) for i, x in enumerate(args) if i not in static_values]
        flags += [(k in names, kwargs[k]) for k in sorted(kwargs) if k not in static_values]
        return [flag for flag, x in flags for _ in jax.tree.leaves(x)]

    @staticmethod
    def _places(indices: Sequence[int], count: int) -> list[int]:
        return sorted({i + count if i < 0 else i for i in indices if -count <= i < count})


def _parameter_names(f: Callable[..., Any]) -> list[str]:
    """The parameters' names by position, "" for a positional-only or keyword-only one; empty without a signature."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name if p.kind is p.POSITIONAL_OR_KEYWORD else "" for p in parameters]


def _nums_and_names(
    kind: str, parameters: Sequence[str], nums: Indices, names: Names
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names; if one is None, it is inferred from the other."""
    indices = None if nums is None else as_numbers("jit", f"{kind}_argnums", nums)
    keys = None if names is None else (names,) if isinstance(names, str) else tuple(names)
    if keys is None:
        places = {i % len(parameters) for i in indices or () if -len(parameters) <= i < len(parameters)}
        keys = tuple(name for i, name in enumerate(parameters) if name and i in places)
    elif indices is None:
        indices = tuple(i for i, name in enumerate(parameters) if name in keys)
    return indices or (), keys


class Form(NamedTuple):
    """The structure and types of the results."""

    tree: Any
    types: tuple[HiShType | None, ...]  # of each leaf; None for a plain one
    plain: tuple[int, ...]  # the indices of plain leaves
    empty: tuple[int, ...]  # the indices of typed leaves without elements
    is_single: bool  # whether the result is one typed value with elements


class _Results:
    """The plain arrays of the results, with their form."""

    __slots__ = ("data", "form")

    def __init__(self, form: Form, data: Sequence[Any]) -> None:
        self.form, self.data = form, data

    def typed(self) -> Any:
        """Converts them to the results that the user sees."""
        tree, leaf_types, plain, empty, is_single = self.form
        if is_single:
            return wrap(leaf_types[0], self.data[0])  # type: ignore[arg-type]
        values = wrap_all(leaf_types, self.data)
        for i in plain:
            values[i] = self.data[i]
        for i in empty:
            values[i].data = fix_empty_shards(values[i].type, self.data[i])
        return tree_unflatten(tree, values)


class _Captured:
    """The arrays that a function captures, in the key of JAX's trace cache; compared by identity."""

    __slots__ = ("_hash", "arrays")

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = tuple(arrays)
        self._hash = hash(tuple(map(id, self.arrays)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Captured) and [*map(id, self.arrays)] == [*map(id, other.arrays)]

    def __hash__(self) -> int:
        return self._hash


class _Constants:
    """Captured arrays with the data to use for them, which may be traced."""

    __slots__ = ("data", "origin")

    def __init__(self, origin: _Captured, data: Sequence[Any]) -> None:
        self.origin, self.data = origin, data


# As pytrees, since JAX's fast path needs results that flatten to arrays.
jax.tree_util.register_pytree_node(_Results, lambda r: (r.data, r.form), _Results)
jax.tree_util.register_pytree_node(_Constants, lambda c: (c.data, c.origin), _Constants)


class _RecaptureError(Exception):
    """Raised in a trace whose function captures other arrays than those passed."""

    def __init__(self, captured: _Constants | None) -> None:
        super().__init__("please report this")
        self.captured = captured


class Program:
    """A function specialized to a structure and types of arguments.

    JAX traces ``fn`` again for other shapes of plain arguments and in other contexts.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        jax_jit: Any,
        roles: Roles,
        options: dict[str, Any],
        tree: Any,
        leaf_types: list[HiShType | None],
        static: tuple[Any, ...],
        mode: str,
    ) -> None:
        self.tree, self.leaf_types, self.static, self.mode = tree, leaf_types, static, mode
        #: The types of the last call: equal types may be other objects, and identical ones compare at once.
        self._latest = leaf_types
        self.left_to_jax = mode == "off"
        self._f, self._jax_jit, self._roles = f, jax_jit, roles
        self._constants: _Constants | None = None
        leaves = range(len(leaf_types))
        flags = roles.donated(tree_unflatten(tree, list(leaves)), static) if roles.any_donated else []
        #: The indices of donated leaves.
        self.donated: Final = frozenset(i for i, flag in zip(leaves, flags, strict=False) if flag)

        def on_physical_arrays(constants: _Constants | None, *data: Any) -> Any:
            return self._on_physical_arrays(constants, data)

        on_physical_arrays.__name__ = on_physical_arrays.__qualname__ = name_of(f) or "f"
        self.fn: Any = jax.jit(on_physical_arrays, donate_argnums=[1 + i for i in self.donated], **options)

    def leave_to_jax(self, why: UnsupportedError) -> None:
        """Lowers the program op by op from now on; warns if the reason is an unknown release of JAX."""
        self.left_to_jax = True
        if isinstance(why, UnknownReleaseError):
            message = f"shtypes does not know how this release of JAX writes the program: {why}"
            warnings.warn(f"{message}. It runs op by op, which is right but slower.", RuntimeWarning, stacklevel=2)

    def matches(self, tree: Any, leaf_types: list[Any], static: tuple[Any, ...], mode: str) -> bool:
        """Whether a call has this program's structure, types, static arguments and mode."""
        if mode != self.mode or leaf_types != self._latest or tree != self.tree or static != self.static:
            return False
        self._latest = leaf_types
        return True

    def physical_arrays(self, call: Arguments) -> list[Any] | None:
        """The physical arrays of a call without static arguments; None if its structure or types do not match."""
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
        """`reader` of the structure; None if some leaves are plain, which it cannot tell from containers."""
        return reader(self.tree) if None not in self.leaf_types else None

    def __call__(self, data: list[Any]) -> Any:
        """Calls the program with physical and plain arrays."""
        constants = self._constants
        if self.donated:
            self._check_donated(data)
        try:
            results = self.fn(constants, *data)
            return results.typed() if type(results) is _Results else results  # `typed`, without a call
        except _RecaptureError as err:
            constants = err.captured
        for x in () if constants is None else constants.origin.arrays:
            if type(x) is Array and x.data is None:
                raise placed(without_data_error(x.type), f"data of {x.type}, which the function captures")
        return typed(self._run_with(self.fn, constants, data))

    def _check_donated(self, data: list[Any]) -> None:
        """Refuses donated memory that is not there, or is passed twice: XLA's CPU client ends the process for these.

        Raises:
            ShardingTypeError: a donated value was deleted, or another argument has the same physical array.
        """
        times = Counter(map(id, data))
        for i in self.donated:
            if not isinstance(data[i], jax.Array):
                continue
            name, t = self.fn.__name__, self.leaf_types[i] or jax.typeof(data[i])
            if data[i].is_deleted():
                error = ShardingTypeError(
                    f"`{name}` is given a value of type {t} that was deleted",
                    why="it was donated before: the results of that call are where it was",
                    hints=["use the results in place of what was donated: state = step(state)"],
                )
                raise placed(error, f"{name}({t})")
            if times[id(data[i])] > 1:
                error = ShardingTypeError(
                    f"`{name}` is given a value of type {t} twice, and may donate it",
                    why="both arguments are one array on the devices, whose memory a result would take",
                    hints=["copy.deepcopy(x) for one of them"],
                )
                raise placed(error, f"{name}({t})")

    def trace(self, data: list[Any]) -> tuple[Any, Callable[[list[Any]], tuple[Any, ...]]]:
        """JAX's trace of ``fn``, and a function from the data of a call to its arguments."""
        data = [stand_in(x, t) for x, t in zip(data, self.leaf_types, strict=True)]
        constants: _Constants | None = None
        try:
            traced = self.fn.trace(constants, *data)
        except _RecaptureError as err:
            constants = err.captured
            traced = self._run_with(self.fn.trace, constants, data)
        return traced, lambda data: (constants, *data)

    def _run_with(self, run: Callable[..., Any], constants: _Constants | None, data: list[Any]) -> Any:
        """Calls ``run`` with captured arrays, and saves these for later calls."""
        try:
            result = run(constants, *data)
        except _RecaptureError:
            raise UnsupportedError("it captures other arrays each time that it is traced") from None
        self._constants = constants
        return result

    def _on_physical_arrays(self, constants: _Constants | None, data: Sequence[Any]) -> Any:
        """The function that JAX traces: lowers the program, and evaluates it on plain arrays."""
        for x, t in zip(data, self.leaf_types, strict=True):
            if x is None and t is not None:
                raise placed(without_data_error(t), f"data of {t}")
        if no_trace_is_running():  # under jax.disable_jit
            args, kwargs = self.call(x if t is None else wrap(t, x) for t, x in zip(self.leaf_types, data, strict=True))
            return self._f(*args, **kwargs)
        args, kwargs = self.call(x if t is None else wrap(t, None) for t, x in zip(self.leaf_types, data, strict=True))
        program = self._jax_jit.trace(*args, **kwargs)
        try:
            refuse_closure(program)
        except ShardingTypeError as error:
            raise placed(error, self.fn.__name__) from None
        constants_of_program = captured(program.jaxpr)
        arrays = [x for x in constants_of_program if isinstance(x, (Array, jax.Array))]
        if _Captured(arrays) != (_Captured(()) if constants is None else constants.origin):
            data = [stand_in(x.data, x.type) if type(x) is Array else x for x in arrays]
            raise _RecaptureError(_Constants(_Captured(arrays), data) if arrays else None)
        data_of_constants = iter(() if constants is None else constants.data)
        values = [next(data_of_constants) if isinstance(x, (Array, jax.Array)) else x for x in constants_of_program]
        outs = Lowering(one_region=self.mode == "require").lower(merged(inlined(program.jaxpr)), values, data)
        types = tuple(v.aval if type(v.aval) is HiShType else None for v in jaxpr_of(program.jaxpr).outvars)
        plain = tuple(i for i, t in enumerate(types) if t is None)
        empty = tuple(i for i, t in enumerate(types) if t is not None and t.size == 0)
        tree: Any = jax.tree.structure(program.out_info)
        is_single = tree == LEAF and not plain and not empty
        return _Results(Form(tree, types, plain, empty, is_single), outs)

    def call(self, leaves: Iterable[Any]) -> Arguments:
        """The arguments of the user's function, for these leaves."""
        return self._roles.join(tree_unflatten(self.tree, list(leaves)), self.static)


def typed(results: Any) -> Any:
    """Converts the results of a program's ``fn`` to those that the user sees."""
    return results.typed() if type(results) is _Results else results  # under jax.disable_jit they are these already


def stand_in(x: Any, t: HiShType | None) -> Any:
    """The data of a leaf or, without data, the shape and sharding of its physical array, for a trace."""
    if t is None or x is not None:
        return x
    try:
        mesh: Any = concrete_mesh(t.mesh)
    except ShardingTypeError:
        mesh = jax_mesh(t.mesh)
    return jax.ShapeDtypeStruct(physical_shape(t), t.dtype, sharding=jax.NamedSharding(mesh, physical_spec(t)))


#: The structure of one leaf.
LEAF: Final = jax.tree.structure(0)


def reader(tree: Any) -> Callable[[Any], list[Any] | None] | None:
    """A fast `jax.tree.leaves` for pytrees of structure ``tree``; None if that has classes that it does not know.

    It is one expression, such as ``[x0["a"], x0["b"]] if type(x0 := call) is dict and len(x0) == 2 else None``. For
    another structure it returns None or raises a KeyError; but leaves may be anything, and must be checked.
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
    """Whether JAX flattens a class as a named tuple, not by a registered rule."""
    places = [*range(len(getattr(kind, "_fields", ())))]
    return issubclass(kind, tuple) and hasattr(kind, "_make") and jax.tree.leaves(kind._make(places)) == places
