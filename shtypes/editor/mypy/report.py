"""Reports errors: with the runtime's message, at the wrong operand, with the cheapest fix."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from mypy.errorcodes import ErrorCode
from mypy.nodes import (
    Context,
    Decorator,
    Expression,
    FuncDef,
    IndexExpr,
    IntExpr,
    LambdaExpr,
    MemberExpr,
    NameExpr,
    RefExpr,
    StrExpr,
    TupleExpr,
    UnaryExpr,
)
from mypy.plugin import CheckerPluginInterface

from shtypes.editor import runtime
from shtypes.editor.mypy.values import ArgumentReader, Call, Value
from shtypes.editor.text_evaluator import ACTUAL_BELOW, LARGEST_DIVISOR, TextEvaluator, Undetermined
from shtypes.errors import Fix, NoMeshError, ShardingTypeError, without_repeats
from shtypes.resharding.transport import reshard_fix
from shtypes.rules.price_fixes import called_names
from shtypes.types import Dim, ShType
from shtypes.types.mesh import Mesh

CODE: Final = ErrorCode("sharding", "Sharding types that do not fit", "shtypes")

_WORDS: Final = re.compile(r"\b(lhs|rhs|operand \d+)\b")
_SIZE: Final = re.compile(r"size `?(\d+)")


@contextlib.contextmanager
def past_one_filter(api: CheckerPluginInterface) -> Iterator[None]:
    """Lets errors pass the innermost filter of mypy.

    For ``1 / x``, mypy tries the number's method and then the array's, and reports only the first error, that a number
    does not divide by an array.
    """
    watchers = getattr(api.msg.errors, "_watchers", None)
    if not watchers:
        yield
        return
    innermost = watchers.pop()
    try:
        yield
    finally:
        watchers.append(innermost)


def fail(api: CheckerPluginInterface, where: Context, what: str, notes: Sequence[str] = ()) -> None:
    """Reports an error with its notes."""
    api.fail(what, where, code=CODE)
    for note in notes:
        api.msg.note(note, where, code=CODE)


#: The maximum number of repetitions of a call, for results of its function arguments.
_MOST_REPEATS: Final = 20


class RuntimeCall:
    """A call that the runtime types.

    Without a configured mesh, the mesh has the axes that the call mentions, of size 1, so that every size divides.
    Fixes and communication are computed on axes of two devices.

    Attributes:
        operands: The arrays among its arguments, with their expressions.
        is_known: Whether no stand-in is in it: for a size, a value or a function.
    """

    def __init__(
        self,
        call: Call,
        axes: Iterable[str],
        policy: str,
        function: Callable[[Value, Mesh], Any],
        dims: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._call, self._axes, self._policy, self._function, self._dims = call, axes, policy, function, dict(dims)
        self.operands: list[tuple[Expression | None, ShType]] = []
        self.is_known = False

    @property
    def function(self) -> Expression | None:
        """The first function argument, at which errors are reported."""
        types = (LambdaExpr, FuncDef, Decorator)
        values = (v.expression for v in self._call.args)
        return next((e for e in values if isinstance(e if isinstance(e, LambdaExpr) else node_of(e), types)), None)

    def result(self, evaluator: TextEvaluator) -> Any:
        """The types of its results."""
        mesh = evaluator.mesh(self._axes)
        return self._types_of_call(ArgumentReader(evaluator, mesh, runtime.value, self._function), mesh)

    def again(
        self,
        evaluator: TextEvaluator,
        *,
        scopes: tuple[object, ...] = (),
        fixes: bool = False,
        devices: int = 2,
        scaled: bool = True,
    ) -> ShardingTypeError | None:
        """The error of the same call on axes of several devices, or inside scopes; None if it types."""
        mesh = evaluator.mesh(self._axes)

        def array(t: ShType) -> Any:
            return runtime.value(priced(t, evaluator, devices, scaled=scaled))

        try:
            prices = mesh_of_prices(mesh, evaluator, devices)
            reader = ArgumentReader(evaluator, mesh, array, lambda v, _: self._function(v, prices))
            self._types_of_call(reader, prices, scopes, fixes)
        except ShardingTypeError as error:
            return error
        return None

    def _types_of_call(
        self, reader: ArgumentReader, mesh: Mesh, scopes: tuple[object, ...] = (), fixes: bool = False
    ) -> Any:
        args = [v.runtime_argument(reader) for v in self._call.args]
        kwargs = {name: v.runtime_argument(reader) for name, v in self._call.kwargs.items()}
        self.operands = reader.operands
        reader.sizes.update(self._dims)
        sizes = (*(d.size for _, t in reader.operands for d in t.dims), *reader.sizes.values())
        self.is_known = all(map(reader.evaluator.sizes.is_actual, sizes)) and runtime.has_no_unknowns([args, kwargs])
        function = self._call.function()
        if function is None:
            raise Undetermined
        for _ in range(_MOST_REPEATS):
            try:
                types = runtime.types_of_call(
                    function, args, kwargs, mesh, self._policy, sizes=reader.sizes, scopes=scopes, fixes=fixes
                )
                break
            except runtime.NeedsResult as needed:
                needed.find()
        else:
            raise Undetermined
        _check_parts(types, reader)
        return types


def _check_parts(types: Any, reader: ArgumentReader) -> None:
    """Raises `Undetermined` if a result may have a size that is a part of a stand-in, as ``x[::1000]`` has."""
    numbers, is_actual = reader.numbers, reader.evaluator.sizes.is_actual
    of_operands = [d.size for _, t in reader.operands for d in t.dims]
    if max(numbers, default=0) < LARGEST_DIVISOR or all(map(is_actual, (*of_operands, *numbers))):
        return
    sizes = numbers.union(filter(is_actual, of_operands))
    changes = numbers | {a + b for a in numbers for b in numbers}
    explained = sizes | {f(n, k) for n in sizes for k in changes for f in (operator.add, operator.sub, operator.mul)}
    for t in runtime.types_in(types):
        if any(is_actual(d.size) and d.size not in explained for d in t.dims):
            raise Undetermined


def refuse(
    api: CheckerPluginInterface, error: ShardingTypeError, run: RuntimeCall, context: Context, evaluator: TextEvaluator
) -> None:
    """Reports the runtime's error about a call."""
    if _may_fit(error, run, evaluator):
        raise Undetermined
    words = evaluator.words(error)
    where, notes = run.function or context, words[1:]
    applied = _APPLIED.search(error.where.partition("\n")[0])
    operands = _TYPES.findall(applied[2]) if applied else []
    of_operands = error.what.startswith("`") and (error.axes or not error.hints)
    if applied is not None and operands and of_operands and operands[0] not in error.why:
        where = _operand(error, run, operands) or context
        called = f"{applied[1]}({applied[2]})"
        notes.append(f"in {evaluator.sizes.with_names(called) or called}")
    for devices, scaled in _PRICES:
        with contextlib.suppress(Undetermined, ShardingTypeError):
            refused = run.again(evaluator, fixes=True, devices=devices, scaled=scaled)
            if refused is not None and _same(refused, error):
                notes += [f"fix: {text}" for text in _in_words(refused, run, evaluator)[:1]]
                break
    hints = [f"try: {hint}" for hint in error.hints[:1]] if not any(n.startswith("fix: ") for n in notes) else []
    fail(api, where, words[0], [*notes, *hints])


