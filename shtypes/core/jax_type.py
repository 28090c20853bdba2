"""`HiShType`: a sharding type as a JAX type, which JAX uses to lower, differentiate, map and print values."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from jax import typeof
from jax.core import ShapedArray
from jax.sharding import NamedSharding

from shtypes._compat.patches import install
from shtypes._compat.program_mesh import sees_plain
from shtypes._compat.typed import TypedType, is_shown_as_no_loss, refused_cotangents
from shtypes.caches import Bounded
from shtypes.context.user_line import placed
from shtypes.core.interop_errors import FOR_PLAIN, MissingAttributeError, reading_package, refuse_plain_use, sharding_of
from shtypes.core.meshes import jax_mesh
from shtypes.core.physical import explicit_spec, physical_shape
from shtypes.errors import ShardingTypeError, quoted
from shtypes.rules.cotangent import check_cotangent
from shtypes.scopes.comm import announce_program
from shtypes.types import Dim, ShType, State


class _NoManualAxes:
    """Stands for the manual axes of a plain array: equal for all types, since typed values have none."""

    __slots__ = ("_type",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, t: HiShType) -> None:
        self._type = t

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NoManualAxes)

    def __getattr__(self, name: str) -> Any:
        self._type.refuse_plain_use("")


class HiShType(ShType, TypedType):
    """`ShType` as a JAX type: that of every typed value and tracer; equal to the pure type."""

    __slots__ = ()

    weak_type = False

    @property
    def mat(self) -> _NoManualAxes:
        """Compared by JAX's cond, scan and while for every type, and inspected by its collectives."""
        return _NoManualAxes(self)

    __eq__ = ShType.__eq__
    __hash__ = ShType.__hash__
    __str__ = ShType.__str__

    def __repr__(self) -> str:
        for t, ct in refused_cotangents():
            _check_cotangent(t, ct)
        return super().__repr__()

    def __format__(self, spec: str) -> str:
        if is_shown_as_no_loss():
            self.behaviour.check_loss(self)
        return ShType.__format__(self, spec)

    def str_short(self, short_dtypes: bool = False, mesh_axis_types: bool = False, **_: Any) -> str:
        """The printed type, for jaxprs and JAX's messages."""
        return ShType.__str__(self)

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of values, see `ShType.sharding`; missing for JAX, which would take it for a plain array."""
        if sees_plain():
            plain: NamedSharding = ShapedArray(self.shape, self.dtype).sharding
            return plain
        if reading_package() not in FOR_PLAIN:
            return sharding_of(self)
        caller = sys._getframe(1).f_code.co_qualname.partition(".")[0]
        if caller == "broadcast":  # in JAX's `vmap`, to repeat a value
            of_shape: NamedSharding = ShapedArray(self.shape, self.dtype).sharding
            return of_shape
        if caller == "_std_basis":  # in `jax.jacfwd` and `jax.jacrev`
            self.refuse_plain_use("")
        raise _no_array(self)

    def refuse_sharding(self, by_jit: bool) -> NoReturn:
        """Raises for a sharding of a typed value."""
        if not by_jit:
            raise _no_array(self)
        raise placed(
            ShardingTypeError(
                f"in_shardings and out_shardings do not go with typed values, here {self}",
                why="their types say how they lie on the devices",
                hints=["sh.reshard(x, type) in the function"],
            ),
            "jit",
        )

    def refuse_plain_use(self, called: str) -> NoReturn:
        """Raises for a typed value in a function of JAX or numpy."""
        refuse_plain_use(self, called)

    def refuse_forward(self) -> NoReturn:
        """Raises for a forward derivative of a function with a custom backward pass."""
        raise placed(
            ShardingTypeError(
                f"a function with its own backward pass has no forward derivative, here of {self}",
                why="a custom_vjp says how cotangents go back, and not how tangents go forth",
                hints=[
                    'sh.local_map(..., residuals="recompute"), if its function is not a custom_vjp',
                    "sh.grad and sh.vjp differentiate it backward",
                ],
            ),
            "jvp",
        )

    def steps(self) -> int:
        """The length of a loop over the leading dim; raises if there is none, or it is sharded."""
        if not self.dims:
            raise placed(ShardingTypeError(f"`scan` cannot run over {self}: it has no leading dim"), f"scan({self})")
        self.dec_rank(None, 0)
        return self.dims[0].size

    def refuse_steps(self, counts: Sequence[int]) -> NoReturn:
        """Raises for loop operands of different lengths."""
        sizes = " and ".join(map(str, counts))
        raise placed(ShardingTypeError(f"`scan` cannot run over leading dims of sizes {sizes}"), f"scan({self})")

    # lowering

    def lo_ty(self) -> list[Any]:
        """The type of the physical array."""
        mesh = jax_mesh(self.mesh)
        return [ShapedArray(physical_shape(self), self.dtype, sharding=NamedSharding(mesh, explicit_spec(self, mesh)))]

    def lower_val(self, value: Any) -> list[Any]:
        """The physical array of a value."""
        if value.data is None:
            raise placed(without_data_error(self), f"data of {self}")
        announce_program()
        return [value.data]

    def raise_val(self, physical: Any) -> Any:
        """The value of a physical array.

        JAX also calls this with a scan's stacked results, on the type of one of them, and in traces.
        """
        t = self if physical.ndim == len(physical_shape(self)) else self.inc_rank(physical.shape[0], 0)
        return self.behaviour.raise_val(t, physical)

    # autodiff

    def to_tangent_aval(self) -> HiShType:
        """The type of tangents."""
        return self.tangent()

    def to_ct_aval(self) -> HiShType:
        """The type of cotangents: the cotangent map."""
        return self.cotangent()

    def vspace_zero(self) -> Any:
        """Zero of this type."""
        return self.behaviour.zero(self)

    def vspace_add(self, x: Any, y: Any) -> Any:
        """The sum of two values of this type."""
        return self.behaviour.add(self, x, y)

    # vmap and scan

    def leading_axis_spec(self) -> Any:
        """The dim that scan slices and stacks."""
        return 0

    def dec_rank(self, size: int | None, spec: Any) -> HiShType:
        """The type of one slice along a mapped dim, which must not be sharded."""
        if spec is None:
            return self
        dim = self.dims[spec]
        if dim.axes and not sees_plain():
            error = ShardingTypeError(
                f"cannot map over dim {spec} of {self}: it is sharded over {quoted(dim.axes)}",
                why="each step would live on some of the devices only",
                hints=["sh.vmap maps over sharded dims too", "reshard it so that the mapped dim is not sharded"],
            )
            raise placed(error, f"vmap({self})")
        # a plain program sees only the shape
        t = self.with_axes(dim.axes, State.INVARIANT) if dim.axes else self
        dims = t.dims
        return _ranks.get_or_create((t.serial, spec), lambda: t.replace(dims=dims[:spec] + dims[spec + 1 :]))

    def inc_rank(self, size: int | None, spec: Any) -> HiShType:
        """The type of values stacked along a new dim."""
        if spec is None or size is None:
            return self
        dims = self.dims
        return _ranks.get_or_create(
            (self.serial, spec, size), lambda: self.replace(dims=(*dims[:spec], Dim(size), *dims[spec:]))
        )


#: Types with a dim less, by serial number and dim; and with one more, by its size, too: a scan asks for each often.
_ranks: Final[Bounded[HiShType]] = Bounded()


def _check_cotangent(t: Any, ct: Any) -> None:
    actual = typeof(ct)
    try:
        if type(t) is HiShType:
            check_cotangent(actual if isinstance(actual, ShType) else str(actual), t, "the cotangent")
    except ShardingTypeError as error:
        raise placed(error, "linear_transpose") from None


def _no_array(t: ShType) -> MissingAttributeError:
    return MissingAttributeError(
        f"a typed value, {t}, was given to a function of JAX that takes plain arrays only",
        why="those do not know its type",
        hints=["use the function of the same name in shtypes", "x.to_jax() gives a plain jax.Array"],
    )


def without_data_error(t: ShType) -> ShardingTypeError:
    """The error for a program that runs on an abstract value."""
    return ShardingTypeError(
        f"a value that has only a type, {t}, cannot be computed with",
        hints=["sh.array(x, type) has data", "jax.eval_shape, jax.make_jaxpr and .lower() need none"],
    )


def as_jax_type(t: ShType) -> HiShType:
    """The type as a JAX type."""
    if type(t) is HiShType:
        return t
    if t._hi is None:
        t._hi = t.of_class(HiShType)
    jax_type: HiShType = t._hi
    return jax_type


ShType.placed = staticmethod(sharding_of)
install()
