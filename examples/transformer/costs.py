"""What a step sends, by the formulas of those who invented its parallelism: bytes that each device sends.

They are written down here from sizes alone, so that the ledger, which knows the program, can be held against them. To
gather or to scatter n bytes, each of P devices in a ring sends ``ring(n, P) = n (P - 1) / P``, and twice that for an
all-reduce (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). There are L layers, ``A = batch * seq * hidden``
numbers in the residual stream where only data and context split it, e bytes in a number that products take, and N
numbers in the weights of a device:

- data: the gradients once, ``2 ring(4 N, D)``. ZeRO-1 sends the same, as a reduce-scatter of gradients and an
  all-gather of updates; from ZeRO-2 on it is weights that are gathered, in e bytes, at ZeRO-3 those of layers once
  more in the backward pass (Rajbhandari et al. 2020, arXiv:1910.02054, section 7).
- tensor: two all-reduces a layer and pass, ``2 ring(4 A, T)`` each, and one for the embedding (Shoeybi et al. 2019,
  arXiv:1909.08053, section 3). With sequence parallelism each is a reduce-scatter where a block ends and an all-gather
  where the next one starts, the latter in e bytes (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2). The loss
  needs three numbers of each row of scores. Norms are not sharded: their gradients are summed over tensor axes too.
- context: K numbers in all keys of a layer and as many in its values: ``ring(2 e K, C)`` a layer, and their gradients
  back in 4 bytes, whether they are gathered (Llama 3, arXiv:2407.21783, section 3.3.2) or go round (Liu, Zaharia and
  Abbeel 2023, arXiv:2310.01889, section 3).
- a pipeline: `pipeline.py` has what goes along its axis.
- experts: ``ring(c k T hidden e, E)`` four times a layer, to c k places for each of T tokens: `experts.py` has more.
- what a checkpoint runs again, it sends again: of a layer all but what ends it.

JAX's policy sums the gradients of weights at each use, in the dtype of the use: in f32 it sends as much in most
layouts, but under ZeRO-1 all-reduces whole gradients, and for bf16 products sums gradients in bf16.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax

import shtypes as sh
from examples.transformer import model
from examples.transformer.training import Run


def ring(size: float, devices: int) -> float:
    """What each device sends of ``size`` bytes to gather or to scatter them."""
    return size * (devices - 1) / devices


def axes_of(t: sh.ShType) -> set[str]:
    """The axes over which a type is sharded."""
    return {axis for dim in t.dims for axis in dim.axes}


class Costs:
    """The bytes that each device sends in a step of a run, by what they are for; of a mesh in context."""

    def __init__(self, run: Run) -> None:
        self.run, self.sizes, dims = run, run.sizes, run.layout.dims
        self.number = 4 if run.sizes.dtype == "f32" else 2
        self.again = int(run.sizes.remat != "none")
        self.tensor, self.context = dims.get("heads", ()), dims.get("seq", ())
        self.tokens = dims.get("batch", ()) + self.context
        self.rows = run.batch * run.seq // self.devices(self.tokens)

    def devices(self, axes: Iterable[str]) -> int:
        """How many devices share what is split over some axes."""
        return math.prod(self.run.layout.mesh[axis] for axis in axes)

    def masters(self) -> list[Any]:
        """The types of the weights where the optimizer works, by path."""
        with self.run.layout.as_masters():
            return jax.tree.leaves_with_path(model.types(self.sizes))

    def weights(self) -> float:
        """Gradients to sum, and under ZeRO weights to gather."""
        used = jax.tree.leaves(model.types(self.sizes))
        found, zero = 0.0, self.run.layout.zero
        for (path, master), t in zip(self.masters(), used, strict=True):
            here, masters = axes_of(t), axes_of(master) - axes_of(t)
            n, parts = math.prod(t.shape) / self.devices(here), self.devices(masters)
            pending = ({*self.tokens} | {*self.tensor}) - here - masters
            found += ring(4 * n, parts) + 2 * ring(4 * n / parts, self.devices(pending))
            if zero == 1:
                found += ring(4 * n, parts)
            else:
                again = self.sizes.gather_again and self.again and path[0].key == "layers"
                found += (1 + again) * ring(self.number * n, parts)
        return found

    def norm(self) -> float:
        """The norm of the whole gradient, by which it is clipped: one number, where weights are sharded."""
        return 2 * ring(4, self.devices(set().union(*(axes_of(t) for _, t in self.masters()))))

    def blocks(self) -> float:
        """Tensor parallelism: the ends and starts of blocks."""
        devices, layers, sent = self.devices(self.tensor), self.sizes.layers, self.rows * self.sizes.hidden
        ends, again = 2 * layers + 1, self.again * layers
        if not {*self.run.layout.dims.get("stream", ())} & {*self.tensor}:
            return (2 * ends + again) * 2 * ring(4 * sent, devices)
        forward = (ends + again) * ring(4 * sent, devices) + (ends + 2 * again) * ring(self.number * sent, devices)
        return forward + 2 * ends * ring(4 * sent, devices)

    def positions(self) -> float:
        """Context parallelism: keys and values, and their gradients."""
        devices = self.devices(self.context)
        keys = self.rows * devices * self.sizes.key_heads * self.sizes.head / self.devices(self.tensor)
        return self.sizes.layers * ring(2 * keys * (self.number * (1 + self.again) + 4), devices)

    def experts(self) -> float:
        """Expert parallelism with places of a fixed number: all-to-alls to the experts and back, in both passes."""
        if not self.sizes.experts:
            return 0.0
        assert self.sizes.capacity is not None, "what is sent without places, `experts.py` says"
        group = self.sizes.group or self.run.seq
        room = math.ceil(self.sizes.capacity * self.sizes.chosen * group / self.sizes.experts)
        sent = self.number * self.rows / group * room * self.sizes.experts * self.sizes.hidden
        devices = self.devices(self.run.layout.dims.get("expert", ()))
        return self.sizes.layers * (4 + 2 * self.again) * ring(sent, devices)

    def loss(self) -> float:
        """Of each row of scores the maximum and two sums; of all rows the mean."""
        return 2 * ring(12 * self.rows, self.devices(self.tensor)) + 2 * ring(4, self.devices(self.tokens))


def sent(run: Run) -> float:
    """The bytes that each device sends in a step of a run, under the default policy."""
    costs = Costs(run)
    return costs.weights() + costs.norm() + costs.blocks() + costs.positions() + costs.experts() + costs.loss()
