"""`check`: the types of a function's results and gradients from the types of its arguments; nothing runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from shtypes.analysis.target import Target, target_in_scope
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.meshes import AnyMesh
from shtypes.traced.ledger import Ledger, ledger_of
from shtypes.traced.program import is_array, is_differentiated, with_gradient
from shtypes.types import ShType
from shtypes.types.notation.printing import show
from shtypes.types.policy import current_policy
from shtypes.types.tables import Report, Table


@dataclasses.dataclass(eq=False, repr=False)
class Signature(Report):
    """The types of a call: of the arguments, the results and, if asked for, the gradients.

    Attributes:
        name: The function's name.
        arguments: The arguments by name; trees of types, and what is no array as it is.
        results: The results: a tree of types.
        gradients: The gradients of the arguments that have any, by name; None where they were not asked for.
        policy: The policy under which the program was typed, and types print.
        program: The typed program as it is compiled: a closed jaxpr.
        ledger: What the program communicates, backward too if gradients were asked for.
    """

    name: str
    arguments: Mapping[str, Any]
    results: Any
    gradients: Mapping[str, Any] | None
    policy: str
    program: Any

    @functools.cached_property
    def ledger(self) -> Ledger:
        """What the program communicates."""
        return ledger_of(self.program)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What it says, in lines of a name and a type: ``argument x``, ``f32[8@dp,16]``."""
        parts = [("argument ", self.arguments), ("result", {"": self.results})]
        parts += [] if self.gradients is None else [("gradient ", self.gradients)]
        shown = functools.partial(show, policy=self.policy)
        return [(f"{kind}{path}", text) for kind, trees in parts for path, text in _texts(trees, shown)]

    def __str__(self) -> str:
        width = max(len(head) for head, _ in self.rows) + 1
        return "\n".join([self.name, *(f"  {head + ':':<{width}} {text}" for head, text in self.rows)])

    def __repr__(self) -> str:
        return str(self)

    @property
    def title(self) -> str:
        """The function's name."""
        return self.name

    def tables(self) -> list[Table]:
        """The table of the types."""
        return [Table(self.name, ("", "type"), tuple(self.rows))]

    def to_dict(self) -> dict[str, Any]:
        """The signature for JSON: types as canonical text, by name and path."""
        return {
            "function": self.name,
            "policy": self.policy,
            "arguments": dict(_texts(self.arguments, ShType.canonical)),
            "results": dict(_texts({"result": self.results}, ShType.canonical)),
            "gradients": None if self.gradients is None else dict(_texts(self.gradients, ShType.canonical)),
        }


def _texts(trees: Mapping[str, Any], shown: Callable[[ShType], str]) -> Iterator[tuple[str, str]]:
    """The name and path of each leaf, with its type as text."""
    for name, tree in trees.items():
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)[0]:
            yield name + jax.tree_util.keystr(keys), shown(leaf) if isinstance(leaf, ShType) else _plain(leaf)


@public
def check(
    f: Callable[..., Any],
    *types: Any,
    grad: bool = False,
    mesh: AnyMesh | None = None,
    policy: str | None = None,
    dims: Mapping[str, int] | None = None,
    **named: Any,
) -> Signature:
    """The types of a function's results, and of its gradients, from types alone: no device, and no data.

    Any mesh size will do, and no JAX backend is started. The annotations of the function are checked, too, whether or
    not it is `typed`.

    Args:
        f: A function of trees of typed values.
        *types: Its arguments: texts of types such as ``"f32[8@dp, 16]"``, types, values, or trees of these; numbers are
            as they are. Without any, those that the annotations of ``f`` say.
        grad: Whether its backward pass, to all arguments with gradients, is typed too.
        mesh: The mesh of the texts; by default the one in context.
        policy: The policy; by default the one in force.
        dims: Sizes of dim names.
        **named: More arguments of ``f``.

    Returns:
        The signature: it prints, and has the types and the ledger as attributes.

    Raises:
        ShardingTypeError: the program does not type, a text cannot be read, or the annotations leave a type open.

    Communicates: nothing.

    Examples:
        >>> import shtypes as sh
        >>> def layer(x, w):
        ...     return sh.silu(x @ w)
        >>> check(
        ...     layer,
        ...     "f32[8192@dp, 1024]",
        ...     "f32[1024, 4096@tp]",
        ...     grad=True,
        ...     mesh=sh.abstract_mesh({"dp": 64, "tp": 64}),
        ... )
        layer
          argument x: f32[8192@dp,1024]
          argument w: f32[1024,4096@tp]
          result:     f32[8192@dp,4096@tp]
          gradient x: f32[8192@dp,1024]{U:tp}
          gradient w: f32[1024,4096@tp]{U:dp}
    """
    with target_in_scope(f, types, named, mesh, policy, dims) as target:
        return signature_of(target, grad=grad)


def signature_of(target: Target, *, grad: bool) -> Signature:
    """The signature of a call, in the scopes around it."""
    if grad:
        results: Any = None

        def noting(*args: Any, **kwargs: Any) -> Any:
            nonlocal results
            found = target.function(*args, **kwargs)
            results = jax.tree.map(_type, found)
            return found

        program, (_, _, cotangents) = target._replace(function=with_gradient(noting)).traced()
        gradients = _gradients(target, cotangents)
    else:
        program, results = target.traced()
        gradients = None
    arguments = {name: jax.tree.map(_type, x) for name, x in target.arguments.items()}
    return Signature(target.name, arguments, results, gradients, current_policy(), program)


def _gradients(target: Target, cotangents: Any) -> dict[str, Any]:
    """The cotangents of the arguments that have gradients, in the arguments' trees."""
    left = iter(cotangents)
    given = (target.args, target.kwargs)
    args, kwargs = jax.tree.map(lambda x: next(left) if is_differentiated(x) else None, given)
    named = Target(target.function, args, kwargs).arguments
    return {name: x for name, x in named.items() if jax.tree.leaves(x)}


def _type(x: Any) -> Any:
    if isinstance(x, Array):
        return jax.typeof(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def _plain(x: Any) -> str:
    """What is no typed value, in a line of text."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{x.dtype}[{','.join(map(str, x.shape))}], plain"
    return f"{x!r:.60}"
