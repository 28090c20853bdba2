"""What a silent bug is made of here, and how its programs are run: on one device, in plain JAX and in types, twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import shtypes as sh

#: What a program gives, by name: numbers and gradients.
Results = dict[str, Any]
Program = Callable[..., Results]
Policy = Literal["partial", "jax"]

optimizer = optax.sgd(1.0)


def step(param: Any, grad: Any) -> Any:
    """A step of gradient descent of typed values, or of arrays: what is added to the parameter."""
    tx = sh.optim.lift(optimizer) if isinstance(param, sh.Array) else optimizer
    return tx.update(grad, tx.init(param), param)[0]


@dataclasses.dataclass(frozen=True)
class Bug:
    """One class of silent bugs: the same computation four times.

    Attributes:
        name: That of its module.
        wrong: What goes wrong, in a few words.
        source: Where it was published: repository, number and title.
        url: The address of that.
        types: Those of the operands.
        shown: The result that the bug makes wrong.
        fix: What makes it right, in a few words.
        one_device: The computation in `jax.numpy`.
        plain: What each device does, with the bug, for `jax.shard_map`. Its results are said to be equal on all.
        naive: The same in types, with the bug.
        fixed: The same in types, right.
        mesh: Sizes of the mesh axes.
    """

    name: str
    wrong: str
    source: str
    url: str
    types: tuple[str, ...]
    shown: str
    fix: str
    one_device: Program
    plain: Program
    naive: Program
    fixed: Program
    mesh: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"dp": 2, "tp": 4})

    def operands(self) -> tuple[list[Any], list[Any]]:
        """Random operands: on the host, and typed."""
        rng = np.random.default_rng(0)
        types = [sh.ShType.parse(text, sh.make_mesh(self.mesh)) for text in self.types]
        arrays = [_random(rng, t.shape, t.dtype) for t in types]
        return arrays, [sh.array(a, text) for a, text in zip(arrays, self.types, strict=True)]


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers; indices that any dim here has; a mask that keeps more and more of the rows."""
    if dtype == np.int32:
        return rng.integers(0, 8, shape).astype(np.int32)
    if dtype == np.bool_:
        return rng.uniform(size=shape) < np.linspace(0.1, 0.9, shape[0])[:, None]
    return rng.normal(size=shape).astype(np.float32)


def on_one_device(bug: Bug) -> Results:
    """What the computation should give."""
    with sh.use_mesh(sh.make_mesh(bug.mesh)):
        arrays, _ = bug.operands()
    return _host(jax.jit(bug.one_device)(*arrays))


def in_plain_jax(bug: Bug) -> Results:
    """What the program with the bug gives in `jax.shard_map`, unchecked: it runs, and says nothing."""
    with sh.use_mesh(sh.make_mesh(bug.mesh)):
        arrays, typed = bug.operands()
    automatic = (jax.sharding.AxisType.Auto,) * len(bug.mesh)
    mesh = jax.make_mesh(tuple(bug.mesh.values()), tuple(bug.mesh), axis_types=automatic)
    specs = tuple(P(*(dim.axes or None for dim in x.type.dims)) for x in typed)
    run = jax.shard_map(bug.plain, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
    with jax.set_mesh(mesh):
        return _host(jax.jit(run)(*arrays))


def in_types(bug: Bug, program: Program, policy: Policy) -> Results | sh.ShardingTypeError:
    """What a typed program gives under a policy, or why it is refused."""
    with sh.use_mesh(sh.make_mesh(bug.mesh)), sh.policy(policy):
        _, typed = bug.operands()
        try:
            results = sh.jit(program)(*typed)
        except sh.ShardingTypeError as error:
            return error
        return _host(jax.tree.map(lambda x: sh.reshard(x, "[_...]"), results))


def _host(results: Results) -> Results:
    return {name: np.asarray(x) for name, x in jax.block_until_ready(results).items()}


def close(found: Results, wanted: Results) -> bool:
    """Whether all results are the same, but for rounding."""
    return all(np.max(np.abs(found[name] - x)) <= 1e-4 * np.max(np.abs(x)) for name, x in wanted.items())


def size(results: Results, name: str) -> float:
    """One number for a result: its root mean square, or itself."""
    return float(np.sqrt(np.mean(np.square(results[name], dtype=np.float64))))
