"""Loops with an annotated function as body: `scan`, `fori_loop` and `while_loop`.

The body is called with the carry and, in a `scan`, with an element of what it runs over; the carry must come back as it
goes in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mypy.nodes import Decorator, Expression, FuncDef, LambdaExpr, RefExpr, Var
from mypy.plugin import FunctionContext, FunctionSigContext
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    NoneType,
    TupleType,
    Type,
    TypeOfAny,
    get_proper_type,
)

from shtypes.editor.fixes import priced
from shtypes.editor.mypy.calls import Given, Matched, has_texts, is_local
from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.names import names_around
from shtypes.editor.mypy.report import fail, shown
from shtypes.editor.mypy.texts import is_known, map_arrays, texts_in, unknown, with_text, without_text
from shtypes.editor.mypy.values import Value
from shtypes.editor.space import Unknown, axes_of
from shtypes.errors import ShardingTypeError
from shtypes.resharding.join import join
from shtypes.rules.index import IndexEntry, Position, Slice, index
from shtypes.types import Dim, ShType


class _Loop(NamedTuple):
    """Where a loop has its body, the first carry and what it runs over; -1 for nothing."""

    name: str
    body: int
    init: int
    xs: int = -1
    counts: bool = False  # whether the body is given the number of the step first


LOOPS: Final = {
    "shtypes.control.loops.scan": _Loop("scan", 0, 1, 2),
    "shtypes.control.loops.fori_loop": _Loop("fori_loop", 2, 3, counts=True),
    "shtypes.control.loops.while_loop": _Loop("while_loop", 1, 2),
}
_ANY: Final = AnyType(TypeOfAny.special_form)


class LoopHooks:
    """The hooks for loops."""

    def __init__(self, checking: Checking, otherwise: Callable[[FunctionContext], Type]) -> None:
        self.checking, self.otherwise = checking, otherwise

    def signature(self, context: FunctionSigContext, loop: _Loop) -> FunctionLike:
        """Of a body with texts mypy knows less than we do: it is not asked."""
        given = context.default_signature
        body = context.args[loop.body] if loop.body < len(context.args) else []
        if body and isinstance(body[0], LambdaExpr):
            return self._of_lambda(context, loop)
        if not body or _annotated(body[0]) is None:
            return given
        return given.copy_modified(arg_types=[_ANY if i == loop.body else a for i, a in enumerate(given.arg_types)])

    def _of_lambda(self, context: FunctionSigContext, loop: _Loop) -> FunctionLike:
        """The signature by which a lambda is given the carry, and in a scan elements; what it returns is seen later."""
        given = context.default_signature
        body, xs = get_proper_type(given.arg_types[loop.body]), context.args[loop.xs] if loop.xs >= 0 else []
        if not isinstance(body, CallableType):
            return given
        takes = list(body.arg_types)
        if xs:
            with self.checking.scope(self.checking.around(context.api, context.context)):
                t = context.api.get_expression_type(xs[0])
                takes[-1] = map_arrays(t, lambda a: self._element(context, a), fields=True)
        asked = body.copy_modified(arg_types=takes, ret_type=_ANY)
        return given.copy_modified(arg_types=[asked if i == loop.body else a for i, a in enumerate(given.arg_types)])

    def result(self, context: FunctionContext, loop: _Loop) -> Type:
        """What a loop ends with, and what a scan collects."""
        args, types = context.args, context.arg_types
        if len(args) <= loop.init or not args[loop.body] or not args[loop.init]:
            return self.otherwise(context)
        body, written = _annotated(args[loop.body][0]), get_proper_type(types[loop.body][0])
        around = self.checking.around(context.api, context.context)
        is_lambda = isinstance(args[loop.body][0], LambdaExpr) and isinstance(written, CallableType)
        if (body is None and not is_lambda) or around.unknown or not self.checking.knows_policy(around):
            return self.otherwise(context)
        init, init_type = args[loop.init][0], types[loop.init][0]
        xs = types[loop.xs][0] if 0 <= loop.xs < len(types) and types[loop.xs] else NoneType()
        with self.checking.scope(around):
            if body is None:
                returned = written.ret_type if isinstance(written, CallableType) else written
                found = self._ended(context, loop, init_type, xs, get_proper_type(returned))
                return found if self._is_sure(loop, init_type, xs, found) else unknown(found)
            element = map_arrays(xs, lambda a: self._element(context, a), fields=True)
            given: list[tuple[Expression | None, Type]] = [(init, init_type)]
            if loop.counts:
                given.insert(0, (None, _ANY))
            elif loop.xs >= 0:
                given.append((None, element))
            name = shown(args[loop.body][0]) or "the body"
            call = Given([[e] for e, _ in given], [[t] for _, t in given], body.ret_type, name)
            fixed = frozenset(names_around(context.api)) if is_local(args[loop.body][0]) else frozenset[str]()
            found = get_proper_type(Matched(self.checking, context.api, init, body, call, fixed).result())
            return self._ended(context, loop, init_type, xs, found)

    def _ended(self, context: FunctionContext, loop: _Loop, init: Type, xs: Type, found: Type) -> Type:
        left, collected = found, None
        if loop.xs >= 0:
            if not isinstance(found, TupleType) or len(found.items) != 2:
                return unknown(context.default_return_type)
            left, collected = found.items
            if any(t is not None and (not t.ndim or t.dims[0].axes) for t in map(self._read, _arrays_in(xs))):
                return unknown(found)  # it is refused
        carry = self._carry(context, loop, init, left)
        if collected is None or not isinstance(found, TupleType):
            return carry
        length = self._length(xs)
        stacked = map_arrays(collected, lambda a: self._stacked(context, a, length), fields=True)
        return found.copy_modified(items=[carry, stacked])

    def _is_sure(self, loop: _Loop, init: Type, xs: Type, found: Type) -> bool:
        """Whether a lambda was typed by what it is given: its carry comes back as it was, all elements are known."""
        ended = get_proper_type(found)
        carry = ended.items[0] if loop.xs >= 0 and isinstance(ended, TupleType) else ended
        given, kept = get_proper_type(xs), _arrays_in(carry)
        if isinstance(given, AnyType) or len(kept) != len(_arrays_in(init)):  # of what is refused nothing is known
            return False
        return all(map(is_known, (*_arrays_in(given), *kept)))

    def _read(self, array: Instance, *others: Type) -> ShType | None:
        axes = {a for t in (array, *others) for text in texts_in(t) for a in axes_of(text)}
        try:
            t = Value(None, array, self.checking.space).operand(self.checking.space.mesh(axes))
        except Unknown:
            return None
        return t if isinstance(t, ShType) else None

    def _written(self, context: FunctionContext | FunctionSigContext, array: Instance, t: ShType) -> Type:
        try:
            return with_text(array, self.checking.space.text(t), self.checking.string(context.api))
        except Unknown:
            return without_text(array)

    def _element(self, context: FunctionContext | FunctionSigContext, array: Instance) -> Type:
        """An element of what a scan runs over, whose leading dim must be whole."""
        t = self._read(array)
        if t is None or not t.ndim or t.dims[0].axes:
            return without_text(array)
        entries: list[IndexEntry] = [Position(0), *(Slice(0, n) for n in t.shape[1:])]
        return self._written(context, array, index("scan", (t,), tuple(entries)).results[0])

    def _length(self, xs: Type) -> int | None:
        """The number of steps, where one of the arrays that a scan runs over says it."""
        found: list[int] = []

        def note(array: Instance) -> Type:
            t = self._read(array)
            found.extend([t.shape[0]] if t is not None and t.ndim else [])
            return array

        map_arrays(xs, note)
        return found[0] if found else None

    def _stacked(self, context: FunctionContext, array: Instance, length: int | None) -> Type:
        t = self._read(array)
        if t is None or length is None:
            return without_text(array)
        return self._written(context, array, t.replace(dims=[Dim(length), *t.dims], states=t.states))

    def _carry(self, context: FunctionContext, loop: _Loop, init: Type, left: Type) -> Type:
        """The carry at the end; unknown where it is cast on the way, and an error where it cannot be."""
        before, after = _arrays_in(init), _arrays_in(left)
        if len(before) != len(after):
            return unknown(left)
        for a, b in zip(before, after, strict=True):
            entered, returned = self._read(a, b), self._read(b, a)
            if entered is None or returned is None:
                return unknown(left)
            if entered == returned:
                continue
            try:
                join([priced(entered, self.checking.space), priced(returned, self.checking.space)])
            except ShardingTypeError:
                space = self.checking.space
                words = f"starts as {space.named(entered)} and comes back as {space.named(returned)}"
                fail(context.api, context.args[loop.body][0], f"the carry of `{loop.name}` {words}", [_WHY])
            return unknown(left)
        return left


_WHY: Final = "the carry has one type at each step, and no cast between these two is free in both directions"


def _annotated(body: Expression) -> CallableType | None:
    """The signature of a body that is the name of a function with texts."""
    node = body.node if isinstance(body, RefExpr) else None
    if isinstance(node, Decorator):
        node = node.var
    t = node.type if isinstance(node, (FuncDef, Var)) else None
    found = None if t is None else get_proper_type(t)
    return found if isinstance(found, CallableType) and has_texts(found) else None


def _arrays_in(t: Type) -> Sequence[Instance]:
    """The arrays of a tree of tuples, in order."""
    found: list[Instance] = []

    def note(array: Instance) -> Type:
        found.append(array)
        return array

    map_arrays(t, note)
    return found
