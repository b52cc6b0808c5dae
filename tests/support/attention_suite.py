"""What every test of an attention backend shares: shapes, tolerances, and one call of it."""

import functools
import os
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest
from attention_cases import (
    AttentionCase,
    PaddedShape,
    bits,
    build_case,
    expected_attention,
    random_mix,
)

from looped.pallas_kernels import BACKENDS, DEFAULT_ARCHITECTURE, ragged_paged_attention
from looped.pallas_kernels.architectures import architecture_of
from looped.pallas_kernels.triton.attention import TritonBackend
from looped.pallas_kernels.triton.tiles import TritonTiles

# Largest absolute difference from the oracle, by q's dtype. Values are standard normal, so no
# output is larger than about 5. Pools are compared as stored: their rounding is not an error.
TOLERANCE = {
    # Sums of up to 256 products in scores of up to about 5, each rounded to 2^-24.
    "float32": 5e-6,
    # The output is rounded to 11 bits: half a unit in the last place of values below 8.
    "float16": 2**-9 + 5e-6,
    # The same at 8 bits.
    "bfloat16": 2**-6 + 5e-6,
}
# The kernels round softmax weights to the dtype of their products as well, by half a unit in the
# last place each: that much of a mean of values below 4. Float32 is not rounded again. Backend
# "xla" rounds those of bfloat16 prompt rows, whose keys and values it rounds, too: "bfloat16 over
# float32" stays within the same bound, because errors of single products are of either sign.
KERNEL_TOLERANCE = {
    "float32": TOLERANCE["float32"],
    "float16": TOLERANCE["float16"] + 4 * 2**-12,
    "bfloat16": TOLERANCE["bfloat16"] + 4 * 2**-9,
}

# One executable each per backend, so each combines sizes, types and forms that no other has.
SHAPES = {
    "two rows": PaddedShape(
        num_rows=2,
        max_num_seqs=16,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        block_size=4,
        max_model_len=150,
    ),
    "decode bucket": PaddedShape(
        num_rows=16,
        max_num_seqs=16,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        block_size=16,
        max_model_len=600,
    ),
    "groups of 4": PaddedShape(
        num_rows=64,
        max_num_seqs=7,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        block_size=8,
        max_model_len=600,
    ),
    "groups of 6": PaddedShape(
        num_rows=160,
        max_num_seqs=10,
        num_heads=6,
        num_kv_heads=1,
        head_dim=80,
        block_size=16,
        max_model_len=2000,
    ),
    "groups of 8": PaddedShape(
        num_rows=130,
        max_num_seqs=3,
        num_heads=16,
        num_kv_heads=2,
        head_dim=96,
        block_size=32,
        max_model_len=2000,
        pool_dtype="float16",
        num_layers=3,
    ),
    "large blocks": PaddedShape(
        num_rows=32,
        max_num_seqs=5,
        num_heads=2,
        num_kv_heads=2,
        head_dim=256,
        block_size=128,
        max_model_len=600,
    ),
    "float16": PaddedShape(
        num_rows=64,
        max_num_seqs=6,
        num_heads=6,
        num_kv_heads=1,
        head_dim=96,
        block_size=16,
        max_model_len=400,
        query_dtype="float16",
        pool_dtype="float16",
    ),
    "bfloat16": PaddedShape(
        num_rows=64,
        max_num_seqs=6,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        block_size=16,
        max_model_len=400,
        query_dtype="bfloat16",
        pool_dtype="bfloat16",
    ),
    "bfloat16 over float32": PaddedShape(
        num_rows=64,
        max_num_seqs=6,
        num_heads=4,
        num_kv_heads=1,
        head_dim=80,
        block_size=16,
        max_model_len=400,
        query_dtype="bfloat16",
    ),
    "wide bfloat16": PaddedShape(
        num_rows=140,
        max_num_seqs=3,
        num_heads=8,
        num_kv_heads=1,
        head_dim=256,
        block_size=64,
        max_model_len=2000,
        query_dtype="bfloat16",
        pool_dtype="bfloat16",
    ),
    "window of 3": PaddedShape(
        num_rows=60,
        max_num_seqs=4,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        block_size=12,
        max_model_len=400,
        window=3,
    ),
}

# What a benchmark's model runs on a CPU: two query tiles a chunk, several key tiles. For backend
# "xla" alone; an interpreter would take minutes.
SHIPPED_ON_CPU = PaddedShape(
    num_rows=256,
    max_num_seqs=3,
    num_heads=4,
    num_kv_heads=4,
    head_dim=128,
    block_size=16,
    max_model_len=640,
    query_dtype="bfloat16",
    num_layers=1,
)

# Triton's interpreter is switched on before the kernels are imported, in a process of its own.
IS_INTERPRETING_TRITON = os.environ.get("TRITON_INTERPRET") == "1"


def is_served(backend: str, shape: PaddedShape) -> bool:
    """Triton takes queries and pools of one dtype; the others take any two."""
    return not backend.startswith("triton") or shape.query_dtype == shape.pool_dtype


