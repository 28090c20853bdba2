"""Errors for the arguments and signatures of calls."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import operator
import re
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from types import MappingProxyType
from typing import Any, Final

from shtypes.context.unsupported import unsupported_parameter
from shtypes.errors import ShardingTypeError, also

#: Names of parameters, with their names in similar functions.
_OTHER_NAMES: Final = {"axis": ("dim", "dims"), "dim": ("axis",), "dims": ("axis",)}
#: Parameters that jax.numpy has only to refuse them.
_FOR_NUMPY: Final = {"out", "where", "inplace"}


def refuse_unknown(name: str, keywords: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuses keywords that a function does not have."""
    for keyword in keywords:
        if keyword not in allowed:
            raise _no_parameter(name, keyword, allowed)


def _no_parameter(name: str, keyword: str, allowed: Sequence[str]) -> ShardingTypeError:
    has = f"it has {', '.join(allowed)}" if allowed else "it has none"
    of_jax = unsupported_parameter(name, keyword)
    if of_jax is not None:
        hints = [way for way in of_jax.instead if way[-1] != "=" or way[:-1] in allowed]
        return ShardingTypeError(f"`{name}` has no parameter `{keyword}`", why=f"{of_jax.why}; {has}", hints=hints)
    translated = [k for k in _OTHER_NAMES.get(keyword, ()) if k in allowed]
    similar = translated or difflib.get_close_matches(keyword, allowed, n=1, cutoff=0.6)
    return ShardingTypeError(f"`{name}` has no parameter `{keyword}`", why=has, hints=[f"{k}=" for k in similar])


