"""`check`: the types of results and gradients from those of arguments; `assert_comm`: its collectives. Nothing runs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from shtypes._compat.typed_once import inlined
from shtypes.analysis.compute import Compute, compute_of
from shtypes.analysis.memory import DeviceProgram, Memory, device_program, memory_of
from shtypes.analysis.target import Target, mesh_of, scopes, target_in_scope, target_of
from shtypes.context.user_line import public
from shtypes.core.array import Array
from shtypes.core.meshes import AnyMesh
from shtypes.errors import ShardingTypeError
from shtypes.programs.jit import JitFunction
from shtypes.resharding.devices import Device, as_device
from shtypes.scopes.comm import KINDS, noting_undecided
from shtypes.traced.entry import Entry
from shtypes.traced.ledger import Ledger, ledger_of
from shtypes.traced.program import is_array, is_differentiated, split, with_gradient
from shtypes.types import ShType
from shtypes.types.mesh import context, whole_axes
from shtypes.types.notation.printing import show
from shtypes.types.policy import current_policy
from shtypes.types.tables import Report, Table


@dataclasses.dataclass(eq=False, repr=False)
class Signature(Report):
    """The types of a call: of the arguments, the results and, with ``grad``, the gradients.

    Attributes:
        name: The function's name.
        arguments: The arguments by name: pytrees of types, with non-arrays unchanged.
        results: The results: a pytree of types.
        gradients: The gradients of the differentiable arguments, by name; None without ``grad``.
        policy: The policy under which the program was typed, and types print.
        program: The typed program as compiled: a closed jaxpr.
        ledger: Its communication, also backward with ``grad``.
        undecided: Why functions under `implicit_comm` were not optimized jointly, so that their ops chose for
            themselves.
    """

    name: str
    arguments: Mapping[str, Any]
    results: Any
    gradients: Mapping[str, Any] | None
    policy: str
    _traced: Any
    _target: Target
    undecided: tuple[str, ...] = ()

    @functools.cached_property
    def program(self) -> Any:
        """The program with the equations of functions that were typed once where they are called."""
        return inlined(self._traced)

    @functools.cached_property
    def ledger(self) -> Ledger:
        """The communication of the program."""
        return ledger_of(self._traced)

    @functools.cached_property
    def memory(self) -> Memory:
        """The memory of the program on each device; the function is not traced again."""
        return memory_of(self._target, self._on_devices, grad=self.gradients is not None)

    def compute(self, device: Device | str | None = None) -> Compute:
        """The work of one device; the function is not traced again.

        Args:
            device: A device by which to predict times, as for `shtypes.compute`.
        """
        chosen = None if device is None else as_device(device, "`compute` takes")
        return compute_of(self._target, self._on_devices, chosen)

    @functools.cached_property
    def _on_devices(self) -> DeviceProgram:
        mesh = mesh_of((self._target.args, self._target.kwargs))  # another one may be in context where this is read
        with scopes(None if mesh is context() else mesh, self.policy, None):
            return device_program(self._target, grad=False)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The lines of the report: a name and a type, such as ``argument x``, ``f32[8@dp,16]``."""
        parts = [("argument ", self.arguments), ("result", {"": self.results})]
        parts += [] if self.gradients is None else [("gradient ", self.gradients)]
        text_of = functools.partial(show, policy=self.policy)
        return [(f"{kind}{path}", text) for kind, trees in parts for path, text in _texts(trees, text_of)]

    def __str__(self) -> str:
        width = max(len(head) for head, _ in self.rows) + 1
        rows = [f"  {head + ':':<{width}} {text}" for head, text in self.rows]
        return "\n".join([self.name, *rows, *(f"  op by op: {why}" for why in self.undecided)])

    def __repr__(self) -> str:
        return str(self)

    @property
    def title(self) -> str:
        """The function's name."""
        return self.name

    def tables(self) -> list[Table]:
        """The table of the types."""
        note = "\n".join(f"op by op: {why}" for why in self.undecided)
        return [Table(self.name, ("", "type"), tuple(self.rows), note=note)]

    def to_dict(self) -> dict[str, Any]:
        """The signature for JSON: types in canonical notation, by name and path."""
        return {
            "function": self.name,
            "policy": self.policy,
            "arguments": dict(_texts(self.arguments, ShType.canonical)),
            "results": dict(_texts({"result": self.results}, ShType.canonical)),
            "gradients": None if self.gradients is None else dict(_texts(self.gradients, ShType.canonical)),
            **({"undecided": list(self.undecided)} if self.undecided else {}),
        }


