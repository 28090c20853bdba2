"""The mistakes that `tests.mutants` makes, one at a time, and the tests that should see each."""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """One mistake.

    Attributes:
        name: What is wrong.
        file: Where.
        old: The text there, which must be there once.
        new: The wrong text.
        tests: The test files that should see it: those of the broken file, and not all that use it.
        wide: More of them, whose tests are in the wide half only or generate more in it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    wide: tuple[str, ...] = ()


_PROGRAMS: Final = ("tests/test_random_programs.py",)
_TOLD: Final = ("tests/analysis/resharding/test_truth.py",)
_RULES: Final = "shtypes/rules/"

MUTANTS: Final = (
    # typing rules
    Mutant(
        "a quotient by a pending sum types",
        f"{_RULES}elementwise.py",
        "dtype, constants, nonlinear={1: why})",
        "dtype, constants)",
        ("tests/rules/test_elementwise.py", "tests/ops/test_elementwise.py"),
    ),
    Mutant(
        "a replicated term beside a pending sum counts on each device",
        f"{_RULES}elementwise.py",
        "join=ADDITIVE, casts=[TERM] * len(operands)",
        "join=ADDITIVE, casts=[FACTOR] * len(operands)",
        ("tests/rules/test_elementwise.py", "tests/ops/test_elementwise.py"),
        _PROGRAMS,
    ),
    Mutant(
        "a maximum over a sharded dim is a pending sum",
        f"{_RULES}along_dims.py",
        "return _reduce(name, NONLINEAR, operand,",
        "return _reduce(name, SUM, operand,",
        ("tests/rules/test_reduce.py", "tests/ops/test_along.py"),
    ),
    Mutant(
        "an einsum's constants keep a state of their own",
        f"{_RULES}einsum_like.py",
        "ProductDims(labels, result), dtype, constants)",
        "ProductDims(labels, result), dtype, NO_CONSTANTS)",
        ("tests/rules/test_einsum.py", "tests/rules/test_against_meaning.py", "tests/ops/test_einsum.py"),
    ),
    Mutant(
        "a reshape merges a sharded dim behind a whole one",
        f"{_RULES}shape.py",
        "if dim.axes and merged is not None:",
        "if dim.axes and merged is not None and len(olds) > 2:",
        ("tests/rules/test_shape.py",),
        _PROGRAMS,
    ),
    Mutant(
        "a replicated part counts on each device beside a pending one",
        f"{_RULES}shape.py",
        "import ADDITIVE, TERM",
        "import ADDITIVE, FACTOR as TERM",
        ("tests/rules/test_joins.py", "tests/ops/test_arrange.py"),
        _PROGRAMS,
    ),
    Mutant(
        "a window of several rows of a sharded dim is gathered",
        f"{_RULES}lookups.py",
        "if sizes[d] == 1 and d not in self.batch and shape[d]",
        "if d not in self.batch and shape[d]",
        ("tests/rules/test_lookups.py", "tests/ops/test_index.py"),
    ),
    Mutant(
        "positions that are set may be sharded",
        f"{_RULES}lookups.py",
        '"set": (TERM, TERM,',
        '"set": (SCATTERED, TERM,',
        ("tests/rules/test_lookups.py", "tests/ops/test_index.py"),
    ),
    Mutant(
        "the other branch of where counts on each device",
        f"{_RULES}elementwise.py",
        "casts = (FACTOR, *[TERM] * (len(operands) - 1))",
        "casts = (FACTOR, TERM, *[FACTOR] * (len(operands) - 2))",
        ("tests/rules/test_elementwise.py", "tests/ops/test_select.py"),
        _PROGRAMS,
    ),
    Mutant(
        "a term that is held counts in the derivative of a call",
        "shtypes/core/dim_fns.py",
        "x.zero or not x.inexact else part.zeros(i)",
        "x.zero or not x.inexact else i",
        ("tests/ops/test_jax_functions.py", "tests/ops/test_select.py"),
    ),
    Mutant(
        "a cast inside a call is one of an operand that others take as it is",
        "shtypes/ops/shard_programs.py",
        "if not is_operand or any(x in e.invars for e in self._jaxpr.eqns if e is not eqn):",
        "if not is_operand:",
        ("tests/ops/test_jax_functions.py",),
    ),
    Mutant(
        "a pending sum is sorted",
        f"{_RULES}along_dims.py",
        "LINEAR_UNARY if linear else NONLINEAR",
        "LINEAR_UNARY",
        ("tests/rules/test_along_dims.py", "tests/ops/test_along.py"),
        _PROGRAMS,
    ),
    Mutant(
        "terms of narrow integers are widened",
        "shtypes/types/dtypes.py",
        'return name[0] == "u" or (name[0] == "i" and bits(name) < 32)',
        'return name[0] == "u"',
        ("tests/types/test_dtypes.py", "tests/ops/test_integers.py"),
        _PROGRAMS,
    ),
    # cotangents, policies, casts
    Mutant(
        "the gradient of a reduced value is reduced",
        "shtypes/types/parts.py",
        "State.REDUCED: State.UNREDUCED,",
        "State.REDUCED: State.REDUCED,",
        ("tests/types/test_shtype.py", "tests/autodiff/test_cotangent.py"),
        _PROGRAMS,
    ),
    Mutant(
        "integers that become floats are reduced under the policy jax",
        f"{_RULES}typing.py",
        "replicated() if state in REPLICATED else state",
        "State.REDUCED if state in REPLICATED else state",
        ("tests/types/test_policy.py", "tests/rules/test_elementwise.py"),
        _PROGRAMS,
    ),
    Mutant(
        "fewer bits in the exponent are no narrowing",
        f"{_RULES}elementwise.py",
        "return a == b or a[0] > b[0] or a[1] > b[1]",
        "return a == b or a[1] > b[1]",
        ("tests/rules/test_elementwise.py",),
    ),
    Mutant(
        "the transpose of a cast counts as written",
        "shtypes/core/reshard.py",
        "else reshard_cotangent(ct, dst, inserted=self.inserted, transport=transport)",
        "else reshard_cotangent(ct, dst, inserted=False, transport=transport)",
        ("tests/ops/test_reshard.py", "tests/autodiff/test_grad.py", "tests/traced/test_ledger.py"),
    ),
    Mutant(
        "a cotangent is sent as the value is",
        "shtypes/core/reshard.py",
        "dst, transport = self.src.to_ct_aval(), self.transport.transposed()",
        "dst, transport = self.src.to_ct_aval(), self.transport",
        ("tests/ops/test_comm_dtype.py",),
    ),
    Mutant(
        "what is sent narrow stays so until the last step, whatever that sends",
        "shtypes/core/run_plan.py",
        "narrow = range(sends[0], sends[-1] + 1) if sends else range(0)",
        "narrow = range(len(plan.steps))",
        ("tests/ops/test_comm_dtype.py",),
    ),
    Mutant(
        "sums in the backward pass are narrow unasked",
        "shtypes/resharding/transport.py",
        "    if src.differentiable:\n        ways.append",
        "    if not src.differentiable:\n        ways.append",
        ("tests/ops/test_comm_dtype.py",),
    ),
    Mutant(
        "the gradient of ppermute is sent on, not back",
        f"{_RULES}local.py",
        "perm=tuple((b, a) for a, b in self.perm))",
        "perm=self.perm)",
        ("tests/local_mode/test_transposition.py", "tests/local_mode/test_collectives.py"),
    ),
    # reshard: plans and prices
    Mutant(
        "bytes are rounded down",
        "shtypes/resharding/moves.py",
        "return -(-rounds * (n - 1) * local_bytes // n)",
        "return rounds * (n - 1) * local_bytes // n",
        ("tests/resharding/test_moves.py", "tests/resharding/test_planner.py"),
    ),
    Mutant(
        "a slice of an invariant value is free backward",
        "shtypes/resharding/moves.py",
        "(INVARIANT, SHARDED): Move(Kind.SLICE, FREE_FORWARD)",
        "(INVARIANT, SHARDED): Move(Kind.SLICE, FREE)",
        ("tests/resharding/test_moves.py",),
    ),
    Mutant(
        "an axis of one device launches collectives",
        "shtypes/resharding/steps.py",
        "return int(self.kind.communicates and self.group > 1)",
        "return int(self.kind.communicates)",
        ("tests/resharding/test_planner.py", "tests/traced/test_ledger.py"),
    ),
    Mutant(
        "an all-to-all is planned at the price of a gather",
        "shtypes/resharding/space.py",
        "return self._cost(axes, (n - 1) * local // n, n - 1)",
        "return self._cost(axes, (n - 1) * local, n - 1)",
        ("tests/resharding/test_planner.py",),
    ),
    Mutant(
        "a collective goes at the pace of its quickest link",
        "shtypes/resharding/space.py",
        "(max(figures) for figures in zip(*links, strict=True))",
        "(min(figures) for figures in zip(*links, strict=True))",
        ("tests/resharding/test_quickest.py",),
    ),
    Mutant(
        "named forms draw other axes in",
        "shtypes/dispatch/reshard.py",
        'shared=name == "reshard"',
        "shared=True",
        ("tests/resharding/test_quickest.py",),
    ),
    Mutant(
        "the planner's bound is one message too high",
        "shtypes/resharding/space.py",
        "(holders - 1 + terms)",
        "(holders + terms)",
        ("tests/resharding/test_planner.py",),
    ),
    # lowering
    Mutant(
        "pieces of an all-to-all stay in the order of the devices",
        "shtypes/core/run_plan.py",
        "if group != origin:",
        "if len(group) != len(origin):",
        ("tests/core/test_run_plan.py",),
        _PROGRAMS,
    ),
    Mutant(
        "a pending sum is masked on the last axis alone",
        "shtypes/core/run_plan.py",
        "_index(step.src.mesh, step.live) == 0, x,",
        "_index(step.src.mesh, step.live[-1:]) == 0, x,",
        ("tests/core/test_run_plan.py", "tests/ops/test_reshard.py"),
        _PROGRAMS,
    ),
    Mutant(
        "a gather over several axes takes the minor one for the major",
        "shtypes/core/run_plan.py",
        "names, groups = _axes_and_groups(step.src.mesh, _flat(step.lost))",
        "names, groups = _axes_and_groups(step.src.mesh, _flat(step.lost)[::-1])",
        ("tests/core/test_run_plan.py",),
        _PROGRAMS,
    ),
    Mutant(
        "a reduce-scatter over several axes takes the minor one for the major",
        "shtypes/core/run_plan.py",
        "names, groups = _axes_and_groups(step.src.mesh, _flat(step.gained))",
        "names, groups = _axes_and_groups(step.src.mesh, _flat(step.gained)[::-1])",
        ("tests/core/test_run_plan.py",),
        _PROGRAMS,
    ),
    Mutant(
        "a slice over several axes takes the minor one for the major",
        "shtypes/core/run_plan.py",
        "lax.dynamic_slice_in_dim(x, _index(step.src.mesh, axes) *",
        "lax.dynamic_slice_in_dim(x, _index(step.src.mesh, axes[::-1]) *",
        ("tests/core/test_run_plan.py",),
        _PROGRAMS,
    ),
    Mutant(
        "a slice is put in the zeros of another device",
        "shtypes/core/run_plan.py",
        "_index(step.src.mesh, axes) * sizes[d] if axes else 0 for d, axes in enumerate(step.lost)",
        "_index(step.src.mesh, axes[::-1]) * sizes[d] if axes else 0 for d, axes in enumerate(step.lost)",
        ("tests/core/test_run_plan.py",),
        _PROGRAMS,
    ),
    Mutant(
        "shards change places the other way round",
        "shtypes/core/run_plan.py",
        "lax.ppermute(x, names, pairs)",
        "lax.ppermute(x, names, [pair[::-1] for pair in pairs])",
        ("tests/core/test_run_plan.py",),
        _PROGRAMS,
    ),
    Mutant(
        "1 and 1.0 share a compiled function",
        "shtypes/core/shard_fn.py",
        "tuple((type(n), repr(n)) for n in numbers)",
        "numbers",
        ("tests/core/test_shard_fn.py", "tests/ops/test_elementwise.py"),
    ),
    Mutant(
        "f(x, x) is replayed for f(x, y)",
        "shtypes/core/eager_cache.py",
        "if other is x:",
        "if False:",
        ("tests/core/test_eager_cache.py",),
    ),
    Mutant(
        "a region runs a reversed scan forward",
        "shtypes/core/region.py",
        "reverse=scan.reverse,",
        "",
        ("tests/core/test_region.py", "tests/transforms/test_control.py"),
        _PROGRAMS,
    ),
    Mutant(
        "a finished step of a mapped while loop goes on",
        "shtypes/core/region.py",
        "jnp.where(on.reshape(on.shape + (1,) * (x.ndim - on.ndim)), new, x)",
        "new",
        ("tests/core/test_region.py", "tests/transforms/test_control.py", "tests/transforms/test_vmap.py"),
        _PROGRAMS,
    ),
    # the ledger and scopes
    Mutant(
        "a loop in a loop counts as one",
        "shtypes/traced/equations.py",
        "body.trips is None else self.times * body.trips",
        "body.trips is None else body.trips",
        ("tests/traced/test_ledger.py", "tests/traced/test_nested.py"),
    ),
    Mutant(
        "of a conditional the branch counts that sends least",
        "shtypes/traced/ledger.py",
        "return total + sum(max(",
        "return total + sum(min(",
        ("tests/traced/test_ledger.py",),
    ),
    Mutant(
        "a value with another use is merged away",
        "shtypes/traced/merging.py",
        "and self._uses[operand] == 1 else None",
        "and self._uses[operand] >= 1 else None",
        ("tests/traced/test_merging.py",),
    ),
    Mutant(
        "what is sharded to save memory is kept whole",
        "shtypes/traced/merging.py",
        "if src.local_bytes > smallest and",
        "if False and",
        ("tests/traced/test_merging.py",),
    ),
    Mutant(
        "what is recomputed counts as backward",
        "shtypes/core/operation.py",
        'return "recomputed"',
        'return "backward"',
        ("tests/traced/test_ledger.py", "tests/transforms/test_remat.py"),
    ),
    Mutant(
        "a constant is priced with a gradient",
        "shtypes/core/reshard.py",
        "if self.absorbed or self.constant or not self.src.differentiable:",
        "if not self.src.differentiable:",
        ("tests/scopes/test_no_comm.py", "tests/ops/test_sharded_reductions.py", "tests/scopes/test_scopes.py"),
    ),
    Mutant(
        "a move forgets that a checkpoint runs it again",
        "shtypes/scopes/check_comm.py",
        "if forward and (any(isinstance(rule, Recomputed) for rule in rules) or recomputed):",
        "if forward and not rules:",
        ("tests/scopes/test_no_comm.py", "tests/scopes/test_scopes.py", "tests/transforms/test_remat.py"),
    ),
    Mutant(
        'no_comm("backward") forbids what is sent forward',
        "shtypes/scopes/check_comm.py",
        'if rule.direction in ("both", event.direction) else ""',
        'if rule.direction != "forward" or event.direction == "forward" else ""',
        ("tests/scopes/test_no_comm.py", "tests/scopes/test_scopes.py"),
    ),
    Mutant(
        "a budget counts a scan once",
        "shtypes/traced/comm_tracker.py",
        "times *= next(lengths, 1)",
        "next(lengths, 1)",
        ("tests/scopes/test_budget.py",),
    ),
    # pictures and words
    Mutant(
        "a part with gaps has its first piece only",
        "shtypes/analysis/device_slices.py",
        "for i in range(start, stop) for a, b in spans]",
        "for i in range(start, start + 1) for a, b in spans]",
        _TOLD,
    ),
    Mutant(
        "the parts of an axis are read minor to major",
        "shtypes/analysis/device_slices.py",
        "in reversed([*mesh.shape.items()]):",
        "in mesh.shape.items():",
        _TOLD,
    ),
    Mutant(
        "an all-to-all is said to cut the dim that it joins",
        "shtypes/analysis/describe_plan.py",
        "in {step.group} along {_dims(step.gained, step, base)}",
        "in {step.group} along {_dims(step.lost, step, base)}",
        _TOLD,
    ),
    # implicit_comm
    Mutant(
        "a pending result is chosen as if it were finished",
        "shtypes/rules/implicit.py",
        "way.price._replace(counted=total_cost((way.price.counted, *left))), leading",
        "way.price, leading",
        ("tests/scopes/test_implicit.py",),
        _PROGRAMS,
    ),
    Mutant(
        "what runs in a loop is decided as if it ran once",
        "shtypes/solver/program.py",
        "times * scan.length, checkpointed or adds)",
        "times, checkpointed or adds)",
        ("tests/scopes/test_implicit.py", "tests/solver/test_complete.py", "tests/solver/test_search.py"),
    ),
    Mutant(
        "a whole program is decided without its backward pass",
        "shtypes/solver/complete.py",
        "        mesh,\n        grad=grad,\n",
        "        mesh,\n        grad=False,\n",
        ("tests/scopes/test_minimize.py", "tests/solver/test_complete.py"),
    ),
    Mutant(
        "what is invariant has a pending cotangent in plans",
        "shtypes/solver/axis_states.py",
        "COTANGENTS: Final = (UNREDUCED, INVARIANT, REDUCED)",
        "COTANGENTS: Final = (UNREDUCED, UNREDUCED, REDUCED)",
        ("tests/solver/test_complete.py",),
    ),
    Mutant(
        "a fix is priced without the casts behind it",
        "shtypes/rules/price_fixes.py",
        "(*moves.items(), *casts.items())",
        "moves.items()",
        ("tests/rules/test_suggest_fixes.py", "tests/scopes/test_implicit.py"),
        ("tests/test_errors_everywhere.py",),
    ),
    # notation
    Mutant(
        "a name in scope gives way to the type's own size",
        "shtypes/types/notation/reading.py",
        "candidates = [*sizes, *scoped]",
        "candidates = sizes or scoped",
        ("tests/types/test_notation.py",),
    ),
    Mutant(
        "canonical text leaves reduced axes out",
        "shtypes/types/notation/printing.py",
        "{_show_states(t, None)}",
        "{_show_states(t, State.REDUCED)}",
        ("tests/types/test_notation.py",),
    ),
    # random samples, local mode, transformations
    Mutant(
        "a sample that varies over two axes varies over one",
        "shtypes/numerics/random/draw.py",
        "for axis in folded:",
        "for axis in folded[:1]:",
        ("tests/numerics/test_random.py",),
        ("tests/numerics/test_random_whole.py",),
    ),
    Mutant(
        "an invariant result is claimed of a reduced operand",
        f"{_RULES}claims.py",
        "if t.state(axis) is REDUCED:",
        "if t.state(axis) is SHARDED:",
        ("tests/local_mode/test_local_map.py",),
    ),
    Mutant(
        "one value is claimed of what varies",
        f"{_RULES}claims.py",
        "if claim in REPLICATED and (source.impure or varying is not None):",
        "if claim in REPLICATED and source.impure:",
        ("tests/local_mode/test_claims.py",),
    ),
    Mutant(
        "what a loop carries round is not looked at again",
        "shtypes/traced/dependence.py",
        "        if after == carry:",
        "        if True:",
        ("tests/local_mode/test_claims.py",),
    ),
    Mutant(
        "ppermute numbers devices in the order of its axes",
        "shtypes/core/collective.py",
        'if op.name == "ppermute":\n        op, live',
        'if op.name == "permute":\n        op, live',
        ("tests/local_mode/test_collectives.py",),
    ),
    Mutant(
        "labels that are summed count as batch labels",
        "shtypes/autodiff/checkpoint.py",
        "for label in shared if (label in output) is in_result)",
        "for label in shared if in_result)",
        ("tests/transforms/test_remat.py",),
    ),
    Mutant(
        "a gradient inside vmap is that of all steps",
        "shtypes/autodiff/grad.py",
        "return vary(x, [a for a in axes if jax.typeof(x).state(a) in REPLICATED], inserted=True)",
        "return x",
        ("tests/control/test_vmap.py",),
    ),
    # numbers
    Mutant(
        "a mean is off by 1e-4",
        "shtypes/core/dim_fns.py",
        "return (wide / float(self.count)).astype(dtype or x.dtype)",
        "return (wide / float(self.count) * (1 + 1e-4)).astype(dtype or x.dtype)",
        ("tests/ops/test_reduce.py",),
        _PROGRAMS,
    ),
    Mutant(
        "the gradient of a mean is off by 1e-4",
        "shtypes/core/dim_fns.py",
        "(x.astype(_wide(x.dtype)) / float(self.count)).astype(x.dtype)",
        "(x.astype(_wide(x.dtype)) / float(self.count) * (1 + 1e-4)).astype(x.dtype)",
        ("tests/ops/test_reduce.py",),
        _PROGRAMS,
    ),
    Mutant(
        "gelu has another fourth digit: 0.04475",
        "shtypes/ops/elementwise.py",
        "    signature = op.signature\n",
        "    signature = op.signature\n"
        "    if name == 'gelu':\n"
        "        import jax.numpy as jnp\n"
        "        exact = native\n"
        "        native = lambda x, approximate=True: x / 2 * (1 + jnp.tanh((2 / jnp.pi) ** 0.5 * "
        "(x + 0.04475 * x**3))) if approximate else exact(x, False)\n",
        ("tests/ops/test_elementwise.py",),
        (*_PROGRAMS, "tests/peers/test_functions.py"),
    ),
    Mutant(
        "rms_norm forgets its epsilon of 1e-6",
        "shtypes/numerics/nn/norms.py",
        "_RMS_NORM.into(out, x, scale, axis=axis, epsilon=float(epsilon))",
        "_RMS_NORM.into(out, x, scale, axis=axis, epsilon=0.0)",
        ("tests/numerics/test_nn.py",),
        _PROGRAMS,
    ),
    Mutant(
        "an all-reduce counts the term of device 1 twice",
        "shtypes/core/run_plan.py",
        "return lax.psum(x, names, axis_index_groups=groups)",
        "return lax.psum(jnp.where(_index(step.src.mesh, step.live) == 1, 2 * x, x), names, axis_index_groups=groups)",
        ("tests/core/test_run_plan.py", "tests/ops/test_reshard.py"),
        _PROGRAMS,
    ),
    Mutant(
        "normal weights are too wide in the fourth digit",
        "shtypes/numerics/random/draw.py",
        "0.87962566103423978",
        "0.87972566103423978",
        ("tests/numerics/test_random.py", "tests/test_parameters.py"),
    ),
)
