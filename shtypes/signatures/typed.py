"""`typed`: a decorator that checks a function's annotations when it is called or traced."""

from __future__ import annotations

import ast
import functools
import inspect
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax

from shtypes.context.eqn_source import is_tracing_plain
from shtypes.context.frames import frames
from shtypes.context.signature_errors import kind_of
from shtypes.context.user_line import user_line
from shtypes.core.call_expressions import argument_names, expressions_of
from shtypes.core.conversion import abstract_array
from shtypes.errors import Fix, ShardingTypeError
from shtypes.lifting.recorded_calls import observed
from shtypes.signatures.annotations import Annotations, annotations_of, unwrapped
from shtypes.signatures.matching import Bindings, Pattern, fix_for, structure
from shtypes.signatures.pytree_spec import Checking, Problem, type_of
from shtypes.types import ShType
from shtypes.types.notation.dim_names import current_dims
from shtypes.types.policy import replicated

F = TypeVar("F", bound=Callable[..., Any])

#: The maximum number of values in an error.
_MAX_PROBLEMS = 4


def typed(f: F) -> F:
    """Checks the sharding types in a function's annotations.

    Types are strings in ``Annotated[sh.Array, "f32[s, b@dp, h]"]`` or, for short, ``sh.Array["f32[s, b@dp, h]"]``. They
    are parsed under the policy at the call: an axis that a type does not mention is replicated. Besides:

    - a dim name is any size, the same in all arguments and results of one call; ``seq=4`` or `dims` may set it;
    - ``_`` is any size, ``...`` any dims in any sharding, ``*batch`` any dims that are the same everywhere;
    - arithmetic of dims: ``2*h``, ``h + 1``, ``(a + b) // 2``; ``/`` must leave no remainder;
    - for a dtype, nothing (any dtype) or one of ``float``, ``int``, ``uint``, ``integer``, ``complex``, ``inexact``,
      ``number``, ``key``;
    - ``{...}`` in braces: the other axes may be in any state.

    Lists, tuples, dicts, dataclasses, named tuples, typed dicts, unions and optional values are checked inside; a type
    around a pytree, ``Annotated[dict[str, sh.Array], "f32[...]"]``, applies to all its leaves. Other annotations are
    not checked. Checks run when Python runs the function: under `jit` once, during tracing, and nothing of them is in
    the compiled program.

    Args:
        f: A function, a method (below ``staticmethod`` and ``classmethod``, or above them), a partial, or a callable
            object; not a class.

    Returns:
        The function, checked.

    Raises:
        ShardingTypeError: a type has a syntax error; (when called) values do not fit, of which it lists all.

    Communicates: nothing.

    Examples:
        >>> from typing import Annotated as A
        >>> import shtypes as sh
        >>> @sh.typed
        ... def double(x: A[sh.Array, "f32[n@dp]"]) -> A[sh.Array, "f32[n@dp]"]:
        ...     return x + x
        >>> with sh.use_mesh(sh.make_mesh({"dp": 2})):
        ...     print(double(sh.ones("f32[8@dp]")).type)
        f32[8@dp]
    """
    if isinstance(f, (staticmethod, classmethod)):
        return type(f)(typed(f.__func__))
    if isinstance(f, type):
        raise ShardingTypeError(
            f"`typed` takes a function, not the class `{f.__name__}`",
            why="JAX makes objects of classes with other things in place of arrays",
            hints=[
                "annotate the fields of a dataclass: typed functions that take one look into it",
                "decorate methods",
            ],
        )
    if not callable(f):
        raise ShardingTypeError(f"`typed` takes a function, not {f!r:.60}", hints=["@sh.typed above `def`"])
    local = sys._getframe(1).f_locals if _has_text(f) else {}
    annotations: Annotations | None
    try:
        annotations = annotations_of(f, local, skip_undefined=False)
    except NameError:  # a name is defined further down
        annotations = None
    except ShardingTypeError as error:
        raise _unreadable(error, f) from None

    def read() -> Annotations:
        nonlocal annotations
        if annotations is None:
            annotations = _read(f)
        return annotations

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not read().any_checks:
            return f(*args, **kwargs)
        if is_tracing_plain():
            return _in_program(f, read(), args, kwargs)
        into, bound = _arguments(f, read(), args, kwargs)
        return _result(f, read(), into, bound, f(*args, **kwargs))

    @functools.wraps(f)
    async def call_later(*args: Any, **kwargs: Any) -> Any:
        into, bound = _arguments(f, read(), args, kwargs)
        return _result(f, read(), into, bound, await f(*args, **kwargs))

    checked: Any = call_later if inspect.iscoroutinefunction(f) else call
    checked.__shtypes_typed__ = True
    return checked  # type: ignore[no-any-return]


