"""Random typed programs, and what must hold of each: it means what the same text means in plain JAX on one device.

A program is a list of named expressions in ``m``, which is `shtypes` or plain JAX. Drawing one types every expression
as it goes: what is refused stays in the program as a refusal, which must come again wherever the program runs.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shtypes as sh
from shtypes.array import wrap
from shtypes.hitype import hi
from shtypes.lowering.carrier import carrier_sharding
from tests.end_to_end import Reference, assignments

MESHES: tuple[dict[str, int], ...] = (
    {"x": 2},
    {"x": 4},
    {"x": 2, "y": 2},
    {"x": 2, "y": 4},
    {"x": 2, "y": 2, "z": 2},
    {"x": 1, "y": 2},
)
SIZES = (1, 4, 8)


class Plain(Reference):
    """JAX's own functions, under the names that typed programs use."""

    vmap: Any = staticmethod(jax.vmap)
    grad: Any = staticmethod(jax.grad)
    jvp: Any = staticmethod(jax.jvp)
    vjp: Any = staticmethod(jax.vjp)
    checkpoint = staticmethod(jax.checkpoint)

    @staticmethod
    def constant(x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    @staticmethod
    def checkpoint_name(x: Any, name: str) -> Any:
        return x


PLAIN = Plain()

#: Plain values that programs may name: numbers and arrays of every kind that JAX takes, all without a gradient.
CONSTANTS: dict[str, Any] = {
    "np": np,
    "jnp": jnp,
    "ROW": np.asarray([0.5, -0.25, 2.0, 0.0], np.float32),
    "LONG": np.asarray([1.5, -0.5, 0.25, 1.0, 0.0, -2.0, 0.75, 0.125], np.float32),
    "TABLE": jnp.asarray(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)),
    "ZERO_D": np.asarray(0.75, np.float32),
    "SCALAR": np.float32(-1.25),
    "WEAK": jnp.asarray(0.5),
    "COUNTS": np.asarray([3, -1, 0, 2], np.int32),
    "MASK": np.asarray([True, False, False, True]),
    "YES": jnp.asarray(True),
    "NO": jnp.asarray(False),
}


@dataclass(frozen=True)
class Value:
    """A name of a program: its type, and about how large its elements may be."""

    name: str
    type: Any
    bound: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.type.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def kind(self) -> str:
        return "b" if self.type.dtype_name == "bool" else "f" if self.type.differentiable else "i"


@dataclass(frozen=True)
class Step:
    """``name = text``; a refused step must raise `ShardingTypeError` and has no value."""

    name: str
    text: str
    refused: bool = False


@dataclass(frozen=True)
class Program:
    """A program and its inputs.

    Attributes:
        mesh: Sizes of the mesh axes.
        policy: The policy it is traced under.
        inputs: Host array and type text by name.
        steps: The expressions, in order.
        label: Says where it comes from.
        tolerance: The largest error relative to the largest element.
    """

    mesh: Mapping[str, int]
    policy: str
    inputs: Mapping[str, tuple[Any, str]]
    steps: tuple[Step, ...]
    label: str = ""
    tolerance: float = 1e-4

    @functools.cached_property
    def accepted(self) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if not s.refused)

    def values(self, m: Any, inputs: Mapping[str, Any], *, refusals: bool = False) -> dict[str, Any]:
        """Every value of the program; with ``refusals``, the refused steps are tried as well."""
        env: dict[str, Any] = {**CONSTANTS, **inputs, "m": m}
        found = {}
        for step in self.steps:
            if not step.refused:
                env[step.name] = found[step.name] = _evaluated(step, env)
            elif refusals:
                try:
                    _evaluated(step, env)
                except sh.ShardingTypeError:
                    continue
                raise AssertionError(f"{step.text} was refused when the program was drawn, and is taken here")
        return found

    def __str__(self) -> str:
        lines = [
            "import jax, jax.numpy as jnp, numpy as np",
            'jax.config.update("jax_num_cpu_devices", 8)',
            "import shtypes as sh",
            "from tests.random_programs import *",
            "globals().update(CONSTANTS)",
            f"sh.set_policy({self.policy!r}); sh.set_mesh(sh.make_mesh({dict(self.mesh)!r}))",
            "m = sh",
            *(
                f"{name} = spread(np.asarray({_shown(array)}, {str(array.dtype)!r}).reshape({array.shape}), {text!r})"
                for name, (array, text) in self.inputs.items()
            ),
            *(f"{s.name} = {s.text}" if not s.refused else f"# refused: {s.text}" for s in self.steps),
        ]
        return "\n".join(lines)


