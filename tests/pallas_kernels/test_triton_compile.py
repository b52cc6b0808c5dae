"""Every shipped Triton kernel compiles for its GPU, without one, within the GPU's limits."""

import functools
import importlib.util
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from triton_ir import offsets_into

from looped.pallas_kernels import ARCHITECTURES
from looped.pallas_kernels.rounding import padded_dim
from looped.pallas_kernels.triton.tiles import TILES, tiles_for

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="triton is not installed; pip install -e '.[dev]' has it on Linux",
)

DTYPES, HEAD_DIMS = ("bfloat16", "float16", "float32"), (64, 80, 96, 128, 256)
CONFIGURATIONS = [(a, t, d) for a in ARCHITECTURES for t in DTYPES for d in HEAD_DIMS]
KERNELS = {"decode_kernel", "prompt_kernel", "fused_kernel", "finish_kernel"}


ATTENTION_KERNELS = ("prompt_kernel", "decode_kernel", "fused_kernel")


@functools.cache
def compiled_kernel(name, *configuration, **sizes):
    from looped.pallas_kernels.triton import report as triton_report

    [launch] = [
        launch
        for launch in triton_report.recorded_launches(*configuration, **sizes)
        if launch.kernel.__name__ == name
    ]
    return triton_report.compile_launch(launch, *configuration)


def compiled_kernels(*configuration, **sizes):
    return [compiled_kernel(name, *configuration, **sizes) for name in sorted(KERNELS)]


def assert_within_limits(kernel):
    assert not kernel.problems, f"{kernel.name}: {'; '.join(kernel.problems)}"


def test_the_backends_launch_these_kernels_and_no_other():
    from looped.pallas_kernels.triton import report as triton_report

    launches = triton_report.recorded_launches("sm_90", "bfloat16", 128)
    assert sorted(launch.kernel.__name__ for launch in launches) == sorted(KERNELS)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype", "head_dim"), CONFIGURATIONS)
def test_every_kernel_compiles_within_the_limits_of_its_gpu(architecture, dtype, head_dim):
    for kernel in compiled_kernels(architecture, dtype, head_dim):
        assert_within_limits(kernel)
        # JAX's assembler reads no newer dialect, whatever the one in Triton's wheel does.
        assert ".version 8.5" in kernel.ptx
        if "tt.dot" in kernel.ttir and dtype == "float32":
            # Float32 means float32: neither TF32 nor its threefold approximation.
            assert kernel.products == "fma"
            assert "tf32" not in kernel.ttir + kernel.ptx


@pytest.mark.long
@pytest.mark.parametrize(("index", "key"), list(enumerate(TILES)))
def test_a_launch_of_every_tile_configuration_compiles_within_the_limits(index, key):
    """One of its three attention kernels, another one on the other GPU; the slow tests have all."""
    architecture, kind, size = key
    name = ATTENTION_KERNELS[(index + index // 6) % 3]
    dtype = "float32" if kind == "float32" else "float16"
    assert_within_limits(compiled_kernel(name, architecture, dtype, size))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("group", [4, 6, 8, 17, 24, 32])
@pytest.mark.parametrize("block_size", [8, 128])
def test_groups_and_block_sizes_compile_within_the_limits(architecture, dtype, group, block_size):
    sizes = {"group": group, "block_size": block_size, "num_kv_heads": 8}
    head_dim = 128 if dtype == "bfloat16" else 256
    for kernel in compiled_kernels(architecture, dtype, head_dim, **sizes):
        assert_within_limits(kernel)


def test_half_precision_uses_the_tensor_cores_of_each_architecture():
    for architecture, products in (("sm_80", "mma"), ("sm_90", "wgmma")):
        prompt = compiled_kernel("prompt_kernel", architecture, "bfloat16", 128)
        decode = compiled_kernel("decode_kernel", architecture, "bfloat16", 128)
        assert prompt.products == products
        assert decode.products == "mma"  # 16 rows are too few for wgmma
        for kernel in (prompt, decode):
            assert_within_limits(kernel)


def test_offsets_into_a_pool_of_more_than_2_to_31_elements_do_not_wrap():
    for name in ATTENTION_KERNELS:
        kernel = compiled_kernel(name, "sm_90", "bfloat16", 128)
        assert_within_limits(kernel)
        num_accesses = 2 if name == "fused_kernel" else 1  # prompt and decode rows
        for offsets in pool_offsets(kernel):
            assert len(offsets) == num_accesses
            assert not any(offset.is_wrapped for offset in offsets), name


# Wide enough to look right, and too late: the product has wrapped when it is cast.
NARROW = {
    "head = (first_block + block.to(tl.int64))": "head = (first_block.to(tl.int32) + block)",
    "+ (position % BLOCK_SIZE) * HEAD_DIM\n": (
        "+ (position % BLOCK_SIZE) * HEAD_DIM\n        entry = entry.to(tl.int64)\n"
    ),
}


def test_offsets_that_are_widened_after_their_products_would_be_seen(tmp_path):
    from looped.pallas_kernels.triton import kernels as triton_kernels
    from looped.pallas_kernels.triton import report as triton_report

    text = Path(triton_kernels.__file__).read_text()
    for right, wrong in NARROW.items():
        assert text.count(right) == 1
        text = text.replace(right, wrong)
    path = tmp_path / "narrow_kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("narrow_kernels", path)
    narrow = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(narrow)
    configuration = ("sm_90", "bfloat16", 128)
    [launch] = [
        replace(launch, kernel=narrow.decode_kernel)
        for launch in triton_report.recorded_launches(*configuration)
        if launch.kernel.__name__ == "decode_kernel"
    ]
    for offsets in pool_offsets(triton_report.compile_launch(launch, *configuration)):
        assert all(offset.is_wrapped for offset in offsets)


def pool_offsets(kernel):
    """Bounds of the offsets into each pool, with the block's id from its table and from its layer.

    The pools of the report: 2^17 blocks of 16 heads and 16 positions. Attention adds the
    dimension last, to a 64-bit pointer.
    """
    last_block, elements = 2**17 - 1, 2**17 * 16 * 16 * 128
    tables = ("tables", "decode_tables", "prompt_tables")
    for pool, (layer, block) in itertools.product(
        ("k_pool", "v_pool"), ((0, last_block), (last_block, 0))
    ):
        loads = {**dict.fromkeys(tables, block), "first_block": layer}
        found = offsets_into(kernel.ttir, pool, loads=loads, programs=15, positions=10**6)
        found = [offset for offset in found if offset.largest >= 128]
        for offset in found:
            assert elements - 128 <= offset.largest < elements
        yield found


def test_products_of_float32_are_asked_for_in_full_precision():
    for name, num_products in (("fused_kernel", 4), ("prompt_kernel", 2), ("decode_kernel", 2)):
        kernel = compiled_kernel(name, "sm_90", "float32", 64)
        assert_within_limits(kernel)
        products = [line for line in kernel.ttir.splitlines() if "tt.dot" in line]
        # Full precision is the attribute's default, which is not printed; TF32 is.
        assert not [line for line in products if "inputPrecision" in line and "ieee" not in line]
        assert len(products) == num_products


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
    with pytest.raises(ValueError, match=r"of sm_80, sm_90, got 'sm_75'"):
        tiles_for("sm_75", "bfloat16", 128)
