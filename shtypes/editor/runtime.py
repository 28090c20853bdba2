"""Types a call by running the library on shape-only values. The first call imports JAX.

A type checker's process must survive every call. So any error but `ShardingTypeError` makes the answer undetermined,
and a call that takes too much time or memory, because stand-in sizes are large, is aborted.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib import import_module
from types import FunctionType
from typing import Any, Final, NamedTuple

from shtypes.api import places
from shtypes.context import settings
from shtypes.context.settings import Settings
from shtypes.editor.guards import TooLong, bounded
from shtypes.editor.text_evaluator import Undetermined
from shtypes.errors import ShardingTypeError
from shtypes.ops.table import OPS
from shtypes.types import ShType, State
from shtypes.types.dtypes import is_key
from shtypes.types.mesh import Mesh

#: The maximum processor time of a call in seconds; and with the search for fixes, which makes many calls.
_SECONDS: Final = 2.0
_SECONDS_WITH_FIXES: Final = 5.0


#: Errors about values without data, which the running program may have.
_NO_DATA: Final = re.compile("only a type|has no devices|must know the values")


class Fields(NamedTuple):
    """An instance of a class, as a pytree of its fields' values."""

    cls: Hashable  # the type checker's class
    values: dict[str, Any]  # the values, or their types


class Function(NamedTuple):
    """A function that a call returns, such as the pullback of a `vjp`."""

    arguments: tuple[Any, ...]  # their types
    result: Any  # the type of its result


def map_answer(f: Callable[[Any], Any], answer: Any) -> Any:
    """An answer of the runtime with each leaf changed, in lists, tuples and results of functions."""
    if type(answer) in (tuple, list):
        return type(answer)(map_answer(f, item) for item in answer)
    if isinstance(answer, Function):
        return Function(map_answer(f, answer.arguments), map_answer(f, answer.result))
    return f(answer)


class UnknownArgument(NamedTuple):
    """An argument that only the running program knows, with candidates for it.

    The call is typed with each candidate; if all accepted ones have one result type, that is the type.
    """

    values: tuple[Any, ...]


def unknown_number(kind: str) -> UnknownArgument:
    """A Python number whose value is unknown."""
    return UnknownArgument(_NUMBERS[kind])


_NUMBERS: Final[Mapping[str, tuple[Any, ...]]] = {
    "bool": (False, True),
    "int": (0, 1, 2, 3, 4, 5, -1, -2, 48),
    "float": (0.5, 0.25),
    "complex": (0.5j, 1 + 1j),
}
_KINDS: Final = dict(zip("bifc", _NUMBERS, strict=True))  # numpy's letters
_MOST_VALUES: Final = 100


def public() -> Any:
    """The package, as users import it."""
    return import_module("shtypes")


@functools.cache
def _names() -> Mapping[str, str]:
    """The public name of each function in the package's modules."""
    names = {f"{op.module}.{op.attr}": op.name for op in OPS.values()}
    return names | {f"{module}.{attr}": name for name, module, attr in places()}


@functools.cache
def function(fullname: str) -> Any:
    """The public object with a full name in the package, or None."""
    short = fullname.removeprefix("shtypes.").removeprefix("namespaces.")
    module, _, attr = fullname.rpartition(".")
    if attr.startswith("_"):
        return None
    with contextlib.suppress(AttributeError):
        return functools.reduce(getattr, _names().get(fullname, short).split("."), public())
    with contextlib.suppress(ImportError):
        return getattr(import_module(module), attr, None)
    return None


@functools.cache
def library_value(name: str) -> Any:
    """The object with a full name in JAX, numpy or the package, or None."""
    if name.startswith("shtypes."):
        return function(name)
    module, _, attr = name.rpartition(".")
    while module:
        try:
            value_there = functools.reduce(getattr, attr.split("."), import_module(module))
        except (ImportError, AttributeError):
            module, _, last = module.rpartition(".")
            attr = f"{last}.{attr}"
        else:
            return value_there
    return None


def value(t: ShType) -> Any:
    """A shape-only value of a type."""
    return public().abstract_array(t)


def value_in_trace(t: ShType) -> Any:
    """A value of a type in a trace: a constant, or an argument of the trace (`_traced`)."""
    if is_key(t.dtype_name):
        return value(t)
    _in_trace.used = True
    if _in_trace.arguments is None:
        return public().zeros(t)
    if t not in _in_trace.arguments:
        raise _NeedsArgument(t)
    return _in_trace.arguments[t]