@dataclass(frozen=True)
class Target:
    """A backend, where it runs, and the architecture that its tiles are chosen for."""

    backend: str
    platform: str = "cpu"
    architecture: str = DEFAULT_ARCHITECTURE

    def attend(self, case: AttentionCase) -> np.ndarray:
        device = jax.devices(self.platform)[0]
        is_gpu = self.platform == "gpu"
        architecture = architecture_of(device) if is_gpu else self.architecture
        op = compiled(self.backend, case.q.shape[-1] ** -0.5, architecture)
        with jax.default_device(device):
            return np.asarray(op(*case.arguments()))

    @property
    def shapes(self) -> list[str]:
        """Names of the shapes that its random batches are drawn over in turn."""
        return [name for name, shape in SHAPES.items() if is_served(self.backend, shape)]

    def shape(self, name: str) -> PaddedShape:
        return SHAPES[name]

    def small_shape(self, name: str) -> PaddedShape:
        """For the default batches; smaller only where the full size would take minutes."""
        return self.shape(name)

    def tolerance(self, dtype: str) -> float:
        rounds_weights = self.backend != "xla" or dtype == "bfloat16"
        return (KERNEL_TOLERANCE if rounds_weights else TOLERANCE)[dtype]

    def check(self, case: AttentionCase, expected: np.ndarray | None = None) -> None:
        """Hold one batch against the oracle."""
        out = self.attend(case)
        if expected is None:
            expected = expected_attention(case, case.q.shape[-1] ** -0.5)
        assert out.dtype == case.q.dtype
        tolerance = self.tolerance(case.q.dtype.name)
        np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=tolerance)
        is_nobody = ~expected.any(axis=(1, 2))
        assert not bits(out[is_nobody]).any(), "a row of no sequence must be zero"


@dataclass(frozen=True, kw_only=True)
class TiledBackend(TritonBackend):
    """A Triton backend with other tiles than those that are shipped, or with the same."""

    tiles: TritonTiles | None

    def tiles_for(self, architecture: str, dtype: str, head_dim: int) -> TritonTiles:
        return self.tiles or super().tiles_for(architecture, dtype, head_dim)


@dataclass(frozen=True)
class InterpretedTriton(Target):
    """A Triton backend in Triton's interpreter, which is NumPy and slow."""

    tiles: TritonTiles | None = None
    """None: those that are shipped for the architecture."""

    def attend(self, case: AttentionCase) -> np.ndarray:
        from triton_interpreter import interpret

        shipped = BACKENDS[self.backend]
        backend = TiledBackend(
            name=self.backend, is_fused=shipped.is_fused, launch=interpret, tiles=self.tiles
        )
        scale = case.q.shape[-1] ** -0.5
        return backend(*case.arguments(), scale, architecture=self.architecture)

    def shape(self, name: str) -> PaddedShape:
        """float16 for bfloat16, which has the same tiles and whose products are garbage here."""
        shape = SHAPES[name]
        half = {"bfloat16": "float16"}
        return replace(
            shape,
            query_dtype=half.get(shape.query_dtype, shape.query_dtype),
            pool_dtype=half.get(shape.pool_dtype, shape.pool_dtype),
        )

    def small_shape(self, name: str) -> PaddedShape:
        shape = self.shape(name)
        return replace(
            shape,
            num_rows=min(shape.num_rows, 40),
            max_num_seqs=min(shape.max_num_seqs, 3),
            max_model_len=min(shape.max_model_len, 200),
        )


INTERPRETED = [
    pytest.param(InterpretedTriton(name), id=f"{name}-interpreted")
    for name in ("triton", "triton_fused")
]

# Shapes that Pallas's interpreter takes in the default tests; the others are long.
BRIEF_IN_PALLAS = ("groups of 4", "bfloat16", "window of 3")


def targets_on(name: str) -> list[Any]:
    """Parameters of a test on one of the shapes: every backend, with its mark."""
    if IS_INTERPRETING_TRITON:
        return INTERPRETED
    in_pallas = [] if name in BRIEF_IN_PALLAS else [pytest.mark.long]
    shape = SHAPES[name]
    return [
        pytest.param(Target("xla"), id="xla"),
        pytest.param(Target("pallas"), id="pallas", marks=in_pallas),
        *(
            pytest.param(Target(backend, "gpu"), id=f"{backend}-gpu", marks=pytest.mark.gpu)
            for backend in BACKENDS
            if is_served(backend, shape)
        ),
    ]


def each_target_on(*names: str) -> pytest.MarkDecorator:
    """Runs a test of `target` and `name`: every backend on each of these shapes that it serves."""
    return pytest.mark.parametrize(
        ("target", "name"),
        [
            pytest.param(*target.values, name, id=f"{target.id}-{name}", marks=target.marks)
            for name in names
            for target in targets_on(name)
            if name in target.values[0].shapes
        ],
    )


def random_batch(index: int, shape: PaddedShape) -> AttentionCase:
    rng = np.random.default_rng(index)
    decodes, prompts = random_mix(rng, shape)
    return build_case(rng, shape, decodes, prompts, at_end=rng.random() < 0.5)


@functools.cache
def compiled(backend: str, scale: float, architecture: str = DEFAULT_ARCHITECTURE):
    return jax.jit(
        functools.partial(
            ragged_paged_attention, scale=scale, backend=backend, architecture=architecture
        )
    )
