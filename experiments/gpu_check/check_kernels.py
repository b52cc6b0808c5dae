"""Every kernel backend against the float64 oracle, on fresh random batches."""

import jax
import numpy as np
from attention_cases import PaddedShape, build_case, expected_attention, random_mix
from engines_here import backends_here
from report import Outcome, Recorder

from looped.pallas_kernels import ragged_paged_attention

TOLERANCES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
"""Largest difference from the oracle, which reads the same rounded inputs."""


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    shapes = [
        PaddedShape(
            num_rows=rows, max_num_seqs=16, num_heads=heads, num_kv_heads=kv_heads,
            head_dim=head_dim, block_size=block_size, max_model_len=length,
            query_dtype=dtype, pool_dtype=dtype,
        )
        for dtype in ("float32", "bfloat16")
        for rows, heads, kv_heads, head_dim, block_size, length in (
            (16, 16, 16, 128, 16, 2048),
            (144, 16, 16, 128, 16, 512),
            (64, 12, 2, 64, 32, 256),
            (64, 8, 1, 80, 8, 256),
            (32, 4, 1, 256, 128, 512),
        )
    ]  # fmt: skip
    if is_rehearsal:
        shapes = [
            PaddedShape(
                num_rows=16, max_num_seqs=4, num_heads=4, num_kv_heads=2, head_dim=64,
                block_size=8, max_model_len=64,
            )
        ]  # fmt: skip
    plan = {
        name_of(backend, shape): (backend, shape)
        for backend in backends_here(is_rehearsal=is_rehearsal)
        for shape in shapes
    }
    recorder.plan(list(plan))
    for name, (backend, shape) in plan.items():
        recorder.check(name, compare, backend, shape, seed)


def compare(backend: str, shape: PaddedShape, seed: int) -> Outcome:
    """Three random batches through one executable; slots that nobody may read are NaN."""
    rng = np.random.default_rng([seed, *map(ord, backend)])
    scale = shape.head_dim**-0.5
    attend = jax.jit(lambda *arrays: ragged_paged_attention(*arrays, scale, backend=backend))
    worst = 0.0
    for _ in range(3):
        case = build_case(rng, shape, *random_mix(rng, shape))
        got = np.asarray(attend(*case.arguments()), np.float64)
        if not np.isfinite(got).all():
            return False, {"error": "NaN or infinity", "seed": seed}
        worst = max(worst, np.abs(got - expected_attention(case, scale)).max())
    limit = TOLERANCES[shape.query_dtype]
    return bool(worst <= limit), {
        "largest difference": f"{worst:.2e}",
        "limit": limit,
        "seed": seed,
    }


def name_of(backend: str, shape: PaddedShape) -> str:
    return (
        f"{backend} {shape.query_dtype} {shape.num_rows} rows, heads {shape.num_heads}/"
        f"{shape.num_kv_heads} x {shape.head_dim}, block {shape.block_size}"
    )
