"""The user's expressions for the operands of a call, read from the source of the running line."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, keystr, tree_leaves_with_path

from shtypes._compat.eqn_frames import Frame
from shtypes.context.eqn_source import eqn_source
from shtypes.context.frames import Owner, frames, owner_of_frame
from shtypes.context.source_tree import parsed
from shtypes.errors import ShardingTypeError
from shtypes.rules.price_fixes import called_names
from shtypes.types import ShType

#: The maximum length of an expression in a fix.
_MOST: Final = 80


def expressions_of(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Callable[[ShardingTypeError], Mapping[str, str]]:
    """A function that returns the user's expressions for the operands of a call, by their names in an error's fixes.

    It reads the source when it is called. There are none if the user's line does not call the function ``name`` itself.
    """
    frame = None
    if eqn_source() is None:
        frame = next((f for f in frames(1) if owner_of_frame(f) not in (Owner.OURS, Owner.MACHINERY)), None)
    typed = [(path, getattr(x, "type", None)) for path, x in tree_leaves_with_path((args, dict(kwargs)))]
    leaves = [(path, t) for path, t in typed if isinstance(t, ShType)]
    place = None if frame is None or owner_of_frame(frame) is Owner.INSTALLED else Frame(frame.f_code, frame.f_lasti)
    count = len(args)

    def read(error: ShardingTypeError) -> dict[str, str]:
        written = None if place is None else _arguments(place, name, count)
        names = error.names or called_names([t for _, t in leaves])
        if written is None or len(names) != len(leaves):
            return {}
        texts = {operand: _text(written, path) for operand, (path, _) in zip(names, leaves, strict=True)}
        return {operand: text for operand, text in texts.items() if 0 < len(text) <= _MOST}

    return read


def argument_names(fn: Callable[..., Any], tree: Any, places: Sequence[int]) -> Sequence[str] | None:
    """Names of some leaves of a call's arguments, such as ``params['w']``; None without a signature."""
    args, kwargs = jax.tree.unflatten(tree, range(tree.num_leaves))
    try:
        arguments = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    names = {i: str(path[0].key) + keystr(path[1:]) for path, i in tree_leaves_with_path(dict(arguments))}
    return [names[i] for i in places]


class _Arguments(NamedTuple):
    """The expressions of a call's arguments."""

    source: str  # the call's expression
    positional: list[ast.expr]
    named: dict[str, ast.expr]


def _arguments(place: Frame, name: str, count: int) -> _Arguments | None:
    """The arguments of ``name``, which has ``count`` by position, in an expression; None if that is unclear."""
    source = place.expression()
    node, is_object, name = parsed(source), name == "__call__", name.strip("_")
    match node:
        case None | ast.BoolOp() | ast.IfExp(test=ast.BoolOp()):  # which of the operands is not clear
            return None
        case ast.Call(func=ast.Attribute(attr=called_name) | ast.Name(id=called_name) as called) if called_name == name:
            args = node.args
            if isinstance(called, ast.Attribute) and count == len(args) + 1:
                args = [called.value, *args]
            if count == len(args) and not any(isinstance(a, ast.Starred) for a in args):
                return _Arguments(source, args, {k.arg: k.value for k in node.keywords if k.arg is not None})
        case ast.Call(func=called, args=args) if is_object and count == len(args) + 1:
            if not any(isinstance(a, ast.Starred) for a in args):
                return _Arguments(source, [called, *args], {k.arg: k.value for k in node.keywords if k.arg is not None})
        case ast.UnaryOp(operand=operand) | ast.Attribute(value=operand) if count == 1:
            return _Arguments(source, [operand], {})
        case ast.IfExp(test=ast.UnaryOp(operand=operand)) | ast.IfExp(test=operand):
            return _Arguments(source, [operand], {})
        case _ if name == "bool" and not place.is_call:  # of an `if` statement
            return _Arguments(source, [node], {})
        case ast.BinOp(left=left, right=right) | ast.Subscript(value=left, slice=right) if count == 2:
            return _Arguments(source, [left, right], {})
        case ast.Compare(left=left, comparators=[right]) if count == 2:
            # Python asks the right side about a number on the left.
            return _Arguments(source, [right] if isinstance(left, ast.Constant) else [left, right], {})
    return None


def _text(written: _Arguments, path: tuple[Any, ...]) -> str:
    """The expression of a leaf of the arguments; empty without one."""
    side, argument, *rest = path
    source, positional, named = written
    node: ast.expr | None
    if isinstance(argument, SequenceKey) and side == SequenceKey(0):
        node = positional[argument.idx] if argument.idx < len(positional) else None
    else:
        node = named.get(argument.key) if isinstance(argument, DictKey) else None
    while rest and (item := _item(node, rest[0])) is not None:
        node = item
        del rest[0]
    if rest and (isinstance(node, ast.Call) or any(isinstance(key, FlattenedIndexKey) for key in rest)):
        return ""  # a part of a result, or of an object that does not say how it is read
    if node is None or isinstance(node, (ast.Constant, ast.Starred)):
        return ""
    return (ast.get_source_segment(source, node) or ast.unparse(node)) + keystr(tuple(rest))


def _item(node: ast.expr | None, key: Any) -> ast.expr | None:
    """An item of a list, tuple, dict or ``x.at[key]`` that the line writes; None for others."""
    if isinstance(node, (ast.List, ast.Tuple)) and isinstance(key, SequenceKey):
        return None if any(isinstance(x, ast.Starred) for x in node.elts) else node.elts[key.idx]
    if isinstance(node, ast.Subscript) and isinstance(key, GetAttrKey) and isinstance(at := node.value, ast.Attribute):
        return at.value if key.name == "value" else node.slice
    if isinstance(node, ast.Dict) and isinstance(key, DictKey):
        written = zip(node.keys, node.values, strict=True)
        return next((v for k, v in written if isinstance(k, ast.Constant) and k.value == key.key), None)
    return None