def is_typed_function(f: Any) -> bool:
    """Whether a function, or one that it wraps, is `typed`."""
    while f is not None:
        if getattr(f, "__shtypes_typed__", False):
            return True
        f = getattr(f, "__wrapped__", None)
    return False


def _has_text(f: Any) -> bool:
    try:
        annotations = getattr(unwrapped(f), "__annotations__", {})
    except NameError:  # Python 3.14 evaluates annotations lazily
        return True
    return any(isinstance(a, str) for a in annotations.values())


def _read(f: Callable[..., Any]) -> Annotations:
    try:
        return annotations_of(f, _enclosing(f))
    except NameError as error:
        raise ShardingTypeError(
            f"the annotations of `{_name(f)}` cannot be read: {error}",
            where=definition(f),
            why="they are evaluated when the function is first called, in its module",
        ) from None
    except ShardingTypeError as error:
        raise _unreadable(error, f) from None


def _enclosing(f: Any) -> dict[str, Any]:
    """The local variables of the enclosing functions that are running."""
    code: Any = getattr(unwrapped(f), "__code__", None)
    outer = str(getattr(f, "__qualname__", "")).split(".")
    names: dict[str, Any] = {}
    for frame in frames(1) if code is not None and "<locals>" in outer else ():
        if frame.f_code.co_filename == code.co_filename and frame.f_code.co_name in outer:
            names = {**frame.f_locals, **names}
    return names


def _unreadable(error: ShardingTypeError, f: Callable[..., Any]) -> ShardingTypeError:
    error.where = "\n".join(filter(None, (definition(f), error.where)))
    error.placed = True
    return error


def _name(f: Any) -> str:
    f = f if hasattr(f, "__name__") else unwrapped(f)
    return str(getattr(f, "__qualname__", None) or getattr(f, "__name__", "f")).rpartition("<locals>.")[2]


# calls