def _texts(trees: Mapping[str, Any], text_of: Callable[[ShType], str]) -> Iterator[tuple[str, str]]:
    """The name and path of each leaf, with its type as text."""
    for name, tree in trees.items():
        for keys, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)[0]:
            yield name + jax.tree_util.keystr(keys), text_of(leaf) if isinstance(leaf, ShType) else _plain(leaf)


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
    """The types of a function's results and gradients, from types alone: without devices and data.

    The mesh may have any size, and no JAX backend is started. The annotations of the function are checked too, even if
    it is not `typed`.

    Args:
        f: A function of pytrees of typed values.
        *types: Its arguments: types, also as strings such as ``"f32[8@dp, 16]"``, values, or pytrees of these; numbers
            are passed as they are. By default those of the annotations of ``f``.
        grad: Whether to type its backward pass too, to all differentiable arguments.
        mesh: The mesh of strings; by default the one in context.
        policy: The policy; by default the current one.
        dims: Sizes of dim names.
        **named: More arguments of ``f``.

    Returns:
        The signature: it prints, and has the types and the ledger as attributes.

    Raises:
        ShardingTypeError: the program does not type, a type has a syntax error, or the annotations leave a type open.

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
    """The signature of a call, in the present scopes."""
    with noting_undecided() as undecided:
        signature = _signature_of(target, grad=grad)
    return dataclasses.replace(signature, undecided=tuple(undecided))


def _signature_of(target: Target, *, grad: bool) -> Signature:
    if grad:
        results: Any = None

        @functools.wraps(target.function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            nonlocal results
            outs = target.function(*args, **kwargs)
            results = jax.tree.map(_type, outs)
            return outs

        program, outs = target._replace(function=with_gradient(noting)).traced()
        gradients = _gradients(target, outs[1])
    else:
        program, outs = target.traced()
        results, gradients = outs, None
    arguments = {name: jax.tree.map(_type, x) for name, x in target.arguments.items()}
    if not isinstance(target.function, JitFunction) or grad:  # a JitFunction may donate arguments, and is retraced
        target = target._replace(function=_replayed(target, program, outs), merges=False)  # merged already
    return Signature(target.name, arguments, results, gradients, current_policy(), program, target)


def _replayed(target: Target, program: Any, outs: Any) -> Callable[..., Any]:
    """A function with a target's arguments that runs its typed program, with results in the structure of ``outs``."""

    @functools.wraps(target.function)
    def run(*args: Any, **kwargs: Any) -> Any:
        arrays, _ = split((args, kwargs), is_array)
        _, fill = split(outs, lambda x: isinstance(x, (ShType, jax.core.AbstractValue)))
        return fill(jaxpr_as_fun(program)(*arrays))

    return run


def _gradients(target: Target, cotangents: Any) -> dict[str, Any]:
    """The cotangents of the differentiable arguments, in the arguments' structure."""
    left = iter(cotangents)
    args, kwargs = jax.tree.map(lambda x: next(left) if is_differentiated(x) else None, (target.args, target.kwargs))
    return {name: x for name, x in Target(target.function, args, kwargs).arguments.items() if jax.tree.leaves(x)}