def _shown(array: Any) -> str:
    return repr([float(f"{x:.9g}") if array.dtype.kind == "f" else x.item() for x in array.ravel()])


def _evaluated(step: Step, env: dict[str, Any]) -> Any:
    return eval(step.text, env)


def spread(array: Any, text: str) -> Any:
    """A typed value whose pending sums are really spread: no device holds the value, and none holds zeros."""
    t = hi(sh.abstract_array(text, shape=array.shape, dtype=str(array.dtype)).type)
    sizes = [t.mesh.shape[a] for a in t.axes(sh.State.UNREDUCED)]
    count = int(np.prod(sizes, dtype=int))
    parts = np.random.default_rng(3).integers(1, 16, (*array.shape, count)) / (1 if array.dtype.kind in "iu" else 8)
    parts = parts.astype(array.dtype)  # wraps, for unsigned ones
    parts[..., -1] = array - parts[..., :-1].sum(-1, dtype=array.dtype)
    return wrap(t, jax.device_put(parts.reshape((*array.shape, *sizes)), carrier_sharding(t)))


# drawing


class Draw:
    """Choices from what a program has so far."""

    def __init__(self, rng: np.random.Generator, mesh: Any, pool: Sequence[Value]) -> None:
        self.rng, self.mesh, self.pool = rng, mesh, pool

    def one(self, options: Sequence[Any]) -> Any:
        """One of several."""
        if not options:
            raise NothingFits
        return options[int(self.rng.integers(len(options)))]

    def flip(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def value(self, kinds: str = "f", keep: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value of one of some kinds (``f``, ``i``, ``b``), the later ones more often."""
        fitting = [v for v in self.pool if v.kind in kinds and keep(v)]
        if fitting and self.flip(0.4):
            return fitting[-1]
        found: Value = self.one(fitting)
        return found

    def partner(self, v: Value, kinds: str = "f") -> Value:
        """A value that broadcasts with ``v``; often itself."""
        return self.value(kinds, lambda w: _broadcasts(v.shape, w.shape))

    def dim(self, v: Value) -> int:
        return int(self.one(range(v.ndim)))

    def dims(self, v: Value) -> Any:
        """What an ``axis`` parameter may be."""
        options = [c for n in range(1, v.ndim + 1) for c in itertools.combinations(range(v.ndim), n)]
        chosen = self.one([None, *options])
        return chosen[0] - self.one([0, v.ndim]) if chosen is not None and len(chosen) == 1 else chosen

    def type(self, shape: Sequence[int]) -> str:
        """A type text without a dtype, every axis in any state that fits."""
        return str(self.one(list(assignments(self.mesh, shape))))

    def constant(self, v: Value) -> str:
        """A number, or a plain array that broadcasts with ``v``."""
        arrays = [k for k, a in CONSTANTS.items() if hasattr(a, "dtype") and a.dtype == np.float32]
        fitting = [k for k in arrays if _broadcasts(v.shape, np.shape(CONSTANTS[k]))]
        return str(self.one(["2", "0.5", "-1.5", "0", "0.0", "-0.0", "1", "True", *fitting, *fitting]))


class NothingFits(Exception):  # noqa: N818  # a signal, not an error
    """The pool has no operand for the op that was drawn."""


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(reversed(a), reversed(b), strict=False))


#: What an op draws: an expression and a bound of its elements.
Drawn = tuple[str, float]
OPS: list[tuple[float, Callable[[Draw], Drawn]]] = []


def op(weight: float = 1.0) -> Callable[[Callable[[Draw], Drawn]], Callable[[Draw], Drawn]]:
    """Registers an op of the generator."""

    def register(draw: Callable[[Draw], Drawn]) -> Callable[[Draw], Drawn]:
        OPS.append((weight, draw))
        return draw

    return register


#: Smooth functions, or kinked at 0 only, of values between -4 and 4.
UNARY = (
    "sin", "cos", "tanh", "silu", "gelu", "sigmoid", "relu", "softplus", "abs", "square", "arctan", "erf", "elu",
    "leaky_relu", "arcsinh", "expit", "log_sigmoid", "sinc", "nan_to_num", "cbrt" "",
)[:-1]  # fmt: skip


@op(3)
def unary(d: Draw) -> Drawn:
    v = d.value()
    return f"m.{d.one(UNARY)}({v.name})", max(v.bound, 1) ** 2


@op(1)
def positive(d: Draw) -> Drawn:
    v = d.value()
    inner = d.one(
        ["m.sqrt(m.abs({}) + 0.5)", "m.log(1.5 + m.square({}))", "1.0 / (1 + m.square({}))", "m.exp(-m.abs({}))"]
    )
    return inner.format(v.name), 3.0


@op(2)
def linear(d: Draw) -> Drawn:
    v = d.value()
    text = d.one(
        ["-{}", "{} * 0.5", "2 * {}", "{} / 4", "m.negative({})", "m.real({})", "m.positive({})", "m.conj({})"]
    )
    return text.format(v.name), 2 * v.bound


@op(5)
def binary(d: Draw) -> Drawn:
    v = d.value()
    w = v if d.flip(0.1) else d.partner(v)
    a, b = (v, w) if d.flip() else (w, v)
    form, bound = d.one(
        [
            ("{a} + {b}", a.bound + b.bound),
            ("{a} - {b}", a.bound + b.bound),
            ("{a} * {b}", a.bound * b.bound),
            ("m.maximum({a}, {b})", a.bound + b.bound),
            ("m.minimum({a}, {b})", a.bound + b.bound),
            ("{a} / (1.5 + m.square({b}))", a.bound),
            ("m.hypot({a}, {b} + 0.5)", a.bound + b.bound),
            ("m.arctan2({a}, 2.5 + m.abs({b}))", 2.0),
            ("m.logaddexp({a}, {b})", a.bound + b.bound + 1),
        ]
    )
    return form.format(a=a.name, b=b.name), bound


@op(3)
def with_constant(d: Draw) -> Drawn:
    v = d.value()
    form = d.one(["{v} + {c}", "{c} + {v}", "{v} - {c}", "m.subtract({c}, {v})", "{v} * {c}", "m.multiply({c}, {v})",
                  "m.maximum({v}, {c})", "m.minimum({c}, {v})", "m.add({c}, {v})"])  # fmt: skip
    return form.format(v=v.name, c=d.constant(v)), 2 * v.bound + 2


@op(1)
def power(d: Draw) -> Drawn:
    v = d.value()
    return f"{v.name} ** {d.one([2, 3, 1, 0])}", max(v.bound, 1) ** 3


@op(1)
def clip(d: Draw) -> Drawn:
    v = d.value()
    return d.one(["m.clip({v}, -0.5, 0.75)", "m.clip({v}, None, 0.3)", "m.clip({v}, -0.4)"]).format(v=v.name), v.bound


EQUATIONS = {
    (1, 1): ("i,i->", "i,j->ij", "i,i->i"),
    (2, 1): ("ij,j->i", "ij,j->ij", "ij,i->j", "ij,j->"),
    (2, 2): ("ij,jk->ik", "ij,kj->ik", "ij,ij->", "ij,ij->i", "ij,jk->ijk", "ij,ij->ji"),
    (3, 2): ("abi,ij->abj", "abi,bj->aij", "abi,bi->ab"),
    (3, 3): ("abi,abi->ab", "abi,abj->aij", "abi,acj->bcij"),
    (3, 1): ("abi,i->ab", "abi,a->bi"),
}


@op(4)
def einsum(d: Draw) -> Drawn:
    (n, m), equations = d.one(list(EQUATIONS.items()))
    equation = d.one(equations)
    left, right = equation.split("->")[0].split(",")
    v = d.value("f", lambda x: x.ndim == n)
    sizes = dict(zip(left, v.shape, strict=True))
    w = d.value("f", lambda x: x.ndim == m and all(sizes.get(k, n) == n for k, n in zip(right, x.shape, strict=True)))
    summed = set(left + right) - set(equation.split("->")[1])
    sizes |= dict(zip(right, w.shape, strict=True))
    count = int(np.prod([sizes[k] for k in summed], dtype=int))
    return f'm.einsum("{equation}", {v.name}, {w.name})', v.bound * w.bound * max(1, count) ** 0.7


@op(2)
def matmul(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    w = d.value("f", lambda x: x.ndim in (1, 2) and x.shape[0] == v.shape[-1])
    form = d.one(["{} @ {}", "m.matmul({}, {})", "m.dot({}, {})", "m.tensordot({}, {}, 1)"])
    return form.format(v.name, w.name), v.bound * w.bound * v.shape[-1] ** 0.7


@op(1)
def single(d: Draw) -> Drawn:
    """Einsums of one operand, diagonals among them."""
    v = d.value("f", lambda x: x.ndim == 2)
    square = v.shape[0] == v.shape[1]
    equation = d.one(["ij->ji", "ij->i", "ij->", *(("ii->i", "ii->") if square else ())])
    return f'm.einsum("{equation}", {v.name})', v.bound * 8


@op(4)
def reduction(d: Draw) -> Drawn:
    v = d.value()
    name = d.one(["sum", "sum", "mean", "max", "min", "logsumexp", "var", "sum", "mean"])
    return f"m.{name}({v.name}, axis={d.dims(v)!r}, keepdims={d.flip(0.3)})", v.bound * 6 + 4


@op(2)
def where(d: Draw) -> Drawn:
    p = d.value("bf", lambda v: v.kind == "b" or v.name.startswith("x"))
    condition = p.name if p.kind == "b" else d.one(["{} > 0.2071", "{} <= -0.1033", "{} > 0.3119"]).format(p.name)
    a = d.partner(p)
    b = d.value("f", lambda w: _broadcasts(p.shape, w.shape) and _broadcasts(a.shape, w.shape))
    if d.flip(0.4):
        pair = [a.name, d.one(["0", "1.5", "-0.5", "0.0", "-0.0", "SCALAR", "ZERO_D"])]
        first, second = pair if d.flip() else pair[::-1]
        return f"m.where({condition}, {first}, {second})", a.bound + 1.5
    return f"m.where({condition}, {a.name}, {b.name})", a.bound + b.bound


@op(2)
def join(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1 and x.ndim <= 2)
    w = d.value("f", lambda x: x.shape == v.shape)
    if d.flip(0.5):
        return f"m.stack([{v.name}, {w.name}], axis={d.one(range(-v.ndim - 1, v.ndim + 1))})", v.bound + w.bound
    return f"m.concatenate([{v.name}, {w.name}], axis={d.dim(v)})", v.bound + w.bound


@op(1)
def split(d: Draw) -> Drawn:
    v = d.value("f", lambda x: any(n % 4 == 0 for n in x.shape))
    dim = d.one([i for i, n in enumerate(v.shape) if n % 4 == 0])
    form = d.one(
        ["m.split({v}, 2, axis={d})[{i}]", "m.array_split({v}, 3, axis={d})[{i}]", "m.split({v}, [1], axis={d})[{i}]"]
    )
    return form.format(v=v.name, d=dim, i=d.one([0, 1])), v.bound


@op(3)
def arrange(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    k = d.dim(v)
    forms = [
        f"m.flip({v.name}, {k})",
        f"m.roll({v.name}, {d.one([1, -3])}, {k})",
        f"m.roll({v.name}, 2)",
        f"m.cumsum({v.name}, axis={k}) * 0.25",
        f"m.repeat({v.name}, 2, axis={k})",
        f"m.repeat({v.name}, 2)",
        f"m.tile({v.name}, {d.one([1, 2, (2, 1), (1,) * v.ndim])})",
        f"m.pad({v.name}, {d.one(['1', '((0, 2),) + ((0, 0),) * ' + str(v.ndim - 1)])})",
        f"m.pad({v.name}, 1, constant_values={d.one([1.5, -2])})",
        f"m.diff({v.name}, axis={k})",
        f"m.sort({v.name} + 0.3, axis={k})",
        f"m.cummax({v.name}, axis={k})",
    ]
    if v.ndim >= 2:
        forms += [
            f"m.tril({v.name}, {d.one([-1, 0, 2])})",
            f"m.triu({v.name}, {d.one([-1, 0, 2])})",
            f"m.trace({v.name}, {d.one([0, 1])})",
            f"m.diagonal({v.name}, {d.one([0, 0, 1])})",
        ]
    if v.ndim == 1:
        forms += [f"m.diag({v.name}, {d.one([0, 0, 1])})"]
    return d.one(forms), v.bound * 2


@op(4)
def shape(d: Draw) -> Drawn:
    v = d.value("fi" if d.flip(0.1) else "f")
    size = int(np.prod(v.shape, dtype=int))
    shapes = [
        s for n in range(4) for s in itertools.product((1, 2, 4, 8, 16), repeat=n) if np.prod(s, dtype=int) == size
    ]
    perm = list(map(int, d.rng.permutation(v.ndim)))
    target = tuple(d.one([1, 4]) if n == 1 and d.flip() else n for n in v.shape)
    target = (*((d.one([1, 4, 8]),) if v.ndim < 3 and d.flip() else ()), *target)
    target = tuple(t if n == 1 else n for t, n in zip(target[len(target) - v.ndim :], v.shape, strict=True))
    forms = [
        f"m.reshape({v.name}, {d.one(shapes) if shapes else (-1,)})",
        f"m.transpose({v.name}, {perm})",
        f"m.expand_dims({v.name}, {d.one(range(-v.ndim - 1, v.ndim + 1))})",
        f"m.squeeze({v.name})",
        f"m.ravel({v.name})",
        f"m.broadcast_to({v.name}, {(*((4,) if v.ndim < 3 and d.flip() else ()), *target)})",
        f"{v.name}.T",
    ]
    return d.one(forms), v.bound


@op(1)
def softmax(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    return f"m.{d.one(['softmax', 'log_softmax', 'standardize'])}({v.name}, axis={d.dim(v)})", 4.0


@op(2)
def index(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    ids = d.one([None, *[w for w in d.pool if w.kind == "i" and w.ndim <= 1]])
    dim = d.dim(v)
    size = max(v.shape[dim], 1)  # positions stay in range: out of it, the gradient differs from JAX's on purpose
    rest = ["0", "-1", "1:3", "::2", "None", "...", "::-1", f"COUNTS % {size}", f"{ids.name} % {size}" if ids else "2:"]
    if ids and d.flip(0.3):
        return f"m.take({v.name}, {ids.name} % {size}, axis={dim})", v.bound
    return f"{v.name}[{':, ' * dim}{d.one(rest)}]", v.bound


@op(1)
def scatter(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    where = d.one(["0", "1:3", ":", f"COUNTS % {max(v.shape[0], 1)}"])
    return f"{v.name}.at[{where}].{d.one(['add', 'set'])}({d.one(['1.5', '0', '-0.25'])})", v.bound + 6


@op(6)
def reshard(d: Draw) -> Drawn:
    v = d.value("fffffi")
    if v.kind == "f" and d.flip(0.2):
        axis = d.one(d.mesh.axis_names)
        form = d.one(["m.all_reduce({v})", "m.all_reduce({v}, {a!r}, to='I')", "m.all_gather({v}, {a!r})",
                      "m.reduce_scatter({v}, {a!r}, 0)", "m.shard({v}, {a!r}, 0)",
                      "m.all_to_all({v}, {a!r}, 0)"])  # fmt: skip
        return form.format(v=v.name, a=axis), v.bound
    return f'm.reshard({v.name}, "{d.type(v.shape)}")', v.bound


@op(1)
def like(d: Draw) -> Drawn:
    v = d.value()
    return d.one(
        ["m.zeros_like({v})", "m.ones_like({v})", "m.full_like({v}, -0.75)", "m.stop_gradient({v})", "m.constant({v})"]
    ).format(v=v.name), v.bound + 1


@op(2)
def integers(d: Draw) -> Drawn:
    v = d.value("i")
    w = d.value("i", lambda x: _broadcasts(v.shape, x.shape))
    forms = ["{v} + {w}", "{v} * 2", "{v} - {w}", "m.maximum({v}, {w})", "m.sum({v}, axis=0)", "{v} // 3",
             "{v} + COUNTS", "m.mean({v})",
             "{v} * {w}", "{v} % 5 + 1", "m.cumsum({v})", "-{v}", "{v} / 2"]  # fmt: skip
    return d.one(forms).format(v=v.name, w=w.name), 8.0


@op(2)
def casts(d: Draw) -> Drawn:
    v = d.value("ib" if d.flip(0.6) else "f")
    if v.kind == "f":
        form = d.one(["m.astype(m.astype({v}, 'bf16'), 'f32')", "m.astype({v} * 3.1, 'i32')", "{v} > 0.1171"])
        if "x" not in v.name:  # a rounded value may differ in its last bits
            form = "m.astype({v}, 'f32')"
        return form.format(v=v.name), v.bound
    return d.one(["m.astype({v}, 'f32') * 0.125", "{v} * 0.25", "m.astype({v}, 'i32')"]).format(v=v.name), 4.0


@op(2)
def mixed(d: Draw) -> Drawn:
    v = d.value("ib")
    w = d.partner(v)
    return d.one(["{w} * {v}", "{w} + {v}", "{v} - {w}", "m.where({v} == 1, {w}, 0)"]).format(
        v=v.name, w=w.name
    ), w.bound * 8


def _body(d: Draw, names: Sequence[str], depth: int = 2) -> str:
    """An elementwise expression of names of one shape."""
    if not depth or d.flip(0.2):
        return str(d.one(names))
    a, b = _body(d, names, depth - 1), _body(d, names, depth - 1)
    form = d.one(["({a} + {b})", "({a} - {b})", "({a} * {b})", "m.tanh({a})", "({a} * 0.5)", "m.maximum({a}, {b})",
                  "-({a})", "m.where({a} > 0.1931, {a}, {b})" if a.startswith("x") else "m.sin({a})",
                  "({a} + 0.5)"])  # fmt: skip
    return str(form).format(a=a, b=b)


@op(1.5)
def checkpointed(d: Draw) -> Drawn:
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "b", w.name], 3)
    if d.flip(0.4):
        inner = f'm.reshard({inner}, "{d.type(v.shape)}")'
    return f"m.checkpoint(lambda a, b: {inner})({v.name}, {w.name})", (v.bound + w.bound + 1) ** 2


@op(1.5)
def scanned(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    w = d.value("f", lambda x: x.shape == v.shape[1:])
    outer = [w.name]
    carry = (
        f"(c + {_body(d, ['x', *outer], 1)}) * 0.5"
        if d.flip()
        else f"m.tanh({_body(d, ['c', 'x', *outer], 2)}) + 0 * c"
    )
    which, result = d.one([(0, "c"), (1, _body(d, ["c", "x"], 1))])
    return (
        f"m.scan(lambda c, x: ({carry}, {result}), {w.name}, {v.name}, reverse={d.flip(0.3)})[{which}]",
        v.bound + w.bound,
    )


@op(1)
def nested(d: Draw) -> Drawn:
    """A loop in a loop, with a carry that the body makes."""
    v = d.value("f", lambda x: x.ndim >= 2)
    w = d.value("f", lambda x: x.shape == v.shape[2:])
    inner = f"m.scan(lambda e, y: ((e + {d.one(['y', 'y * y', w.name])}) * 0.5, None), c, x)[0]"
    start = d.one([w.name, f"m.zeros_like({w.name})", f"{v.name}[0, 0]"])
    return f"m.scan(lambda c, x: ({inner}, c), {start}, {v.name})[{d.one([0, 1])}]", v.bound + w.bound


@op(1)
def branched(d: Draw) -> Drawn:
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    a, b = _body(d, ["a", "b", w.name], 1), _body(d, ["a", "b", v.name], 1)
    return f"m.cond({d.one(['YES', 'NO', 'True'])}, lambda a, b: {a}, lambda a, b: {b}, {v.name}, {w.name})", (
        v.bound + w.bound
    ) ** 2


@op(1)
def mapped(d: Draw) -> Drawn:
    v = d.value("f", lambda x: x.ndim >= 1)
    w = d.value("f", lambda x: x.shape == v.shape[1:])
    u = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "b", w.name], 2)
    if d.flip(0.3):
        inner = f"m.sum({inner})"
    if d.flip(0.2):
        inner = f'm.reshard({_body(d, ["a", "b"], 1)}, "{d.type(w.shape)}")'
    return f"m.vmap(lambda a, b: {inner}, {d.one(['0', '(0, 0)', '(0, 0), -1'])})({v.name}, {u.name})", (
        v.bound + w.bound + 1
    ) ** 2


@op(1)
def looped(d: Draw) -> Drawn:
    v = d.value()
    return f"m.fori_loop(0, 3, lambda i, c: ({_body(d, ['c', v.name], 1)}) * 0.5, {v.name})", v.bound * 2


@op(2)
def derived(d: Draw) -> Drawn:
    """A derivative as a value, whose own derivative is then of the second order."""
    v = d.value()
    w = d.value("f", lambda x: x.shape == v.shape)
    inner = _body(d, ["a", "a", w.name], 3)
    if d.flip(0.3):
        inner = f'm.reshard({inner}, "{d.type(v.shape)}")'
    forms = [
        f"m.grad(lambda a: m.sum({inner}))({v.name})",
        f"m.jvp(lambda a: {inner}, ({v.name},), ({w.name},))[1]",
        f"m.vjp(lambda a: {inner}, {v.name})[1](m.ones_like({v.name}))[0]",
        f"m.vjp(lambda a: {inner}, {v.name})[1]({w.name})[0]",
    ]
    return d.one(forms), (v.bound + w.bound + 1) ** 3


def draw_program(seed: int, *, steps: tuple[int, int] = (5, 30), bf16: bool = False) -> Program:
    """The program of a seed."""
    rng = np.random.default_rng(seed)
    mesh = MESHES[int(rng.integers(len(MESHES)))]
    policy = ("partial", "jax")[int(rng.integers(2))]
    typed = sh.make_mesh(mesh)
    inputs: dict[str, tuple[Any, str]] = {}
    pool: list[Value] = []
    with sh.policy(policy), sh.use_mesh(typed):
        chooser = Draw(rng, typed, [])
        common = tuple(chooser.one(SIZES) for _ in range(3))
        for i in range(int(rng.integers(2, 5))):
            shape = (
                common[int(rng.integers(4)) :]
                if chooser.flip(0.7)
                else tuple(chooser.one(SIZES) for _ in range(chooser.one(range(4))))
            )
            array = rng.integers(-8, 9, shape) / 8 if chooser.flip(0.4) else rng.uniform(-1, 1, shape)
            inputs[f"x{i}"] = np.asarray(array, np.float32), chooser.type(shape)
        shape = common[1:] if chooser.flip() else (4,)
        inputs["n0"] = np.asarray(rng.integers(-3, 6, shape), np.int32), chooser.type(shape)
        for name, (array, text) in inputs.items():
            pool.append(Value(name, sh.abstract_array(text, shape=array.shape, dtype=str(array.dtype)).type, 1.0))
        drawn: list[Step] = []
        wanted = int(rng.integers(steps[0], steps[1] + 1))
        weights = np.asarray([w for w, _ in OPS]) / sum(w for w, _ in OPS)
        tries = 0
        while wanted and tries < 150:
            tries += 1
            draw = OPS[int(rng.choice(len(OPS), p=weights))][1]
            try:
                text, bound = draw(Draw(rng, typed, pool))
            except NothingFits:
                continue
            if bound > 4:
                scale = 2.0 ** -np.ceil(np.log2(bound / 2))
                text, bound = f"({text}) * {scale}", bound * scale
            step = Step(f"v{len(drawn)}", text)
            found = typed_step(step, pool)
            if found is None:
                drawn.append(replace(step, refused=True))
                continue
            if not hasattr(found, "dims") or found.size > 2048:
                continue
            drawn.append(step)
            pool.append(Value(step.name, found, float(bound)))
            wanted -= 1
    return Program(mesh, policy, inputs, tuple(drawn), f"seed {seed}")


def typed_step(step: Step, pool: Sequence[Value]) -> Any:
    """The type of a step, or None where it is refused; any other error leaves."""
    names = [v for v in pool if re.search(rf"\b{v.name}\b", step.text)]

    def run(*values: Any) -> Any:
        return _evaluated(step, {**CONSTANTS, "m": sh, **dict(zip([v.name for v in names], values, strict=True))})

    try:
        out = jax.eval_shape(run, *[sh.abstract_array(v.type) for v in names])
    except sh.ShardingTypeError as error:
        if "please report" in str(error):
            raise
        return None
    except Exception as error:
        error.add_note(f"in {step.text} of {', '.join(f'{v.name}: {v.type}' for v in names)}")
        raise
    return out.type if isinstance(out, sh.Array) else out
