"""Calls of users' functions: matches the types of arguments with the signature, as at run time.

mypy checks arguments itself, without dim names. So it gets a signature in which every array is any array, and the types
are matched here. Dim names stand for any size, the same one throughout a call, except those of the enclosing function
and of the class, which are bound.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mypy.nodes import CallExpr, Context, Decorator, Expression, FuncItem, LambdaExpr, ListExpr, MypyFile, Var
from mypy.plugin import CheckerPluginInterface, FunctionContext, FunctionSigContext, MethodContext, MethodSigContext
from mypy.types import CallableType, FunctionLike, Instance, TupleType, Type, UnionType, get_proper_type

from shtypes.editor.mypy.checking import Checking, check_quiet, names_around, names_in, names_of_class, names_of_classes
from shtypes.editor.mypy.report import fail, node_of, reshard_in_words, written_name
from shtypes.editor.mypy.texts import (
    callback,
    is_array,
    is_function_of_arrays,
    map_arrays,
    text_of,
    texts_in,
    with_text,
    without_text,
    without_texts_of_functions,
)
from shtypes.editor.mypy.values import Value
from shtypes.editor.text_evaluator import Undetermined, axes_of, names_of
from shtypes.errors import ShardingTypeError
from shtypes.signatures.matching import Bindings, Claim, Pattern, instance, pattern, structure
from shtypes.types import Dim, ShType
from shtypes.types.mesh import Mesh
from shtypes.types.policy import replicated

#: "`n` is `n`" for a bound name.
_ITSELF: Final = re.compile(r"and `(\w+)` is `\1` by .*")


_SIZES: Final = re.compile(r"dim \d+ has size (\d+), not (\d+)$")


class _Seen(NamedTuple):
    """A call whose signature mypy does not see."""

    where: Context  # a reference, so that its id is not reused
    signature: CallableType
    fixed: frozenset[str]
    overloaded: bool  # whether mypy chooses among overloads


def has_texts(t: FunctionLike) -> bool:
    """Whether a signature has types as strings."""
    return isinstance(t, CallableType) and any(next(texts_in(a), None) is not None for a in (*t.arg_types, t.ret_type))


class CallHooks:
    """The hooks for users' functions."""

    def __init__(self, checking: Checking) -> None:
        self.checking = checking
        self._seen: dict[int, _Seen] = {}

    def signature(self, context: FunctionSigContext | MethodSigContext) -> FunctionLike:
        """The signature by which mypy checks the arguments."""
        default = context.default_signature
        check_quiet(self.checking.enclosing_scopes(context.api, context.context), context, default)
        callbacks = list(map(callback, default.arg_types))
        if not (has_texts(default) or any(callbacks) or any(map(is_function_of_arrays, default.arg_types))):
            return default
        fixed = self._fixed(context)
        if len(self._seen) > 1000:
            self._seen.clear()
        before = self._seen.get(id(context.context))
        overloaded = before is not None and before.where is context.context and before.signature != default
        self._seen[id(context.context)] = _Seen(context.context, default, fixed, overloaded)
        formals = [map_arrays(a, without_text) for a in default.arg_types]
        for i, expressions in enumerate(context.args):
            written = callbacks[i]
            if written is not None:  # mypy's message would only have the protocol's name
                formals[i] = written if all(map(_is_function, expressions)) else without_texts_of_functions(written)
            elif any(isinstance(e, LambdaExpr) for e in expressions):  # a lambda uses outer names
                formals[i] = without_texts_of_functions(formals[i])
        return default.copy_modified(arg_types=formals)

    def result(self, context: FunctionContext | MethodContext) -> Type:
        """The type of a call's result; reports arguments that do not fit."""
        seen = self._seen.get(id(context.context))
        if seen is None or seen.where is not context.context:
            return without_texts_of_functions(context.default_return_type)
        if not seen.overloaded:  # the hook runs once for each overload
            del self._seen[id(context.context)]
        scopes = self.checking.enclosing_scopes(context.api, context.context)
        if seen.overloaded or scopes.unknown or not self.checking.knows_policy(scopes):
            return map_arrays(context.default_return_type, without_text)
        with self.checking.scope(scopes):
            call_args = CallArguments(
                context.args, context.arg_types, context.default_return_type, _called(context.context, seen)
            )
            return CallMatch(
                self.checking, context.api, context.context, seen.signature, call_args, seen.fixed
            ).result()

    def _fixed(self, context: FunctionSigContext | MethodSigContext) -> frozenset[str]:
        """The bound dim names around the called function."""
        names: set[str] = set()
        if isinstance(context, MethodSigContext):
            owner = get_proper_type(context.type)
            if isinstance(owner, Instance):
                names |= names_of_class(owner.type)
        returned = get_proper_type(context.default_signature.ret_type)
        if context.default_signature.is_type_obj() and isinstance(returned, Instance):
            names |= names_of_class(returned.type)
        if is_local(getattr(context.context, "callee", None)):
            names |= names_around(context.api)
        return frozenset(names)