def _type(x: Any) -> Any:
    if isinstance(x, Array):
        return jax.typeof(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x


def _plain(x: Any) -> str:
    """An untyped leaf, in a line of text."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{x.dtype}[{','.join(map(str, x.shape))}], plain"
    return f"{x!r:.60}"


#: The number of collectives by kind, or by kind and mesh axes.
Expected = Mapping[Any, int]


def assert_comm(
    f: Callable[..., Any],
    *args: Any,
    forward: Expected | None = None,
    backward: Expected | None = None,
    grad: bool = False,
    bytes: int | None = None,
    **kwargs: Any,
) -> Ledger:
    """Asserts the collectives of a program, with loops counted; nothing runs.

    Args:
        f: A function of typed values and plain arrays.
        *args: Its arguments: values, abstract values, types, or types as strings. By default those of the annotations
            of ``f``.
        forward: All collectives of the forward pass: ``{"all-reduce": 2}`` over any axes, or ``{("all-reduce", "tp"):
            2}`` over these. None does not check; ``{}`` means none.
        backward: The same for the backward pass, including what checkpoint recomputes.
        grad: Whether ``f`` is a forward pass whose backward pass, to all its arguments, is counted too. Not needed for
            a function that takes gradients itself.
        bytes: The maximum total that each device may send.
        **kwargs: More arguments of ``f``.

    Returns:
        The ledger.

    Raises:
        AssertionError: the program communicates otherwise; lists the expected and the actual collectives with their
            lines.
        ShardingTypeError: an expected kind does not exist.

    Examples:
        >>> import shtypes as sh
        >>> with sh.use_mesh(sh.abstract_mesh({"tp": 4})):
        ...     t = sh.ShType.parse("f32[8]{U:tp}")
        ...     _ = sh.assert_comm(
        ...         sh.all_reduce, t, forward={("all-reduce", "tp"): 1}, backward={"all-reduce": 1}, grad=True
        ...     )
    """
    signature = signature_of(target_of(f, args, kwargs), grad=grad)
    ledger = signature.ledger
    problems = [
        line
        for direction, expected, part in (
            ("forward", forward, ledger.forward()),
            ("backward", backward, ledger.backward()),
        )
        if expected is not None
        for line in _differences(direction, expected, part)
    ]
    if bytes is not None and ledger.bytes > bytes:
        problems.append(f"bytes: expected at most {bytes} B/device, found {ledger.bytes}")
    if ledger.not_covered:
        problems += [f"not covered: {item}" for item in dict.fromkeys(ledger.not_covered)]
    if problems:
        title = f"the communication of `{signature.name}` is not what was expected"
        raise AssertionError("\n".join([title, *problems]))
    return ledger


def _differences(direction: str, expected: Expected, ledger: Ledger) -> list[str]:
    """A line for each collective whose number differs from the expected one."""
    expected_counts = {_key(key): count for key, count in expected.items()}
    seen: dict[tuple[str, tuple[str, ...] | None], list[Entry]] = {key: [] for key in expected_counts}
    for entry in ledger:
        if not entry.launches:
            continue
        exact: tuple[str, tuple[str, ...] | None] = (entry.kind, tuple(sorted(whole_axes(entry.axes))))
        key = exact if exact in expected_counts or (entry.kind, None) not in expected_counts else (entry.kind, None)
        seen.setdefault(key, []).append(entry)
    lines = []
    for (kind, axes), entries in seen.items():
        count, runs = expected_counts.get((kind, axes), 0), Ledger(entries).launches
        if runs == count and all(e.times is not None for e in entries):
            continue
        what = kind if axes is None else f"{kind} over {', '.join(axes)}"
        open_ended = " or more" if any(e.times is None for e in entries) else ""
        places = "".join(f"\n    {_at(e)}" for e in entries)
        lines.append(f"{direction}: {what}: expected {count}, found {runs}{open_ended}{places}")
    return lines


def _key(key: Any) -> tuple[str, tuple[str, ...] | None]:
    kind, *axes = (key,) if isinstance(key, str) else key
    if kind not in KINDS:
        raise ShardingTypeError(f"there is no collective {kind!r}; they are {', '.join(KINDS)}")
    flat = [a for part in axes for a in ((part,) if isinstance(part, str) else part)]
    return kind, tuple(sorted(flat)) if flat else None


def _at(entry: Entry) -> str:
    times = "" if entry.times == 1 else f" {'?' if entry.times is None else entry.times} times"
    place = f"{entry.place} in {entry.place.function}" if entry.place.file else "(no line)"
    return f"{place}: {entry}{times}, {entry.bytes} B/device: {entry.src} -> {entry.dst}"
