"""Every shipped Triton kernel compiles for its GPU, without one, within the GPU's limits."""

import importlib.util
import re

import pytest

from looped.pallas_kernels.tiles import padded_dim
from looped.pallas_kernels.triton_tiles import ARCHITECTURES, TILES, tiles_for

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed; pip install -e '.[dev]' has it on Linux",
)

# What the default suite compiles; the rest is slow. Together they are every shipped configuration.
DEFAULT = [
    ("sm_80", "bfloat16", 128),
    ("sm_90", "bfloat16", 128),
    ("sm_90", "float32", 64),
]
DTYPES, HEAD_DIMS = ("bfloat16", "float16", "float32"), (64, 80, 96, 128, 256)
CONFIGURATIONS = [
    pytest.param(*names, marks=[] if names in DEFAULT else [pytest.mark.slow])
    for names in ((a, t, d) for a in ARCHITECTURES for t in DTYPES for d in HEAD_DIMS)
]
KERNELS = {"decode_kernel", "prompt_kernel", "fused_kernel", "finish_kernel", "write_kernel"}


def compiled_kernels(*configuration, **sizes):
    from looped.pallas_kernels import triton_report

    return [
        triton_report.compile_launch(launch, *configuration)
        for launch in triton_report.recorded_launches(*configuration, **sizes)
    ]


@pytest.mark.parametrize(("architecture", "dtype", "head_dim"), CONFIGURATIONS)
def test_every_kernel_compiles_within_the_limits_of_its_gpu(architecture, dtype, head_dim):
    kernels = compiled_kernels(architecture, dtype, head_dim)
    assert {kernel.name for kernel in kernels} == KERNELS
    for kernel in kernels:
        assert not kernel.problems, f"{kernel.name}: {'; '.join(kernel.problems)}"
        # JAX's assembler reads no newer dialect, whatever the one in Triton's wheel does.
        assert ".version 8.5" in kernel.ptx
        if "tt.dot" in kernel.ttir and dtype == "float32":
            # Float32 means float32: neither TF32 nor its threefold approximation.
            assert kernel.products == "fma"
            assert "tf32" not in kernel.ttir + kernel.ptx


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("group", [4, 6, 8, 17, 24, 32])
@pytest.mark.parametrize("block_size", [8, 128])
def test_groups_and_block_sizes_compile_within_the_limits(architecture, group, block_size):
    sizes = {"group": group, "block_size": block_size, "num_kv_heads": 8}
    for kernel in compiled_kernels(architecture, "bfloat16", 128, **sizes):
        assert not kernel.problems, f"{kernel.name}: {'; '.join(kernel.problems)}"


def test_half_precision_uses_the_tensor_cores_of_each_architecture():
    for architecture, products in (("sm_80", "mma"), ("sm_90", "wgmma")):
        by_name = {k.name: k for k in compiled_kernels(architecture, "bfloat16", 128)}
        assert by_name["prompt_kernel"].products == products
        assert by_name["decode_kernel"].products == "mma"  # 16 rows are too few for wgmma


def test_offsets_into_the_pools_are_64_bit():
    """The pool here passes 2^31 elements; so must the arithmetic of every access to it."""
    for kernel in compiled_kernels("sm_90", "bfloat16", 128):
        if kernel.name == "finish_kernel":
            continue
        num_accesses = 2 if kernel.name == "fused_kernel" else 1  # prompt and decode rows
        for pool in ("k_pool", "v_pool"):
            assert offset_types(kernel.ttir, pool) == ["i64"] * num_accesses, (kernel.name, pool)


def offset_types(ttir, pool):
    """Integer types of the offsets that are added to this parameter, in order of the IR.

    Dimensions are then added to the sum: a 64-bit pointer, whatever their own type is.
    """
    pointers, types = {f"%{pool}"}, []
    for line in ttir.splitlines():
        found = re.match(r"\s*(%\w+) = tt\.(splat|broadcast|addptr) (%\w+)", line)
        if found is None or found[3] not in pointers:
            continue
        if found[2] == "addptr":
            types += re.findall(r"\b(i32|i64|\w*xi32|\w*xi64)>? loc", line)
        else:
            pointers.add(found[1])
    return [re.sub(r".*x", "", name) for name in types]


def test_products_of_float32_are_asked_for_in_full_precision():
    for kernel in compiled_kernels("sm_90", "float32", 64):
        products = [line for line in kernel.ttir.splitlines() if "tt.dot" in line]
        # Full precision is the attribute's default, which is not printed; TF32 is.
        assert not [line for line in products if "inputPrecision" in line and "ieee" not in line]
        assert len(products) == {"fused_kernel": 4, "prompt_kernel": 2, "decode_kernel": 2}.get(
            kernel.name, 0
        )


def test_every_configuration_is_reachable_and_consistent():
    for (architecture, kind, size), tiles in TILES.items():
        dtype = "float32" if kind == "float32" else "bfloat16"
        assert tiles_for(architecture, dtype, size) is tiles
        for launch in (tiles.prompt, tiles.decode, tiles.fused):
            assert launch.queries >= 16
            assert tiles.min_split_keys % launch.keys == 0
    assert [padded_dim(size) for size in (1, 64, 80, 96, 128, 192, 256)] == [
        *(16, 64, 128, 128, 128, 256, 256),
    ]


def test_a_gpu_without_tiles_is_refused_by_name():
    with pytest.raises(ValueError, match=r"sm_80, sm_90 .* got a GPU of sm_75"):
        tiles_for("sm_75", "bfloat16", 128)