def _called(where: Context, seen: _Seen) -> str:
    """The function's name in messages."""
    callee = getattr(where, "callee", None)
    if isinstance(callee, CallExpr):
        function, first = written_name(callee.callee), written_name(callee.args[0]) if callee.args else ""
        return f"{function}({first})" if function and first else "the function"
    return written_name(callee) or seen.signature.name or "the function"


def is_local(callee: object) -> bool:
    """Whether the callee is a local name of a function."""
    node = getattr(callee, "node", None)
    if isinstance(node, Decorator):
        node = node.var
    if isinstance(node, Var):
        return not node.is_self and "." not in node.fullname and not isinstance(node, MypyFile)
    return isinstance(node, FuncItem) and "." not in node.fullname


def _is_function(expression: object) -> bool:
    """Whether an expression is the name of a function."""
    return isinstance(node_of(expression), (FuncItem, Decorator))


class CallArguments(NamedTuple):
    """A call: the arguments for each parameter, their types, and mypy's type of the result."""

    args: Sequence[Sequence[Expression | None]]
    arg_types: Sequence[Sequence[Type]]
    result: Type
    called: str  # the function's name in messages


class _At(NamedTuple):
    """The position of an argument, or of a part of one."""

    path: str  # in the signature's terms
    where: Context
    inside: str = ""  # the part of the written expression

    def part(self, i: int, written: Expression | None) -> _At:
        """An item of it, which may have an expression."""
        path = f"{self.path}[{i}]"
        return _At(path, self.where, f"{self.inside}[{i}]") if written is None else _At(path, written)


