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
- a pipeline: ``(M + S - 1) A`` each way in permutes, M microbatches and S stages, A bytes of a microbatch (Huang et al.
  2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473). Each of ``M + S - 1`` ticks sends what a stage's
  layers send for a microbatch, three times: the stage is computed again, and in it each layer. `pipeline.py` has more.
- experts: ``ring(c k T hidden e, E)`` four times a layer, to c k places for each of T tokens; dropless, a gather of e
  bytes a number and three collectives of 4: `experts.py` has more.
- what a checkpoint runs again, it sends again: of a layer all but what ends it.
- microbatches without stages send weights that layers gather once for each, and all else once.

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
        self.run, self.sizes, layout, dims = run, run.sizes, run.layout, run.layout.dims
        self.number = 4 if run.sizes.dtype == "f32" else 2
        self.tensor, self.context = dims.get("heads", ()), dims.get("seq", ())
        self.sequence = bool({*dims.get("stream", ())} & {*self.tensor})
        alike = {dims.get(dim, ()) for dim in ("heads", "key_heads", "inner", "vocab")}
        stream = {*self.context, *(self.tensor if self.sequence else ())}
        batch, expert = dims.get("batch", ()), dims.get("expert", ())
        if len(alike) > 1 or stream != {*dims.get("stream", ())} or batch[len(batch) - len(expert) :] != expert:
            raise sh.ShardingTypeError(f"there is no formula for layout `{layout.name}`, which is none of the papers'")
        self.tokens = dims.get("batch", ()) + self.context
        # How many microbatches there are, how often a device computes its layers and enters tokens, and on which rows.
        self.count = layout.microbatches or run.accumulate
        self.layers, self.ticks = run.sizes.layers // layout.stages, self.count + layout.stages - 1
        self.entered = self.ticks if layout.schedule == "1f1b" else self.count
        self.rows = run.batch * run.seq // self.devices(self.tokens) // self.count
        # What the backward pass computes again: of a layer, of a stage, and after the last stage.
        self.again = int(run.sizes.remat != "none")
        self.stage_again = int(bool(layout.schedule) and not (self.again and self.layers == 1))
        self.last_again = int(layout.schedule == "gpipe")

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
            pending = {*self.run.layout.mesh} - here - masters
            found += 2 * ring(4 * n / parts, self.devices(pending))
            if zero == 1:
                found += 2 * ring(4 * n, parts)
            else:
                each = self.sizes.gather_again and path[0].key == "layers"  # by a layer, and not before all of them
                times = self.ticks if each or not self.run.layout.schedule else 1
                again: float = self.again + self.stage_again
                if self.last_again and not self.again:  # what no tick changes is kept while they fill, and drain
                    again = 2 / self.ticks
                found += times * (ring(4 * n, parts) + (1 + each * again) * ring(self.number * n, parts))
        return found

    def norm(self) -> float:
        """The norm of the whole gradient, by which it is clipped: one number, where weights are sharded."""
        return 2 * ring(4, self.devices(set().union(*(axes_of(t) for _, t in self.masters()))))

    def blocks(self) -> float:
        """Tensor parallelism: the ends and starts of blocks."""
        devices, sent, layers = self.devices(self.tensor), self.rows * self.sizes.hidden, self.layers * self.ticks
        ends, starts = 2 * layers + self.entered, 2 * layers + self.count
        again = (self.again + 2 * self.stage_again) * layers - (
            self.stage_again * self.ticks if self.layers == 1 else 0
        )
        if not self.sequence:
            return (2 * ends + again) * 2 * ring(4 * sent, devices)
        starts_again = 2 * (self.again + self.stage_again) * layers + self.last_again * self.count
        narrow = (starts + starts_again) * ring(self.number * sent, devices)
        return narrow + (ends + again + starts + ends) * ring(4 * sent, devices)

    def positions(self) -> float:
        """Context parallelism: keys and values, and their gradients."""
        devices = self.devices(self.context)
        keys = self.rows * devices * self.sizes.key_heads * self.sizes.head / self.devices(self.tensor)
        times = 1 + self.again + self.stage_again
        return self.layers * self.ticks * ring(2 * keys * (self.number * times + 4), devices)

    def experts(self) -> float:
        """Expert parallelism: to the experts and back, in both passes."""
        if not self.sizes.experts:
            return 0.0
        times, devices = self.again + self.stage_again, self.devices(self.run.layout.dims.get("expert", ()))
        if self.sizes.capacity is None:
            each = (
                (self.number * (1 + times) + 4 * (3 + self.stage_again * (self.layers > 1)))
                * self.rows
                * self.sizes.hidden
            )
            return self.layers * self.ticks * each * (devices - 1)
        group = self.sizes.group or self.run.seq
        room = min(group, math.ceil(self.sizes.capacity * self.sizes.chosen * group / self.sizes.experts))
        sent = self.number * self.rows / group * room * self.sizes.experts * self.sizes.hidden
        return self.layers * self.ticks * (4 + 2 * times) * ring(sent, devices)

    def stages(self) -> float:
        """A pipeline: what goes on to the next stage, and gradients to the one before."""
        if self.run.layout.stages == 1:
            return 0.0
        sent = 4 * self.rows * self.sizes.hidden / self.devices(self.tensor if self.sequence else ())
        return (2 * self.ticks - (self.last_again and self.count == 1)) * sent  # nothing goes back before the only one

    def loss(self) -> float:
        """Of each row of scores the maximum and two sums; of all rows the mean."""
        rows = self.rows * self.count * (1 + self.last_again)
        ends = {*self.tokens, *self.run.layout.dims.get("layer", ())}
        return 2 * ring(12 * rows, self.devices(self.tensor)) + 2 * ring(4, self.devices(ends))


def sent(run: Run) -> float:
    """The bytes that each device sends in a step of a run, under the default policy."""
    costs = Costs(run)
    blocks = costs.blocks() + costs.positions() + costs.experts()
    return costs.weights() + costs.norm() + blocks + costs.stages() + costs.loss()
