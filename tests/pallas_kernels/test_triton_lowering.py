"""The Triton backend lowers for a GPU that is not there, and refuses what it cannot serve."""

import functools
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import PaddedShape, build_case
from jax.sharding import use_abstract_mesh

from looped.pallas_kernels import AttentionMetadata, ragged_paged_attention, write_kv
from looped.pallas_kernels.triton.launch import (
    abstract_gpu,
    gpu_architecture,
    import_jax_triton,
)

SHAPE = PaddedShape(
    num_rows=24,
    max_num_seqs=8,
    num_heads=16,
    num_kv_heads=16,
    head_dim=128,
    block_size=16,
    max_model_len=1024,
    query_dtype="bfloat16",
    pool_dtype="bfloat16",
)
BACKENDS = ["triton", "triton_fused"]
NUM_LAYERS, NUM_BLOCKS = 3, 50_000  # 4.9e9 elements a pool


def why_not():
    try:
        import_jax_triton()
    except ImportError as error:
        return str(error)
    return None


needs_jax_triton = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def step(backend, architecture, k_pool, v_pool, rows, ids, metadata):
    """Layers that write their rows' keys and values and attend, as in a model."""
    for layer in range(NUM_LAYERS):
        first_block = layer * NUM_BLOCKS
        k_pool, v_pool = write_kv(k_pool, v_pool, rows, rows, ids, ids, first_block)
        out = ragged_paged_attention(
            *(rows, k_pool, v_pool, metadata, first_block, 0.1),
            backend=backend,
            architecture=architecture,
        )
        rows = rows + out
    return k_pool, v_pool, rows


def structs():
    pool = jax.ShapeDtypeStruct((NUM_LAYERS * NUM_BLOCKS, 16, 16, 128), jnp.bfloat16)
    rows = jax.ShapeDtypeStruct((24, 16, 128), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((24,), jnp.int32)
    metadata = AttentionMetadata.abstract(num_decode=8, num_items=24, table_width=64)
    return pool, pool, rows, ids, metadata


@needs_jax_triton
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("device_kind", ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"])
def test_a_donated_step_lowers_with_a_kernel_per_launch_and_the_pools_aliased(backend, device_kind):
    with use_abstract_mesh(abstract_gpu(device_kind)):
        assert_launches_and_aliases(lower(backend, None), backend)


@needs_jax_triton
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_named_architecture_needs_no_device(backend):
    assert_launches_and_aliases(lower(backend, "sm_90"), backend)


def lower(backend, architecture):
    donated = jax.jit(functools.partial(step, backend, architecture), donate_argnums=(0, 1))
    return donated.trace(*structs()).lower(lowering_platforms=("cuda",)).as_text()


def assert_launches_and_aliases(text, backend):
    calls = [line for line in text.splitlines() if "custom_call @triton_kernel_call" in line]
    launches = {"triton": 3, "triton_fused": 2}[backend]
    assert len(calls) == NUM_LAYERS * launches
    in_place = [line for line in calls if "output_operand_alias" in line]
    aliases = sum(line.count("output_operand_alias<") for line in in_place)
    assert (len(in_place), aliases) == (NUM_LAYERS, NUM_LAYERS)  # the last kernel's output
    assert len(re.findall(r"tf\.aliasing_output|jax\.buffer_donor", text)) == 2


def test_on_a_cpu_the_backend_says_what_it_saw_and_what_to_do():
    case = build_case(np.random.default_rng(0), SHAPE, [], [])
    for backend in BACKENDS:
        with pytest.raises(ValueError, match=r"NVIDIA GPU, got a device of platform 'cpu'.*xla"):
            ragged_paged_attention(*case.arguments(), 1.0, backend=backend)


def test_an_abstract_device_without_tiles_is_refused_by_name():
    with (
        use_abstract_mesh(abstract_gpu("NVIDIA T4")),
        pytest.raises(ValueError, match="among A100, H100, H200, got 'NVIDIA T4'"),
    ):
        gpu_architecture()


def trace(query_dtype, pool_dtype, head_dim):
    """Trace the triton backend on two rows, where no kernel is needed to refuse them."""
    pool = jax.ShapeDtypeStruct((4, 2, 8, head_dim), pool_dtype)
    op = functools.partial(ragged_paged_attention, scale=1.0, backend="triton")
    metadata = AttentionMetadata.abstract(num_decode=2, num_items=2, table_width=4)
    rows = jax.ShapeDtypeStruct((2, 2, head_dim), query_dtype)
    jax.eval_shape(op, rows, pool, pool, metadata, 0)


@pytest.mark.parametrize(
    ("query_dtype", "pool_dtype"),
    [("int8", "int8"), ("float32", "float16"), ("bfloat16", "float32")],
)
def test_dtypes_without_a_kernel_are_refused_by_name(query_dtype, pool_dtype):
    message = f"of one dtype.*got {query_dtype} queries and a {pool_dtype} pool"
    with pytest.raises(ValueError, match=message):
        trace(query_dtype, pool_dtype, 64)


def test_a_head_dim_without_a_kernel_is_refused_by_name():
    with pytest.raises(ValueError, match="triton takes head_dim up to 256, got 512"):
        trace("float32", "float32", 512)


def test_a_missing_jax_triton_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_triton", None)
    with pytest.raises(ImportError, match=r"jax-triton >= 0\.3\.1.*looped\[cuda12\].*xla"):
        import_jax_triton()


def test_neither_triton_nor_jax_triton_is_imported_with_the_package():
    code = "import sys, looped.pallas_kernels; print(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not {"triton", "jax_triton"} & set(output.split())