def refuse_unsupported(name: str, keywords: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuses unsupported keywords of JAX's function, which would otherwise be passed to the user's function."""
    for keyword in keywords:
        if unsupported_parameter(name, keyword) is not None:
            raise _no_parameter(name, keyword, allowed)


def signature_of(parameters: str, returns: str = "Array", operands: int = 1) -> inspect.Signature:
    """The signature of a generated function, for type checkers."""
    parsed = inspect.signature(eval(f"lambda {parameters}: None", {}))
    typed = [
        p.replace(annotation="ArrayLike" if i < operands else _annotation(p))
        for i, p in enumerate(parsed.parameters.values())
    ]
    return parsed.replace(parameters=typed, return_annotation=returns)


def _annotation(parameter: inspect.Parameter) -> str:
    return type(parameter.default).__name__ if isinstance(parameter.default, (int, float, str)) else "Any"


def bound(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, with defaults."""
    refuse_unknown(name, kwargs, [*signature.parameters])
    try:
        arguments = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ShardingTypeError(f"`{name}` does not take these arguments", why=str(error)) from None
    arguments.apply_defaults()
    return arguments.arguments


def parameters(fn: Callable[..., Any], skip: int = 0) -> tuple[str, ...]:
    """The names of a function's parameters, without the first ``skip`` and those that jax.numpy refuses."""
    try:
        all_parameters = list(inspect.signature(fn).parameters.values())[skip:]
    except (TypeError, ValueError):
        return ()
    open_kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(p.name for p in all_parameters if p.kind not in open_kinds and p.name not in _FOR_NUMPY)


def signature_error(name: str, fn: Callable[..., Any], error: TypeError) -> ShardingTypeError:
    """Converts Python's `TypeError` about a call's arguments."""
    message = str(error)
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", message)
    names = [p for p in inspect.signature(fn).parameters if p not in ("self", "cls")]
    if unexpected is None:
        why = message.partition("() ")[2] or message
        why += "" if "missing" in why else f"; it has {', '.join(names)}"
        return ShardingTypeError(f"`{name}` does not take these arguments", why=why)
    if unexpected[1] in names:  # a positional-only parameter
        return ShardingTypeError(f"`{name}` takes `{unexpected[1]}` by its place, and not by name")
    return _no_parameter(name, unexpected[1], names)


def argument_error(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> ShardingTypeError:
    """Converts an error of Python or JAX about an argument of a function of arrays."""
    try:
        arguments = inspect.signature(fn).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a generated function
        arguments = {}
    suspects = [k for k, v in arguments.items() if _differs_from_default(inspect.signature(fn).parameters[k], v)]
    what = f"`{suspects[0]}={_short_repr(arguments[suspects[0]])}`" if len(suspects) == 1 else "these arguments"
    return jax_error(name, f"does not take {what}", error, arguments)


#: Names of parameters that are dims, where their annotation allows no text.
_DIMS: Final = frozenset(("axis", "axes", "axis1", "axis2", "axisa", "axisb", "dim", "dims", "source", "destination"))


def dim_by_name_error(
    name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> ShardingTypeError | None:
    """The error for a call that names a dim, or the mesh axis that shards it, in place of its number; else None."""
    try:
        signature = inspect.signature(fn)
        arguments = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return None
    for key, value in arguments.items():
        if key not in _DIMS or "str" in str(signature.parameters[key].annotation):
            continue
        values = value if isinstance(value, (tuple, list)) else (value,)
        if any(isinstance(v, str) for v in values):
            types = [t for t in (getattr(x, "type", None) for _, x in _leaves(arguments)) if hasattr(t, "dims")]
            return _dims_by_name(name, key, value, values, types[0] if types else None)
    return None


def _dims_by_name(name: str, key: str, value: Any, values: Sequence[Any], t: Any) -> ShardingTypeError:
    what = f"`{key}` of `{name}` is {value!r:.60}, and a dim is given by its number"
    if t is None:
        return ShardingTypeError(what)
    why, hints, numbers = [f"the operand is {t}"], [], []
    for text in values:
        dim = next((d for d, dim in enumerate(t.dims) if text == dim.name or text in dim.axes), text)
        numbers.append(dim)
        if text in t.mesh.axis_names:
            why.append(f"`{text}` is a mesh axis{f', and shards dim {dim}' if dim != text else ''}")
            hints += [f'sh.all_reduce(x, "{text}") sums over the devices of a mesh axis'] if dim == text else []
        elif dim != text:
            why.append(f"`{text}` is the name of dim {dim}, for reading")
    if not any(isinstance(n, str) for n in numbers):
        hints.append(f"{key}={numbers[0] if isinstance(value, str) else tuple(dict.fromkeys(numbers))}")
    return ShardingTypeError(what, why="; ".join(why), hints=hints)


#: The message for a result that is no array, and what to return instead of one whose items are computed when read.
_NO_ARRAY: Final = "a result of `{name}` is no array, but of class `{kind}`{at}"
_AS_LIST: Final = "a list of its items, which are computed when they are read: after the function has returned"
_LAZY: Final = r"(?:map|filter|zip|enumerate|reversed|generator|\w+_iterator|dict_\w+)"


def is_lazy(x: Any) -> bool:
    """Whether the items of a result are computed when they are read, such as those of a `map`."""
    return isinstance(x, (Iterator, ValuesView, ItemsView))


def lazy_result(name: str, x: Any, path: str) -> ShardingTypeError:
    """The error for such a result."""
    at = f", at `{path}`" if path else ""
    return ShardingTypeError(_NO_ARRAY.format(name=name, kind=type(x).__name__, at=at), hints=[_AS_LIST])


_OF_CLASS: Final = r"of type '?<class '(?P<module>(?:[\w<>]+\.)*)(?P<kind>{})'>"
_CLASS: Final = _OF_CLASS.format(r"\w+")
_TAKES_ARRAYS: Final = "`{name}` takes arrays, and was given a value of class `{kind}`{at}"
#: Patterns of JAX's errors about arguments and results of the function NAME; our message and hint for each.
_REWORDED: Final = (
    (rf"returned a value {_OF_CLASS.format(_LAZY)}(?: at output component (?P<at>\S+?))?, ", _NO_ARRAY, _AS_LIST),
    (rf"returned a value {_CLASS}(?: at output component (?P<at>\S+?))?, ", _NO_ARRAY, ""),
    (
        rf"Non-hashable static arguments.*{_CLASS}",
        "a static argument of `{name}` has no hash: it is of class `{kind}`",
        "a tuple in place of a list; an array is no static argument",
    ),
    (
        rf"<function (?:\S+\.)?NAME at .*abstract array.*{_CLASS}.* path (?P<path>\S+)\.\n.*static_argnames",
        _TAKES_ARRAYS,
        "static_argnames= or static_argnums= for what is no array",
    ),
    (
        rf"(?=.*(?:valid JAX type|abstract array|must be a scalar)).*{_CLASS}(?:.* path (?P<path>\S+)\.\n|)",
        _TAKES_ARRAYS,
        "",
    ),
    (r"__jax_array__\(\) during abstractification", "an argument or a result of `{name}` is a type, and no value", ""),
)


def jax_error(
    name: str, what: str, error: Exception, arguments: Mapping[str, Any] = MappingProxyType({})
) -> ShardingTypeError:
    """Converts an error of JAX or Python about a call of ``name``; the result is of the error's class too.

    ``what`` is the message after the name, for errors that are not in `_REWORDED`.
    """
    for pattern, message, hint in _REWORDED:
        match = re.search(pattern.replace("NAME", re.escape(name)), str(error), re.DOTALL)
        if match:
            groups = match.groupdict()
            kind, at = groups.get("kind"), groups.get("at") or groups.get("path")
            if "path" in groups and not at:
                at = next((path for path, x in _leaves(arguments) if type(x).__name__ == kind), "")
            why = "JAX has no arrays of its dtype" if kind == "ndarray" and "path" in groups else ""
            hints = [hint] if hint else []
            if message is _TAKES_ARRAYS and groups.get("module") and kind != "ndarray":
                hints.append(of_class(str(kind)))
            return also(type(error))(
                message.format(name=name, kind=kind, at=f", at `{at}`" if at else ""), why=why, hints=hints
            )
    return also(type(error))(f"`{name}` {what}", why=_message(error))


def of_class(kind: str) -> str:
    """The hint for a value of a class that JAX does not know."""
    return f"jax.tree_util.register_dataclass({kind}, ...) where its fields are arrays"


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, lists and tuples, with their paths as in `x[0]['w']`."""
    if isinstance(tree, Mapping):
        for key, x in tree.items():
            yield from _leaves(x, f"{path}[{key!r}]" if path else str(key))
    elif isinstance(tree, (list, tuple)):
        for i, x in enumerate(tree):
            yield from _leaves(x, f"{path}[{i}]")
    else:
        yield path, tree


def internal_error(name: str, error: Exception) -> ShardingTypeError:
    """Converts an error of Python or JAX that is a fault of shtypes."""
    return ShardingTypeError(
        f"`{name}` failed in a part of shtypes, whatever its arguments are: {type(error).__name__}: {_message(error)}",
        hints=["report it, with the traceback: it is no error of your program"],
    )


def _message(error: Exception) -> str:
    """The first line of an error and the text that it introduces, without JAX's class names and outer functions."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    sentence = key if isinstance(key, str) and " " in key else str(error)
    first, *rest = re.split(r"\n\s*\n", sentence.strip())
    text, _, more = first.partition("\n")
    if key is not None and sentence is not key:
        text = f"there is no {text}"
    if text.startswith("Abstract tracer value"):
        text = more.partition("\n")[0] or text
    if text.endswith((":", "differ.", "at key path")):
        text += "\n" + (more or next((part for part in rest if " but " in part), "".join(rest[:1])))
    text = re.sub(r"\w*Tracer\((\w+\[[^\]]*\])[^)]*\)", r"\1", text.rstrip(" ;"))
    text = re.sub(r"(?:<class )?'?\b[\w.]+Tracer\b'?>?", "a traced array", re.sub(r"[\w.<>]*<locals>\.", "", text))
    return text or "an assertion of JAX does not hold, which says no more"


def _differs_from_default(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether an argument's class is not that of its parameter's default."""
    default = parameter.default
    if (
        default is parameter.empty
        or value is None
        or value is default
        or (callable(value) and not isinstance(value, type))
    ):
        return False
    return default is None or not isinstance(value, type(default))


def _short_repr(value: Any) -> str:
    if hasattr(value, "type"):
        return str(value.type)
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else f"{value!r:.40}"


def kind_of(x: Any) -> str:
    """The name of a value's class; ``an array`` for all classes of arrays."""
    return "an array" if hasattr(x, "dtype") else type(x).__name__


def name_of(f: Any) -> str:
    """The name of a function or of a partial's function; empty if it has none."""
    return str(getattr(f, "__name__", None) or getattr(getattr(f, "func", None), "__name__", ""))


def as_numbers(name: str, parameter: str, value: Any) -> tuple[int, ...]:
    """Converts an integer or a sequence of integers to a tuple; refuses other values of ``parameter``."""
    with contextlib.suppress(TypeError):
        return (operator.index(value),)
    with contextlib.suppress(TypeError):
        return tuple(map(operator.index, value))
    raise ShardingTypeError(f"`{parameter}` of `{name}` is an integer or a sequence of integers, not {value!r:.60}")


def check_function(name: str, function: Any, what: str = "") -> None:
    """Refuses a non-callable argument of ``name``; ``what`` names the argument, if there are several."""
    if not callable(function):
        expected = f"{what} of `{name}` is a function" if what else f"`{name}` takes a function"
        raise ShardingTypeError(f"{expected}, not {_short_repr(function)}")