def _in_program(f: Callable[..., Any], annotations: Annotations, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a function in a plain program being traced: it is checked when the program is evaluated."""
    entered: list[tuple[Checking, Mapping[str, Any]]] = []

    def arguments(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        entered[:] = [_arguments(f, annotations, *inputs)]

    def result(value: Any) -> None:
        _result(f, annotations, *entered[0], value)

    args, kwargs = observed(arguments, (args, kwargs))
    return observed(result, f(*args, **kwargs))


def _arguments(
    f: Callable[..., Any], annotations: Annotations, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Checking, Mapping[str, Any]]:
    """Checks the arguments of a call; the returned bindings of dim names apply to the results."""
    into = Checking(Bindings(current_dims()), replicated())
    try:
        bound = annotations.check(into, args, kwargs)
    except ShardingTypeError as error:  # such as an axis that the mesh lacks
        raise _unreadable(error, f) from None
    if into.problems:
        raise _in_words_of_the_call(_refused(f, into, bound, "argument"), f, args, kwargs)
    return into, bound


def _result(
    f: Callable[..., Any], annotations: Annotations, into: Checking, bound: Mapping[str, Any], result: Any
) -> Any:
    if annotations.result is not None:
        try:
            annotations.result.check(result, "result", into)
            into.resolve()
        except ShardingTypeError as error:
            raise _unreadable(error, f) from None
        if into.problems:
            raise _refused(f, into, bound, "result")
    return result


# messages


def _refused(f: Callable[..., Any], into: Checking, arguments: Mapping[str, Any], what: str) -> ShardingTypeError:
    """The error for the values of a call that do not fit."""
    first, name = into.problems[0], _name(f)
    many = len(into.problems) > 1
    line = user_line()
    call = f"{name}({', '.join(f'{k}: {_text(v)}' for k, v in arguments.items())})"
    where = [f"{line}: {call}" if line else call]
    where += dict.fromkeys(f"{_annotation_line(f, p)}: {_annotation_text(p)}" for p in into.problems[:_MAX_PROBLEMS])
    why = "; ".join(first.reasons)
    if many:
        why = "\n".join(f"`{p.path}` is {p.got}: {'; '.join(p.reasons)}" for p in into.problems[:_MAX_PROBLEMS])
        if len(into.problems) > _MAX_PROBLEMS:
            why += f"\nand {len(into.problems) - _MAX_PROBLEMS} more"
    if into.bindings.values:
        why += f"\nso far: {into.bindings}"
    subject = f"{what} `{first.path}` of `{name}`" if what == "argument" else _named_result(first.path, name)
    verb = "takes" if what == "argument" else "returns"
    error = ShardingTypeError(
        f"{len(into.problems)} values that `{name}` {verb} do not fit its signature"
        if many
        else f"{subject} is {first.got}, not {first.expected}",
        where="\n".join(where),
        why=why,
        fixes=_fixes(into) if not many or what == "argument" else (),
        hints=_hints(first),
    )
    error.placed = True
    return error


def _in_words_of_the_call(
    error: ShardingTypeError, f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ShardingTypeError:
    """The error, whose fixes are of the caller's expressions for the parameters."""
    leaves, tree = jax.tree.flatten((args, dict(kwargs)))
    names = argument_names(f, tree, [i for i, x in enumerate(leaves) if isinstance(getattr(x, "type", None), ShType)])
    error.names = tuple(names or ())
    error.expressions = expressions_of(str(getattr(f, "__name__", "")), args, kwargs)
    return error


def _named_result(path: str, name: str) -> str:
    inner = path.removeprefix("result")
    return f"the result of `{name}`" if not inner else f"`{inner}` of the result of `{name}`"


def _text(value: Any) -> str:
    t = type_of(value)
    return str(t) if t is not None else kind_of(value)


def _annotation_text(problem: Problem) -> str:
    name = problem.owner[1] if problem.owner else problem.path
    return f"{name}: {problem.expected}"


def _fixes(into: Checking) -> list[Fix]:
    """The reshards that make values fit; a wrong size has none."""
    fixes = []
    for problem in into.problems[:_MAX_PROBLEMS]:
        if problem.actual is None or problem.pattern is None:
            continue
        # not cached: a cached match of an equal type may have other dim names
        fit = structure.__wrapped__(problem.pattern, problem.actual, into.replicated)
        if fit.goal is None or not _fits(fit.goal, problem.pattern, into):
            continue
        fix = fix_for(problem.actual, fit.goal, problem.path)
        if fix is not None:
            fixes.append(fix)
    return fixes


def _fits(t: ShType, pattern: Pattern, into: Checking) -> bool:
    """Whether a type fits a pattern under the bindings of dim names."""
    trial = Checking(into.bindings.copy(), into.replicated)
    trial.leaf(pattern, abstract_array(t), "", None)
    trial.resolve()
    return not trial.problems


def _hints(problem: Problem) -> list[str]:
    if problem.actual is None and problem.pattern is not None:
        dims = problem.pattern.dims or ()
        written = not any(d.head == "_" or d.open_ended or d.keeps_axes or d.form for d in dims)
        text = f'"{problem.expected}"' if written and problem.pattern.dims is not None else "type"
        return [f"sh.array({problem.path}, {text})"] if problem.got != "None" else []
    dtypes = problem.pattern.dtypes if problem.pattern else None
    if (
        problem.actual is not None
        and dtypes is not None
        and len(dtypes) == 1
        and problem.actual.dtype_name not in dtypes
    ):
        (dtype,) = dtypes
        return [f'{problem.path}.astype("{dtype}")']
    return []


def definition(f: Callable[..., Any]) -> str:
    """Where a function is defined, such as ``model.py:12``."""
    code = getattr(unwrapped(f), "__code__", None)
    return "" if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def _annotation_line(f: Callable[..., Any], problem: Problem) -> str:
    """The source line of the annotation that a value does not fit."""
    subject: Any = unwrapped(f) if problem.owner is None else problem.owner[0]
    name = problem.path.partition("[")[0].partition(".")[0] if problem.owner is None else problem.owner[1]
    try:
        lines, start = inspect.getsourcelines(subject)
        tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return definition(f)
    file = os.path.basename(inspect.getsourcefile(subject) or "")
    return f"{file}:{start + _line_of(tree, name) - 1}"


def _line_of(tree: ast.stmt, name: str) -> int:
    """The line, counted from 1, of the annotation of a parameter, result or field."""
    if isinstance(tree, ast.ClassDef):
        fields = [n for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == name]
        return fields[0].lineno if fields else tree.lineno
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        a = tree.args
        all_parameters = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
        named = [p for p in all_parameters if p.arg == name]
        if named:
            return named[0].lineno
        if name == "result" and tree.returns is not None:
            return tree.returns.lineno
    return tree.lineno
