"""What JAX has types do with their values: zeros and sums of cotangents, seeds, selections, values of carriers."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from shtypes._compat.typed import Behaviour
from shtypes.autodiff.checkpoint import for_typed
from shtypes.autodiff.grad import seed_of
from shtypes.control.branches import selected
from shtypes.core.array import wrap
from shtypes.core.device_put import raise_p
from shtypes.core.elementwise_fns import Add, Identity, NamedFn
from shtypes.core.jax_type import HiShType
from shtypes.core.local import local, repeated, zeros_of
from shtypes.core.physical import put_right
from shtypes.core.shard_fn import Linear
from shtypes.ops.create import full
from shtypes.types import ShType


def _raised(t: HiShType, carrier: Any) -> Any:
    """The value of a carrier, which may be traced."""
    if isinstance(carrier, jax.core.Tracer):
        return raise_p.bind(carrier, ty=t)
    return wrap(t, put_right(t, carrier) if 0 in t.shape else carrier)


_STOP = Identity("stop_gradient", constant=True)
_BARRIER = NamedFn("optimization_barrier", lax.optimization_barrier, linear=Linear.JOINTLY)


def _loss_seed(t: HiShType) -> ShType:
    """The type of a loss's seed; whether a complex one is a loss, JAX asks itself."""
    return seed_of(t, "jax.grad", holomorphic=True)


HiShType.behaviour = Behaviour(
    raised=_raised,
    zero=zeros_of,
    added=lambda t, x, y: local(Add(), x, y, out=t),
    repeated=repeated,
    stopped=lambda x: local(_STOP, x, out=jax.typeof(x)),
    barred=lambda x: local(_BARRIER, x, out=jax.typeof(x)),
    asked=for_typed,
    selected=selected,
    check_loss=_loss_seed,
    seed=lambda t: full(_loss_seed(t), 1),
)