class _InTrace:
    """The values that stand for results of the user's functions in the present trace; ``used`` if there are any."""

    def __init__(self) -> None:
        self.used = False
        self.arguments: dict[ShType, Any] | None = None  # by their types; None for constants


_in_trace: Final = _InTrace()


class _NeedsArgument(BaseException):
    """Raised so that a trace has an argument of a type."""

    def __init__(self, t: ShType) -> None:
        self.type = t


def is_value(x: Any) -> bool:
    """Whether something is a typed value."""
    return isinstance(x, public().Array)


@functools.cache
def _load() -> Any:
    """JAX's functions of pytrees, which know the classes of this module."""
    jax = import_module("jax")
    jax.tree_util.register_pytree_node(
        Fields,
        lambda x: (tuple(x.values.values()), (x.cls, tuple(x.values))),
        lambda about, values: Fields(about[0], dict(zip(about[1], values, strict=True))),
    )
    return jax.tree


@functools.lru_cache(maxsize=1024)
def _abstract(mesh: Mesh) -> Any:
    return public().abstract_mesh(dict(mesh.shape))


@functools.cache
def _warm_up() -> None:
    """Makes the slow first call, before calls are bounded."""
    mesh = Mesh({"devices": 1})
    with public().use_mesh(_abstract(mesh)):
        x = value(ShType(mesh, "f32", [8], {"devices": State.REDUCED}))
        _traced(lambda x: (x + x * 2.0)[0], [x], {})


def types_of_call(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mesh: Mesh,
    policy: str,
    *,
    sizes: Mapping[str, int],
    scopes: tuple[object, ...] = (),
    fixes: bool = False,
) -> Any:
    """The result of a call as a pytree of types; None stays None, and other leaves are False."""
    now = Settings(policy, dims=tuple(sorted(sizes.items())), scopes=scopes, only_types=True)
    unknowns = _unknowns((args, kwargs))
    if not unknowns:
        return _types_of_call(call, args, kwargs, mesh, now, fixes)
    combinations = list(itertools.islice(itertools.product(*(u.values for u in unknowns)), _MOST_VALUES + 1))
    if len(combinations) > _MOST_VALUES:
        raise Undetermined
    answers: list[Any] = []
    errors: list[ShardingTypeError] = []
    for values in combinations:
        filled_args, filled_kwargs = _filled((args, kwargs), iter(values))
        try:
            answers.append(_types_of_call(call, filled_args, filled_kwargs, mesh, now, fixes))
        except ShardingTypeError as error:
            errors.append(error)
    if errors and not answers and len({error.what for error in errors}) == 1:
        raise errors[0]
    if not answers or any(answer != answers[0] for answer in answers):
        raise Undetermined
    return answers[0]


def _types_of_call(
    call: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mesh: Mesh,
    now: Settings,
    fixes: bool,
) -> Any:
    _warm_up()
    context = _abstract(mesh)
    try:
        with bounded(_SECONDS_WITH_FIXES if fixes else _SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with public().use_mesh(context):
                try:
                    return _types_by_call(call, args, kwargs, now)
                except ShardingTypeError as error:
                    if fixes and not _NO_DATA.search(error.what):
                        _ = error.fixes  # computed here, within the bound
                    raise
    except ShardingTypeError as error:
        if _NO_DATA.search(error.what):
            raise Undetermined from None
        raise
    except (Exception, TooLong):  # must not end the type checker's run
        raise Undetermined from None


def _types_by_call(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], now: Settings) -> Any:
    """The types of a call's results; traced if it has function arguments, or needs data."""
    if not any(map(callable, _leaves((args, kwargs)))):
        try:
            with settings.scope(now):
                return _types(call(*args, **kwargs))
        except ShardingTypeError as error:
            if not _NO_DATA.search(error.what):
                raise
    with settings.scope(now._replace(only_types=False)):  # values in a trace have data
        return _of_constants_and_arguments(call, args, kwargs)


