"""Types random samples."""

from __future__ import annotations

from shtypes.errors import ShardingTypeError
from shtypes.rules import messages
from shtypes.rules.einsum_like import ProductDims, nonlinear_contraction
from shtypes.rules.typing import NO_CONSTANTS, Typing, build, rule
from shtypes.types import ShType, State, dtypes


def check_key(name: str, key: ShType) -> None:
    """Raises unless an operand is one key."""
    if not dtypes.is_key(key.dtype_name):
        raise ShardingTypeError(
            f"`{name}` needs a key, not {key}", hints=["sh.random.key(seed)", "jax.random.wrap_key_data(raw_key)"]
        )
    if key.ndim:
        raise ShardingTypeError(
            f"`{name}` needs one key, not {key}", hints=["keys[0]", "sh.vmap draws with each of many keys"]
        )


@rule
def sample(name: str, key: ShType, t: ShType) -> Typing:
    """A sample of a type, of which each device draws its slice.

    For an UNREDUCED type it is REDUCED, to be masked afterwards. A VARYING key makes only VARYING samples; a VARYING
    sample with a replicated key folds in the axis index.
    """
    check_key(name, key)
    if key.mesh is not t.mesh:
        raise ShardingTypeError(
            f"`{name}` cannot combine different meshes", why=f"the key is on ({key.mesh}), the draw on ({t.mesh})"
        )
    states: dict[str, State] = {}
    for axis in key.mesh.axis_names:
        state = t.state(axis)
        if key.state(axis) is State.VARYING and state is not State.VARYING:
            raise ShardingTypeError(
                f"`{name}` with a key that varies on mesh axis `{axis}` cannot be {messages.state_word(state)} there",
                why="each device has a key of its own and draws other numbers",
                hints=[f"write {{V:{axis}}} in the type"],
                axes=[axis],
            )
        states[axis] = State.REDUCED if state is State.UNREDUCED else state
    return Typing((key,), (build(key.mesh, t.dtype_name, t.dims, states),))


@rule
def categorical(name: str, key: ShType, logits: ShType, dim: int, constants: frozenset[int] = NO_CONSTANTS) -> Typing:
    """Samples along ``dim`` of the logits, which must not be sharded."""
    check_key(name, key)
    dims = tuple(range(logits.ndim))
    plan = ProductDims(((), dims), tuple((d, n) for d, n in enumerate(logits.shape) if d != dim))
    return nonlinear_contraction(name, (key, logits), plan, "i32", constants)
