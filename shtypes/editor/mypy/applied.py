"""Lambdas beside what they are given: ``sh.checkpoint(lambda x: ...)(x)``, and the branches of ``sh.cond``.

mypy types a lambda before it knows what it will be given. So it is typed again, with the types of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mypy.nodes import CallExpr, Expression, LambdaExpr, ListExpr, RefExpr
from mypy.plugin import FunctionContext, MethodContext
from mypy.types import Instance, Type, get_proper_type

from shtypes.editor.mypy.checking import Checking
from shtypes.editor.mypy.functions import typed_lambda
from shtypes.editor.mypy.texts import ARRAY, is_array, is_known, text_of, texts_in, unknown, with_text
from shtypes.editor.mypy.transformations import GRADS, Transformations
from shtypes.editor.mypy.values import Value
from shtypes.editor.space import Unknown
from shtypes.errors import ShardingTypeError
from shtypes.rules.specs import entering, leaving
from shtypes.types import ShType, State

#: How mypy knows the call of what a transformation makes.
APPLIED: Final = frozenset(("shtypes.context.function.Function.__call__", "shtypes.programs.jit.JitFunction.__call__"))
#: What gives what the function gives.
_KEEP: Final = frozenset(("shtypes.programs.jit.jit", "shtypes.autodiff.checkpoint.checkpoint"))
#: Where `cond` and `switch` have their functions, and what these are given.
BRANCHES: Final = {"shtypes.control.branches.cond": (1, 3), "shtypes.control.branches.switch": (1, 2)}
_CHOICES: Final = ("builtins.bool", "builtins.int")
_SHARD_MAP: Final = "shtypes.local_mode.shard_map.shard_map"


class Applied:
    """The hooks for calls of such functions."""

    def __init__(self, checking: Checking, transformations: Transformations) -> None:
        self.checking, self.transformations = checking, transformations

    def result(self, context: MethodContext, otherwise: Callable[[MethodContext], Type]) -> Type:
        """What a function made of a lambda gives for some arguments."""
        found = _made(context.context)
        if found is None:
            return otherwise(context)
        name, function, options = found
        around = self.checking.around(context.api, context.context)
        ruled = name not in _KEEP and (around.forgiving or around.rules)
        if around.unknown or ruled or not self.checking.knows_policy(around):
            return unknown(context.default_return_type)
        given = [t for types in context.arg_types for t in types]
        if not given and name in _KEEP:
            return context.default_return_type
        if not _says_more(given):
            return unknown(context.default_return_type)
        values = {n: Value(e, None, self.checking.space) for n, e in options.items()}
        try:
            if name in _KEEP:
                return typed_lambda(context, function, given).ret_type
            if name in GRADS:
                typed = typed_lambda(context, function, given)
                if not is_known(get_proper_type(typed.ret_type)):
                    raise Unknown
                return self.transformations.gradients(context, function, typed, values, GRADS[name])
            with self.checking.scope(around):
                return self._sharded(context, function, given, values)
        except (Unknown, ShardingTypeError):  # of what enters and leaves: it is refused
            return unknown(context.default_return_type)

    def chosen(self, context: FunctionContext, where: tuple[int, int]) -> Type:
        """What one of several lambdas gives, where all give the same; the choice is no array, so that it is one."""
        first, operands = where
        around = self.checking.around(context.api, context.context)
        functions = [e for expressions in context.args[first:operands] for e in expressions]
        if len(functions) == 1 and isinstance(functions[0], ListExpr):
            functions = functions[0].items
        given = [t for types in context.arg_types[operands:] for t in types]
        choice = get_proper_type(context.arg_types[0][0]) if context.arg_types and context.arg_types[0] else None
        is_one = isinstance(choice, Instance) and choice.type.fullname in _CHOICES
        says_more = not given or _says_more(given)
        if around.unknown or not is_one or not says_more or not self.checking.knows_policy(around):
            return unknown(context.default_return_type)
        try:
            found = [get_proper_type(typed_lambda(context, f, given).ret_type) for f in functions]
        except Unknown:
            found = []
        same = bool(found) and all(map(is_known, found)) and len(set(map(text_of, found))) == 1
        return found[0] if same else unknown(context.default_return_type)

    def _sharded(
        self, context: MethodContext, function: LambdaExpr, given: Sequence[Type], options: Mapping[str, Value]
    ) -> Type:
        """What `shard_map` gives: the arguments as one device has them go in, and the result comes out by its spec."""
        space = self.checking.space
        if set(options) != {"out_specs"} or not space.config.mesh:
            raise Unknown
        spec, mesh = options["out_specs"].static(), space.mesh(())
        if not isinstance(spec, str) or not given or not all(map(is_array, given)):
            raise Unknown
        whole = [self._read(t) for t in given]
        mapped = [a for a in mesh.axis_names if all(t.state(a) is not State.VARYING for t in whole)]
        local = [entering(t, None, mapped)[1] for t in whole]
        string = self.checking.string(context.api)
        arrays = [get_proper_type(t) for t in given]
        inside = [
            with_text(a, space.text(t), string) for a, t in zip(arrays, local, strict=True) if isinstance(a, Instance)
        ]
        result = get_proper_type(typed_lambda(context, function, inside).ret_type)
        if not isinstance(result, Instance) or result.type.fullname != ARRAY:
            raise Unknown
        return with_text(result, space.text(leaving(self._read(result), spec, mapped)[1]), string)

    def _read(self, t: Type) -> ShType:
        found, space = get_proper_type(t), self.checking.space
        text = text_of(found)
        if text is None or not is_known(found):
            raise Unknown
        return space.closed(text, space.mesh(()))


def _made(where: object) -> tuple[str, LambdaExpr, Mapping[str, Expression]] | None:
    """The transformation, the lambda that it is given and its options, of a call of what it makes."""
    made = where.callee if isinstance(where, CallExpr) else None
    if not isinstance(made, CallExpr) or not isinstance(made.callee, RefExpr) or not made.args:
        return None
    first, *others = made.args
    name = made.callee.fullname
    if not isinstance(first, LambdaExpr) or name not in {*_KEEP, *GRADS, _SHARD_MAP}:
        return None
    named = dict(zip(made.arg_names[1:], others, strict=True))
    return None if None in named else (name, first, {n: e for n, e in named.items() if n is not None})


def _says_more(given: Sequence[Type]) -> bool:
    """Whether a lambda would be typed by more than mypy had: else each lambda in another one doubles the work."""
    return any(next(texts_in(t), None) is not None for t in given)