class CallMatch:
    """One call: matches its arguments in turn with the types of the signature."""

    def __init__(
        self,
        checking: Checking,
        api: CheckerPluginInterface,
        where: Context,
        signature: CallableType,
        args: CallArguments,
        fixed: frozenset[str],
    ) -> None:
        self.checking, self.evaluator, self.api, self.where = checking, checking.evaluator, api, where
        self.signature, self.call = signature, args
        self.unsure: set[str] = set()  # names with different sizes in arguments, which may be equal
        self.failed = False
        self.mesh = self._mesh()
        self.bindings = Bindings(tuple(self.evaluator.config.dims.items()))
        for name in fixed:
            self.bindings.values[name] = (self.evaluator.sizes.of(name), "what is around the function")

    def _mesh(self) -> Mesh:
        if self.evaluator.config.mesh:
            return self.evaluator.mesh(())
        types = [*self.signature.arg_types, self.signature.ret_type]
        types += [t for several in self.call.arg_types for t in several]
        return self.evaluator.mesh(axis for t in types for text in texts_in(t) for axis in axes_of(text))

    def result(self) -> Type:
        """The type of the result."""
        formals = zip(
            self.signature.arg_types,
            self.signature.arg_names,
            self.call.args,
            self.call.arg_types,
            strict=False,
        )
        for i, (formal, name, expressions, types) in enumerate(formals, 1):
            for expression, t in zip(expressions, types, strict=False):
                at = _At(name or str(i), self.where if expression is None else expression)
                self._match(formal, Value(expression, t, self.evaluator, self.api), at)
        return without_texts_of_functions(map_arrays(self.call.result, self._returned))

    # arguments

    def _match(self, formal: Type, argument: Value, at: _At) -> None:
        """Matches a parameter's type with that of its argument, inside unions, tuples and generic types."""
        expected = get_proper_type(formal)
        if isinstance(argument.type, UnionType) and not isinstance(expected, UnionType):
            for item in argument.type.items:
                self._match(formal, Value(argument.expression, item, self.evaluator), at)
        elif isinstance(expected, UnionType):
            if argument.type is not None:
                self._match_union(expected, argument, at)
        elif isinstance(expected, Instance) and text_of(expected) is not None:
            self._match_array(pattern(text_of(expected) or ""), argument, at)
        else:
            for i, (inner, value) in enumerate(_inner(expected, argument)):
                self._match(inner, value, at.part(i, value.expression))

    def _match_union(self, formal: UnionType, argument: Value, at: _At) -> None:
        items = (
            argument.type.items if isinstance(argument.type, UnionType) else [argument.type] if argument.type else []
        )
        texts = [t for t in map(get_proper_type, formal.items) if text_of(t) is not None]
        for item in items:
            if not is_array(item):
                continue
            value = Value(argument.expression, item, self.evaluator)
            if len(texts) == 1:
                self._match(texts[0], value, at)
            elif not any(self._fits(t, value) for t in texts):
                self.unsure.update(*map(names_in, texts))

    def _fits(self, formal: Type, argument: Value) -> bool:
        text = text_of(get_proper_type(formal))
        try:
            t = argument.operand(self.mesh)
        except Undetermined:
            return False
        return text is not None and isinstance(t, ShType) and not structure(pattern(text), t, replicated()).reasons

    def _match_array(self, formal: Pattern, argument: Value, at: _At) -> None:
        try:
            t = argument.operand(self.mesh)
            if not isinstance(t, ShType):
                return
            matched = structure(formal, t, replicated())
        except (Undetermined, ShardingTypeError):
            return
        claims = [c for c in matched.claims if self._is_sure(c)]
        stated = [reason for reason in matched.reasons if not self._may_be_so(reason)]
        if len(stated) < len(matched.reasons):
            self.unsure.update(names_of(formal))
        reasons = [*stated, *self.bindings.add(claims, f"`{at.path}`")]
        if not reasons and matched.arithmetic and not self.unsure:
            reasons += self.bindings.resolve(matched)
        if reasons:
            self._refuse(formal, t, matched.goal, reasons, at)

    def _may_be_so(self, reason: str) -> bool:
        """Whether a reason compares a literal size with a name, which may be equal."""
        compared = _SIZES.match(reason)
        is_known = self.evaluator.sizes.is_actual
        return compared is not None and is_known(int(compared[1])) != is_known(int(compared[2]))

    def _is_sure(self, claim: Claim) -> bool:
        """Whether a claim is definite; a literal size may equal any name."""
        bound = self.bindings.values.get(claim.name)
        if bound is None or not isinstance(claim.value, int) or not isinstance(bound[0], int):
            return True
        if self.evaluator.sizes.is_actual(bound[0]) == self.evaluator.sizes.is_actual(claim.value):
            return True
        self.unsure.add(claim.name)
        return False

    def _refuse(self, formal: Pattern, t: ShType, goal: ShType | None, reasons: Sequence[str], at: _At) -> None:
        self.failed = True
        words = [self.evaluator.sizes.with_names(reason) for reason in reasons]
        what = f"argument `{at.path}` of `{self.call.called}` is {self.evaluator.named(t)}, not {formal}"
        notes = [_ITSELF.sub(r"not `\1`", w) for w in words if w is not None]
        same_array = goal is not None and (goal.shape, goal.dtype_name) == (t.shape, t.dtype_name)
        if goal is not None and goal != t and same_array and not any("has size" in w for w in notes):
            written = None if _is_function(at.where) else written_name(at.where)
            name = f"{written}{at.inside}" if written else at.path if at.where is self.where else "..."
            with contextlib.suppress(ShardingTypeError):
                notes.append(f"fix: {reshard_in_words(t, goal, name, self.evaluator)}")
        fail(self.api, at.where, what, notes)

    # the result

    def _returned(self, array: Instance) -> Type:
        text = text_of(array)
        if text is None or self.failed:
            return without_text(array)
        try:
            t = self._instance(pattern(text))
            return with_text(array, self.evaluator.text(t), self.checking.string(self.api))
        except (Undetermined, ShardingTypeError):
            return without_text(array)

    def _instance(self, returned: Pattern) -> ShType:
        """The type of a result at these sizes of names; ``*batch`` stands for its dims."""
        names = set(names_of(returned))
        if names & self.unsure:
            raise Undetermined
        if returned.any_state or returned.dtypes is None or len(returned.dtypes) != 1:
            raise Undetermined
        sizes = dict(self.bindings.sizes)
        if names - set(self.bindings.values):
            of_classes = {n for t in self.signature.arg_types for n in names_of_classes(t)}
            sizes |= {n: self.evaluator.sizes.of(n) for n in (names - set(self.bindings.values)) & of_classes}
        if not any(d.form == "*" for d in returned.dims or ()):
            return instance(returned, self.mesh, replicated(), sizes)
        return self._with_groups(returned, sizes)

    def _with_groups(self, returned: Pattern, sizes: Mapping[str, int]) -> ShType:
        dims: list[Dim] = []
        for d in returned.dims or ():
            if d.form != "*":
                size = sizes.get(d.head) if d.head and not d.form else d.size
                if size is None or d.keeps_axes:
                    raise Undetermined
                dims.append(Dim(size, tuple(a.text for a in d.axes)))
                continue
            group = self.bindings.values.get(d.head, (0, ""))[0]
            if isinstance(group, int):
                raise Undetermined
            dims += [Dim(size, axes) for size, axes in group]
        sharding = {a for d in dims for a in d.axes}
        states = {a: returned.states.get(a, replicated()) for a in self.mesh.axis_names if a not in sharding}
        return ShType(self.mesh, next(iter(returned.dtypes or ())), dims, states)


def _inner(formal: Type, value: Value) -> Iterator[tuple[Type, Value]]:
    """Corresponding parts of two types."""
    t = value.type
    several = isinstance(value.expression, ListExpr) or isinstance(t, TupleType)
    if isinstance(formal, Instance) and len(formal.args) == 1 and several:
        for item in value.items():
            yield formal.args[0], item
    elif isinstance(formal, TupleType) and isinstance(t, TupleType) and len(formal.items) == len(t.items):
        yield from zip(formal.items, value.items(), strict=True)
    elif isinstance(formal, Instance) and isinstance(t, Instance) and len(formal.args) == len(t.args):
        for inner, argument in zip(formal.args, t.args, strict=True):
            yield inner, Value(None, argument, value.evaluator)
