"""Every kernel backend against the float64 oracle, on fresh random batches."""

from dataclasses import replace

import jax
import numpy as np
from attention_cases import PaddedShape, build_case, expected_attention, random_mix
from attention_suite import KERNEL_TOLERANCE, SHAPES
from engines_here import backends_here
from report import Outcome, Recorder

from looped.pallas_kernels import ragged_paged_attention

NUM_BATCHES = 3


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    shapes = {
        name: shape for name, shape in SHAPES.items() if shape.query_dtype == shape.pool_dtype
    }
    if is_rehearsal:
        shapes = dict(list(shapes.items())[:1])
    plan = {
        f"{backend}, {dtype}, {name}": (
            backend,
            replace(shape, query_dtype=dtype, pool_dtype=dtype),
        )
        for name, shape in shapes.items()
        for dtype in ("bfloat16", "float32")
        for backend in backends_here(is_rehearsal=is_rehearsal)
    }
    recorder.plan(list(plan))
    for name, (backend, shape) in plan.items():
        recorder.check(name, compare, backend, shape, seed)


def compare(backend: str, shape: PaddedShape, seed: int) -> Outcome:
    """Random batches through one executable; slots that nobody may read are NaN."""
    rng = np.random.default_rng([seed, *map(ord, backend)])
    scale = shape.head_dim**-0.5
    attend = jax.jit(lambda *arrays: ragged_paged_attention(*arrays, scale, backend=backend))
    worst = 0.0
    for _ in range(NUM_BATCHES):
        case = build_case(rng, shape, *random_mix(rng, shape))
        got = np.asarray(attend(*case.arguments()), np.float64)
        if not np.isfinite(got).all():
            return False, {"error": "NaN or infinity", "seed": seed}
        worst = max(worst, np.abs(got - expected_attention(case, scale)).max())
    limit = KERNEL_TOLERANCE[shape.query_dtype]
    values = {"largest difference": f"{worst:.2e}", "limit": f"{limit:.2e}", "seed": seed}
    return bool(worst <= limit), values