def _of_constants_and_arguments(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The types of a call's results, the same whether results of the user's functions are constants or have gradients.

    A constant is cast where a value with a gradient is refused, and either may be what a function returns.
    """
    answers: list[Any] = []
    for constants in (True, False):
        try:
            answers.append(_traced(call, args, kwargs, constants=constants))
        except ShardingTypeError as error:
            answers.append(error)
        if not _in_trace.used:
            break
    if all(isinstance(a, ShardingTypeError) for a in answers) and len({a.what for a in answers}) == 1:
        raise answers[0]
    if any(isinstance(a, ShardingTypeError) or a != answers[0] for a in answers):
        raise Undetermined
    return answers[0]


def _leaves(tree: Any, *kinds: type) -> list[Any]:
    """The leaves of a pytree; instances of ``kinds`` are leaves."""
    leaves: list[Any] = _load().leaves(tree, is_leaf=lambda x: isinstance(x, kinds))
    return leaves


def _traced(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, constants: bool = True) -> Any:
    """The types of a call's results in a trace; `value_in_trace` makes constants there, or gives arguments."""
    leaves, tree = _load().flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if is_value(leaf)]
    of_functions: list[ShType] = []
    types: list[Any] = []

    def program(values: Sequence[Any], more: Sequence[Any]) -> None:
        _in_trace.used = False
        _in_trace.arguments = None if constants else dict(zip(of_functions, more, strict=True))
        replaced = dict(zip(places, values, strict=True))
        new_args, new_kwargs = tree.unflatten([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])
        types.append(_types(call(*new_args, **new_kwargs)))

    while not types:
        try:
            public().eval_shape(program, [leaves[i] for i in places], list(map(value, of_functions)))
        except _NeedsArgument as needed:
            of_functions.append(needed.type)
        finally:
            _in_trace.arguments = None
    return types[0]


def _types(result: Any) -> Any:
    if is_value(result):
        return result.type
    if isinstance(result, list):
        return [_types(x) for x in result]
    if isinstance(result, Fields):
        return result._replace(values={name: _types(x) for name, x in result.values.items()})
    if isinstance(result, tuple):
        return tuple(_types(x) for x in result)
    if hasattr(result, "argument_types"):
        now = settings.current_settings()._replace(only_types=False)  # zeros have data
        with contextlib.suppress(Exception), settings.scope(now):
            zeros = _load().map(public().zeros, result.argument_types, is_leaf=lambda t: isinstance(t, ShType))
            return Function(_types(zeros), _types(result(*zeros)))
    if getattr(result, "weak_type", False) and not result.shape:
        return _KINDS.get(result.dtype.kind, False)  # a Python number in a trace
    return None if result is None else False


def types_in(types: Any) -> list[ShType]:
    """The types in the result of `types_of_call`."""
    return [t for t in _leaves(types) if isinstance(t, ShType)]


class NeedsResult(BaseException):
    """Raised so that mypy types a function's result; the call is then repeated."""

    def __init__(self, find: Callable[[], None]) -> None:
        self.find = find


def function_of_types(find: Callable[[Sequence[Any]], Callable[[], Any]], name: str = "function") -> Callable[..., Any]:
    """A function whose results follow from its arguments' types: ``find(types)`` returns what creates them."""
    cached: dict[Any, Callable[[], Any]] = {}

    def call(*args: Any) -> Any:
        types = _types(args)
        key = repr(types)
        if key not in cached:

            def answer() -> None:
                cached[key] = find(types)

            raise NeedsResult(answer)
        return cached[key]()

    call.__name__ = name
    return call


def _unknowns(tree: Any) -> list[UnknownArgument]:
    return [x for x in _leaves(tree, UnknownArgument) if isinstance(x, UnknownArgument)]


def has_no_unknowns(tree: Any) -> bool:
    """Whether no argument is an `UnknownArgument`, or a stand-in for an instance or a function of the user's."""
    kinds = (UnknownArgument, Fields, FunctionType)
    return not any(isinstance(x, kinds) for x in _leaves(tree, *kinds))


def with_first_candidates(tree: Any) -> Any:
    """A pytree of arguments with the first candidate for each unknown one."""
    return _filled(tree, iter([u.values[0] for u in _unknowns(tree)]))


def _filled(tree: Any, values: Iterator[Any]) -> Any:
    def one(x: Any) -> Any:
        return next(values) if isinstance(x, UnknownArgument) else x

    return _load().map(one, tree, is_leaf=lambda x: isinstance(x, UnknownArgument))
