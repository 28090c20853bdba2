"""Records a plain program's sharding annotations as equations while `lift` traces it.

All of them end in parameters of JAX's primitives, however the program spells them: imported by name, as a default
argument, a method, of jit, of `auto_axes`, in a library. So they are read where a primitive is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shtypes._compat import private
from shtypes._compat.program_mesh import ProgramMesh
from shtypes._compat.symbolic_specs import with_operands
from shtypes.context.frames import frames
from shtypes.context.user_line import placed
from shtypes.errors import ShardingTypeError

#: A primitive applied to operands, with parameters.
Bind = Callable[..., Any]


class Annotation(Primitive):
    """The primitive of an annotation."""


#: Annotates a value with a spec; axes of other values in the spec refer to the operands after the first, ``likes``.
#: ``mapped`` are the dims of each operand that `jax.vmap` maps, which the spec leaves out.
annotation_p: Final = Annotation("sharding_annotation")
annotation_p.def_impl(lambda x, *likes, spec, mapped: x)
annotation_p.def_abstract_eval(lambda x, *likes, spec, mapped: x)
mlir.register_lowering(annotation_p, lambda _, x, *likes, spec, mapped: [x])


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    (x, *likes), t = primals, tangents[0]
    y = annotation_p.bind(x, *likes, **params)
    return y, t if type(t) is ad.Zero else annotation_p.bind(t, *likes, **params)


def _transpose(ct: Any, x: Any, *likes: Any, **params: Any) -> Any:
    del x, params  # the cotangent is not annotated
    return [ct, *[None] * len(likes)]


def _batched(args: Any, dims: Any, *, spec: Any, mapped: tuple[tuple[int, ...], ...]) -> Any:
    all_mapped = tuple(
        m if dim is None else (dim, *(d + (d >= dim) for d in m)) for m, dim in zip(mapped, dims, strict=True)
    )
    return annotation_p.bind(*args, spec=spec, mapped=all_mapped), dims[0]


ad.primitive_jvps[annotation_p] = _jvp
ad.primitive_transposes[annotation_p] = _transpose
batching.primitive_batchers[annotation_p] = _batched

#: Parameters of primitives with the sharding of the result.
_OF_RESULT: Final = ("out_sharding", "sharding")
#: The parameter of a jit equation without a sharding.
_UNSPECIFIED: Final[Any] = private("jax._src.named_sharding", "UNSPECIFIED")


def annotated(bind: Bind, primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Binds a primitive to plain operands, with the shardings in its parameters as separate equations."""
    name = primitive.name
    if name == "reshard":
        return _annotate(args[0], params["dst_sharding"], by_jax=_reshards_by_itself(params["dst_sharding"]))
    if name == "sharding_constraint":
        return _annotate(args[0], params["sharding"])
    if name == "device_put":
        return [_annotate_device_put(x, device) for x, device in zip(args, params["devices"], strict=True)]
    if name == "jit":
        return _annotate_jit(bind, args, params)
    for key in _OF_RESULT:
        sharding = params.get(key)
        if sharding is not None and isinstance(sharding, jax.sharding.NamedSharding):
            out, by_jax = bind(*args, **{**params, key: None}), _is_jaxs_mesh(sharding.mesh)
            if primitive.multiple_results:
                return [_annotate(y, sharding, by_jax=by_jax) for y in out]
            return _annotate(out, sharding, by_jax=by_jax)
    return bind(*args, **params)


def _annotate(x: Any, sharding: Any, *, by_jax: bool = False) -> Any:
    """Annotates a value with a sharding; ``by_jax``: one that JAX sets, which is ignored."""
    if by_jax or not isinstance(sharding, jax.sharding.NamedSharding) or sharding.mesh.empty:
        return x  # on one device, as all of a plain program
    if len(sharding.spec) > x.ndim:
        message = f"the `jax.P` has {len(sharding.spec)} entries, and the value has {x.ndim} dims"
        raise placed(ShardingTypeError(message), str(sharding.spec))
    spec, likes = with_operands(sharding.spec)
    return annotation_p.bind(x, *likes, spec=spec, mapped=((),) * (1 + len(likes)))


def _reshards_by_itself(sharding: Any) -> bool:
    """Whether it is JAX that reshards, in a broadcast or on entry to a region of auto axes, and not the user."""
    if not _is_jaxs_mesh(sharding.mesh):
        return False
    names = (str(frame.f_globals.get("__name__", "")) for frame in frames(2))
    for name in names:
        if name == "jax._src.pjit":  # `reshard`, or `auto_axes`
            return next(names).startswith("jax.")
    return False


def _is_jaxs_mesh(mesh: Any) -> bool:
    return isinstance(mesh, ProgramMesh) and mesh.is_jaxs


def _annotate_device_put(x: Any, device: Any) -> Any:
    if isinstance(device, jax.sharding.NamedSharding):
        return _annotate(x, device)
    if device is not None and not isinstance(device, (jax.Device, jax.sharding.SingleDeviceSharding)):
        raise placed(
            ShardingTypeError(
                f"a lifted program puts a value into a memory: {device}",
                why="a type says on which devices a value lies, and not in which memory of them",
                hints=["jax.device_put of x.to_jax(), outside of the lifted function"],
            ),
            "device_put",
        )
    return x


def _annotate_jit(bind: Bind, args: Sequence[Any], params: dict[str, Any]) -> Any:
    """Binds a jitted function, with its shardings as annotations of its operands and results."""
    in_shardings, out_shardings = params["in_shardings"], params["out_shardings"]
    if all(s is _UNSPECIFIED for s in (*in_shardings, *out_shardings)):
        return bind(*args, **params)
    args = list(map(_annotate, args, in_shardings))
    without_shardings = {
        "in_shardings": (_UNSPECIFIED,) * len(in_shardings),
        "out_shardings": (_UNSPECIFIED,) * len(out_shardings),
    }
    return list(map(_annotate, bind(*args, **{**params, **without_shardings}), out_shardings))
