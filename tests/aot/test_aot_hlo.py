"""What is read from an optimized program: a short one, by hand, where every number shows."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from looped.aot.checks import (
    byte_aims,
    host_failures,
    kernel_failures,
    launch_aims,
    pool_failures,
    state_failures,
    unread_failures,
    weight_aims,
)
from looped.aot.embedded import embedded_kernels, find_ptx, ptx_of, unescape_octal
from looped.aot.hlo import HloModule
from looped.aot.kernels import Assembler, Kernel, find_assembler, read_kernels
from looped.aot.launches import Part, count, launches_of
from looped.config import ModelConfig
from looped.device.state import DeviceState, StateShape
from looped.errors import LoopedError

FIXTURES = Path(__file__).parents[1] / "fixtures"

PROGRAM = (FIXTURES / "step.hlo").read_text()

ROWS, WEIGHT = 4 * 64 * 2, 64 * 64 * 2


CONFIG = ModelConfig(
    model_type="ouro",
    num_layers=3,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    intermediate_size=96,
    vocab_size=1000,
    num_loops=4,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
)


def state_shape(num_blocks):
    return StateShape(
        config=CONFIG,
        dtype=jnp.dtype("bfloat16"),
        kv_dtype=jnp.dtype("bfloat16"),
        num_blocks=num_blocks,
        block_size=16,
        max_num_seqs=4,
        chunk_size=8,
        max_model_len=64,
    )


@pytest.fixture(scope="module")
def state():
    """Shapes of a state with pools of 3 MiB."""
    return jax.eval_shape(lambda: DeviceState.zeros(state_shape(num_blocks=512)))


@pytest.fixture(scope="module")
def module():
    return HloModule(PROGRAM)


@pytest.fixture(scope="module")
def launches(module):
    return {launch.name: launch for launch in launches_of(module)}


def test_launches_are_found_in_order_with_their_parts_and_counts(launches):
    found = [(launch.name, launch.part, launch.times) for launch in launches.values()]
    assert found == [
        ("embedded", Part.OUTSIDE, 1),
        ("weight", Part.LAYERS, 3),  # it has no name of its own: that of its user counts
        ("product", Part.LAYERS, 3),
        ("write", Part.KV_WRITE, 3),
        ("attend", Part.ATTENTION, 3),
        ("negated", Part.OUTSIDE, 1),  # the branch that launches more
        ("kept", Part.OUTSIDE, 1),
    ]
    assert count(launches.values()) == 3 + 4 * 3


def test_bytes_are_those_of_what_is_taken_and_set(launches):
    ids = 4 * 4
    assert launches["embedded"].num_bytes == ROWS + ids + ROWS
    assert launches["weight"].num_bytes == WEIGHT + 4 + WEIGHT
    assert launches["product"].num_bytes == ROWS + WEIGHT + ROWS
    assert launches["write"].num_bytes == 2 * (ids + ROWS)
    assert launches["kept"].num_bytes == ids + ROWS + ROWS


@pytest.mark.parametrize(
    ("opcode", "shape"),
    [
        ("fusion", "((bf16[3,64,64]{2,1,0}, s32[]), bf16[1,64,64]{2,1,0}, u32[])"),
        ("copy", "(bf16[1,64,64]{2,1,0}, bf16[1,64,64]{2,1,0}, u32[])"),
    ],
)
def test_an_asynchronous_operation_is_one_launch_like_the_same_that_is_not(opcode, shape):
    """jaxlib from 0.11 on splits operations into a start and an end."""
    (line,) = re.findall(r"  %weight = .*", PROGRAM)
    operation = line.replace(" fusion(", f" {opcode}(")
    start = operation.replace(" bf16[1,64,64]{2,1,0} ", f" {shape} ").replace(
        f"%weight = {shape} {opcode}(", f"%begun = {shape} {opcode}-start("
    )
    pair = f"{start}\n  %weight = bf16[1,64,64]{{2,1,0}} {opcode}-done(%begun)"
    found = [
        [
            (launch.part, launch.times, launch.num_bytes, launch.is_movement)
            for launch in launches_of(HloModule(PROGRAM.replace(line, text)))
        ]
        for text in (operation, pair)
    ]
    assert found[0] == found[1]
    assert (Part.LAYERS, 3, found[0][1][2], True) in found[0]


def test_a_copied_weight_is_an_aim_missed_and_counted_with_its_bytes(launches):
    assert [launch.name for launch in launches.values() if launch.is_movement] == ["weight"]
    (aim,) = weight_aims(list(launches.values()), CONFIG)
    assert aim.startswith(f"3 copies of a weight, {3 * WEIGHT:,} bytes; weight")


def test_every_state_buffer_must_be_aliased(module, state):
    num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert not list(state_failures(module, state, num_bytes))
    (short,) = state_failures(module, state, num_bytes - 1)
    assert f"the state has {num_bytes:,}" in short
    copied = HloModule(PROGRAM.replace("{1}: (2, {}, may-alias)", ""))
    (lost,) = state_failures(copied, state, num_bytes)
    assert lost == "state.survival of 64 bytes is not aliased"


def test_a_pool_sized_temporary_fails(launches, state):
    pool = state.key_pool.size * state.key_pool.dtype.itemsize
    assert not list(pool_failures(list(launches.values()), state, CONFIG, pool - 1))
    (temporary,) = pool_failures(list(launches.values()), state, CONFIG, pool)
    assert f"{pool:,}" in temporary


@pytest.mark.parametrize("part", [1, 3])
def test_a_copy_of_a_pool_or_of_one_layer_of_it_fails(state, part):
    """A third of the pool is one layer of three: what slicing a stacked cache costs."""
    layer = state.key_pool.size * state.key_pool.dtype.itemsize // CONFIG.num_layers

    def failures(num_rows):
        scatter = "fusion(%state.1, %packed.1, %chosen), kind=kInput, calls=%fused_scatter"
        copy = f"dynamic-slice(%state.1, %packed.1), dynamic_slice_sizes={{{num_rows},64}}"
        copied = PROGRAM.replace("%kept = bf16[512,64]", f"%kept = bf16[{num_rows},64]")
        module = HloModule(copied.replace(scatter, copy))
        return list(pool_failures(launches_of(module), state, CONFIG, 0))

    assert not failures(layer // 128 - 1)
    num_bytes = layer * CONFIG.num_layers // part
    expected = f"kept copies {num_bytes:,} bytes, a layer of a pool has {layer:,}"
    assert failures(num_bytes // 128) == [expected]


def test_a_copied_weight_is_no_copy_of_a_small_pool(launches):
    few = jax.eval_shape(lambda: DeviceState.zeros(state_shape(num_blocks=1)))
    assert few.key_pool.size * 2 // CONFIG.num_layers < WEIGHT
    assert not [
        failure
        for failure in pool_failures(list(launches.values()), few, CONFIG, 0)
        if "weight" in failure
    ]


def test_spills_and_shared_memory_have_limits():
    kernels = [
        Kernel(name="fine", num_registers=255, spill_bytes=32, shared_bytes=1000),
        Kernel(name="spilling", num_registers=255, spill_bytes=36, shared_bytes=0),
        Kernel(name="greedy", num_registers=8, spill_bytes=0, shared_bytes=1001),
    ]
    spilling, greedy = kernel_failures(kernels, 1000)
    assert spilling == "kernel spilling spills 36 bytes, over 32"
    assert greedy == "kernel greedy takes 1,001 bytes of shared memory, over 1,000"


def test_aims_are_limits_that_may_be_reached():
    assert not [*launch_aims(12), *byte_aims(1.15)]
    assert "13 launches per layer, over 12" in list(launch_aims(13))
    assert len(list(byte_aims(1.16))) == 1


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        HloModule("HloModule nothing\n")


def test_ptx_is_found_in_a_serialized_call_with_its_shared_memory():
    ptx = b"//\n// Generated\n.version 8.5\n.visible .entry kernel(\n)\n{ ret; }\n"
    ptx += b"// padding" * 20
    size = bytes([0x80 | len(ptx) & 0x7F, len(ptx) >> 7])
    message = b"\x0a\x06kernel\x10\x04\x18\x80\xb8\x04\x22" + size + ptx + b"\x2a\x02ir"
    assert find_ptx(message) == [(ptx.decode(), 0x80 & 0x7F | 0x38 << 7 | 0x04 << 14)]
    assert find_ptx(message.replace(b"\x18\x80\xb8\x04", b"")) == [(ptx.decode(), 0)]


def test_escapes_are_those_of_c():
    assert unescape_octal(r"x\234\n\"\\0") == b'x\x9c\n"\\0'


# One call each of a step that jaxlib 0.10.2 and 0.12.0.1 compiled for an H200.
CALLS = ["jax_triton_0.3.hlo", "jax_triton_0.4.hlo"]


@pytest.mark.parametrize("name", CALLS)
def test_kernels_are_found_in_what_each_jax_triton_prints(name):
    module = HloModule((FIXTURES / name).read_text())
    ((ptx, shared_bytes),) = ptx_of(module.entry.root)
    assert ptx.startswith("//\n// Generated by LLVM NVPTX Back-End")
    assert ".target sm_90a" in ptx
    assert ptx.count(".entry decode_kernel(") == 1
    assert shared_bytes == 9728
    if find_assembler() is not None:
        (kernel,), unread = embedded_kernels(module, Assembler("sm_90a"))
        assert (kernel.name, kernel.shared_bytes, unread) == ("decode_kernel", 9728, [])
        assert 8 < kernel.num_registers < 255


@pytest.mark.parametrize(
    ("name", "known", "unknown"),
    [
        ("jax_triton_0.3.hlo", "backend_config=", "settings="),
        ("jax_triton_0.3.hlo", '"x\\234', '"y\\234'),
        ("jax_triton_0.4.hlo", "opaque = ", "payload = "),
        ("jax_triton_0.4.hlo", '"x\\9C', '"y\\9C'),
    ],
)
def test_mutation_a_kernel_call_that_cannot_be_read_is_a_failure(name, known, unknown):
    text = (FIXTURES / name).read_text()
    assert known in text
    module = HloModule(text.replace(known, unknown))
    kernels, unread = embedded_kernels(module, Assembler("sm_90a"))
    assert not kernels
    (failure,) = unread_failures(unread)
    assert failure.startswith("triton_kernel_call.0 launches a kernel of which no PTX was found")


def test_a_launched_kernel_without_ptx_is_named(tmp_path):
    launches = "003: kCustomKernel [source | sink] loop_fusion grid: [1, 1, 1] threads: [4, 1, 1]"
    path = tmp_path / "module_0001.jit_call.thunk_sequence_after_thunk_passes.txt"
    path.write_text(f"{launches}  shared_memory: 0 bytes\n")
    assert read_kernels(tmp_path, Assembler("sm_90a")) == ([], ["loop_fusion"])
    path.unlink()
    with pytest.raises(LoopedError, match="list of launches"):
        read_kernels(tmp_path, Assembler("sm_90a"))


WAITING = """HloModule waiting

%body (x: s32[]) -> s32[] {
  ROOT %x = s32[] parameter(0)
}

%condition (y: s32[]) -> pred[] {
  %y = s32[] parameter(0)
  ROOT %less = pred[] compare(%y, %y), direction=LT
}

ENTRY %main (a: s32[], p: pred[]) -> s32[] {
  %a = s32[] parameter(0)
  %p = pred[] parameter(1)
  %known = s32[] while(%a), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"33"}}
  %open = s32[] while(%known), condition=%condition, body=%body
  ROOT %chosen = s32[] conditional(%p, %open, %open), true_computation=%body, false_computation=%body
}
"""  # noqa: E501 - as XLA prints it


def test_conditions_and_loops_by_data_are_failures_and_counted_loops_are_not():
    conditional, loop = sorted(host_failures(HloModule(WAITING)))
    assert conditional.startswith("chosen () is a conditional: the host waits")
    assert loop.startswith("open () is a loop whose trip count is not known: the host waits")