#: The axis sizes on which to look for fixes, in turn: some sizes may not divide.
_PRICES: Final = ((2, True), (2, False), (3, False))
#: The op in an error's location: its name and operand types.
_APPLIED: Final = re.compile(r"([\w.]+)(?:\[[^()]*\])?\((.*)\)$")
_TYPES: Final = re.compile(r"[\w<>]+\[[^\]]*\](?:\{[^}]*\})?")
_DIGITS: Final = re.compile(r"\d+")


def _same(a: ShardingTypeError, b: ShardingTypeError) -> bool:
    """Whether two errors are equal up to sizes."""
    return _DIGITS.sub("", a.what) == _DIGITS.sub("", b.what)


def _may_fit(error: ShardingTypeError, run: RuntimeCall, evaluator: TextEvaluator) -> bool:
    """Whether an error may be wrong: it compares a literal size with a name, which may be equal."""
    if evaluator.sizes.any_stand_in(_SIZE.sub("", error.what)):
        return True
    if error.axes:
        return False
    of_mesh = isinstance(error, NoMeshError) or error.what.startswith("the mesh ")
    if of_mesh and not evaluator.config.mesh:
        return True
    if not _is_of_rules(error):
        return not (run.is_known and type(error.__context__) in _OF_ARGUMENTS)
    named = [not evaluator.sizes.is_actual(int(n)) for n in _SIZE.findall(error.what)]
    if any(named) and not all(named):
        return True
    of_name: dict[str, int] = {}
    return any(of_name.setdefault(d.name, d.size) != d.size for _, t in run.operands for d in t.dims if d.name)


#: JAX's errors for invalid arguments; for missing values it raises subclasses.
_OF_ARGUMENTS: Final = (IndexError, TypeError, ValueError)


def _is_of_rules(error: BaseException) -> bool:
    """Whether an error is from the typing rules alone, and not from JAX or Python about stand-ins."""
    context = error.__context__
    if context is None:
        return True
    return isinstance(context, (ShardingTypeError, KeyError)) and _is_of_rules(context)


def _operand(error: ShardingTypeError, run: RuntimeCall, operands: Sequence[str]) -> Expression | None:
    """The expression of the operand that an error is about, or None."""
    words = _WORDS.findall(error.what)
    places = {("lhs", "rhs").index(w) if w in ("lhs", "rhs") else int(w.split()[1]) for w in words}
    if len(operands) == 1:
        places = {0}
    if len(places) != 1 or max(places) >= len(operands):
        return None
    return _expression_of(run, operands[max(places)], places)


def _expression_of(run: RuntimeCall, text: str, places: Iterable[int]) -> Expression | None:
    """The expression of an operand by its printed type: the one at a position, or the first."""
    same = [(i, e) for i, (e, t) in enumerate(run.operands) if str(t) == text]
    return next((e for i, e in same if i in places), same[0][1] if same else None)


def renamed(code: str, run: RuntimeCall, types: Sequence[ShType] = (), names: Sequence[str] = ()) -> str:
    """Code of a fix, or of advice, with the user's names for the operands of some types."""
    operands = run.operands
    names = names or called_names(types or [t for _, t in operands])
    for i, name in enumerate(names):
        same = not types or len(types) == len(operands)
        expression = operands[i][0] if same else _expression_of(run, str(types[i]), ())
        written = written_name(expression)
        if written or len(names) == 1:
            code = re.sub(rf"(?<=\w\(){re.escape(name)}(?=[,)])", written or "...", code)
    return without_repeats(code)


def _in_words(error: ShardingTypeError, run: RuntimeCall, evaluator: TextEvaluator) -> list[str]:
    """The fixes of an error, the cheapest first, without those that contain stand-ins."""
    types, operands = [t for t in error.subjects or () if isinstance(t, ShType)], [t for _, t in run.operands]
    texts = [
        in_words(f._replace(code=renamed(f.code, run, types, error.names)), operands, evaluator) for f in error.fixes
    ]
    return [text for text in texts if not any(len(n) > 5 and int(n) >= ACTUAL_BELOW for n in re.findall(r"\d+", text))]


def node_of(expression: object) -> object:
    """The node of a name."""
    return expression.node if isinstance(expression, RefExpr) else None


def written_name(expression: object) -> str | None:
    """A dotted name, or an item of one by constants, as written; None for any other expression."""
    if isinstance(expression, NameExpr):
        return expression.name
    if isinstance(expression, MemberExpr):
        inner = written_name(expression.expr)
        return None if inner is None else f"{inner}.{expression.name}"
    if isinstance(expression, IndexExpr):
        inner, item = written_name(expression.base), _written_constant(expression.index)
        return None if inner is None or item is None else f"{inner}[{item}]"
    return None


def _written_constant(expression: Expression) -> str | None:
    if isinstance(expression, (IntExpr, StrExpr)):
        return repr(expression.value)
    if isinstance(expression, UnaryExpr) and isinstance(expression.expr, IntExpr):
        return f"{expression.op}{expression.expr.value}"
    if isinstance(expression, TupleExpr) and len(expression.items) > 1:
        items = [_written_constant(item) for item in expression.items]
        return None if None in items else ", ".join(map(str, items))
    return None


# printed fixes


_BYTES = re.compile(r", \d+ B/device")


def priced(t: ShType, evaluator: TextEvaluator, devices: int = 2, *, scaled: bool = True) -> ShType:
    """A type with prices: axes of unknown size have two devices, which divide every dim.

    Its dims have names, so that printed types are as written.
    """
    mesh = mesh_of_prices(t.mesh, evaluator, devices)
    times = mesh.size // t.mesh.size if scaled else 1
    named = evaluator.named(t)
    dims = [Dim(d.size * times, d.axes, d.name or (str(d.size) if times > 1 else None)) for d in named.dims]
    return ShType(mesh, t.dtype_name, dims, t.states)


def mesh_of_prices(mesh: Mesh, evaluator: TextEvaluator, devices: int = 2) -> Mesh:
    """A mesh whose axes of unknown size have some devices."""
    return Mesh({axis: n if evaluator.knows([axis]) else devices for axis, n in mesh.shape.items()})


def reshard_in_words(src: ShType, dst: ShType, name: str, evaluator: TextEvaluator) -> str:
    """A reshard as a printed fix."""
    return in_words(reshard_fix(priced(src, evaluator), priced(dst, evaluator), name), (src, dst), evaluator)


def in_words(fix: Fix, types: Sequence[ShType], evaluator: TextEvaluator) -> str:
    """A printed fix; with its price in bytes if every size is actual."""
    sizes_known = all(
        evaluator.knows(t.mesh.axis_names) and all(evaluator.sizes.is_actual(d.size) for d in t.dims) for t in types
    )
    return str(fix) if sizes_known else _BYTES.sub("", str(fix))
