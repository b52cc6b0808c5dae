"""How large the KV pool becomes, on a CPU and on a GPU that is played by numbers."""

from dataclasses import replace

import pytest
from engines import loaded_model, make_engine

from looped.engine.llm_engine import LLMEngine
from looped.engine.memory_plan import (
    COARSE_STEP,
    blocks_for_requests,
    blocks_on_cpu,
    blocks_on_gpu,
    explicit_blocks,
    host_memory,
)
from looped.engine.options import EngineConfig
from looped.engine.sizes import plan_absent_gpu, plan_shape
from looped.errors import LoopedError, UsageError
from looped.programs.lookahead import LookaheadHeads
from looped.programs.parameters import Parameters
from looped.sampling_params import SamplingParams

GIB = 2**30


@pytest.fixture
def shape(tiny_folder):
    return make_engine(tiny_folder).runner.executables.shape


def test_a_block_holds_all_layers_of_one_plane(shape):
    assert shape.block_bytes == 3 * 2 * 4 * 16 * shape.block_size * 4
    assert shape.kv_bytes == shape.block_bytes * shape.num_blocks


def test_without_sizes_the_pool_holds_what_all_slots_can_need(shape):
    assert blocks_on_cpu(EngineConfig(), shape) == blocks_for_requests(shape) == 8 * 4 * 6


def test_bytes_are_rounded_down_to_blocks(shape):
    config = EngineConfig(kv_cache_bytes=shape.block_bytes * 10 + 5)
    assert blocks_on_cpu(config, shape) == 10
    assert explicit_blocks(config, shape) == 10
    assert explicit_blocks(EngineConfig(num_blocks=7), shape) == 7


def test_a_gpu_pool_is_what_weights_workspace_and_the_kept_share_leave(shape):
    large = replace(shape, max_num_seqs=256, max_model_len=65536)
    config = EngineConfig(gpu_memory_utilization=0.5)
    num_blocks = blocks_on_gpu(
        config, large, bytes_limit=8 * GIB, bytes_in_use=GIB, workspace=GIB // 2
    )
    left = 4 * GIB - GIB - GIB // 2 - large.prompt_state_bytes - large.sampling_state_bytes
    left -= large.request_table_bytes
    assert num_blocks % COARSE_STEP == 0
    assert left - COARSE_STEP * large.block_bytes < num_blocks * large.block_bytes <= left


def test_a_little_less_free_memory_gives_the_same_pool(shape):
    large = replace(shape, max_num_seqs=256, max_model_len=65536)
    sizes = {
        blocks_on_gpu(
            EngineConfig(), large, bytes_limit=8 * GIB, bytes_in_use=GIB + used, workspace=0
        )
        for used in range(0, 3 * large.block_bytes, large.block_bytes // 2)
    }
    assert len(sizes) <= 2


def test_places_for_several_prompt_items_of_a_request_are_taken_from_a_gpus_pool(shape):
    large = replace(shape, max_num_seqs=256, max_model_len=65536)
    pools = []
    for window in (1, 4):
        windowed = replace(large, max_window=window)
        rows = 256 + window * 256 * 16
        assert windowed.prompt_state_bytes == rows * 64 * 4
        num_blocks = blocks_on_gpu(
            EngineConfig(), windowed, bytes_limit=8 * GIB, bytes_in_use=GIB, workspace=0
        )
        pools.append(num_blocks * shape.block_bytes)
    difference = 3 * 256 * 16 * 64 * 4
    assert abs(pools[0] - pools[1] - difference) <= COARSE_STEP * shape.block_bytes


@pytest.mark.parametrize(("options", "window"), [((), 4), ((("window", "3"),), 3)])
def test_a_plan_has_the_window_of_the_policy_and_at_most_one_item_a_depth(
    tiny_folder, options, window
):
    config = EngineConfig(policy="wavefront", policy_options=options, max_model_len=96)
    memory = {"bytes_limit": GIB, "bytes_in_use": 0, "workspace": 0}
    model = loaded_model(tiny_folder).config
    assert plan_absent_gpu(config, model, "float32", **memory).max_window == window
    plain = plan_absent_gpu(EngineConfig(max_model_len=96), model, "float32", **memory)
    assert plain.max_window == 1


class FakeGpu:
    """A device as `plan_shape` sees one; the steps themselves compile for the CPU."""

    platform = "gpu"

    def __init__(self, stats):
        self._stats = stats

    def memory_stats(self):
        return self._stats


def plan_on(monkeypatch, folder, stats, **options):
    loaded = loaded_model(folder)
    monkeypatch.setattr("looped.engine.sizes.jax.devices", lambda: [FakeGpu(stats)])
    parameters = Parameters(
        model=loaded.model, lookahead=LookaheadHeads.create(loaded.config, seed=0)
    )
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=16, **options)
    return plan_shape(loaded, config, parameters, "xla")


@pytest.mark.long
def test_a_gpu_is_planned_from_its_free_memory(tiny_folder, monkeypatch):
    stats = {"bytes_limit": 16 * 2**20, "bytes_in_use": 2**20}
    planned = plan_on(monkeypatch, tiny_folder, stats)
    assert 0 < planned.kv_bytes < 0.9 * 16 * 2**20
    assert planned.max_model_len == planned.num_blocks // 4 * 16 < 4096


def test_explicit_sizes_need_no_word_from_the_gpu(tiny_folder, monkeypatch):
    assert plan_on(monkeypatch, tiny_folder, None, num_blocks=64).num_blocks == 64
    sized = plan_on(monkeypatch, tiny_folder, None, kv_cache_bytes=10 * 24_576)
    assert sized.num_blocks == 10
    with pytest.raises(LoopedError, match="--kv-cache-bytes"):
        plan_on(monkeypatch, tiny_folder, None)


def test_a_containers_limit_counts_as_the_memory_there_is(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text("1000000\n")
    assert host_memory(limit) == 1_000_000
    limit.write_text("max\n")
    assert host_memory(limit) == host_memory(tmp_path / "nothing") > 10**9


def test_a_gpu_without_room_is_refused_with_numbers(shape):
    with pytest.raises(LoopedError, match="at least 4 are needed"):
        blocks_on_gpu(EngineConfig(), shape, bytes_limit=GIB, bytes_in_use=GIB, workspace=0)


def test_two_sizes_for_one_pool_are_refused():
    with pytest.raises(UsageError, match="give one"):
        EngineConfig(num_blocks=4, kv_cache_bytes=4)


def test_the_plan_names_every_part_and_is_logged_at_warm_up(tiny_folder, caplog):
    engine = make_engine(tiny_folder)
    with caplog.at_level("INFO", logger="looped"):
        engine.warm_up([3])
    plan = engine.memory_plan
    assert plan.weights == 4 * (207_745 + 64 + 2 * 64 + 2)  # and the look-ahead heads
    assert plan.kv_pool == engine.runner.executables.shape.kv_bytes
    assert plan.prompt_state == 8 * 17 * 64 * 4
    assert plan.sampling_state == 8 * 512 * (4 + 4)
    assert plan.workspace > 0
    assert f"weights {plan.weights:,}" in caplog.text


@pytest.mark.parametrize(
    "kv_cache_dtype", ["float32", pytest.param("float16", marks=pytest.mark.long)]
)
def test_the_kv_type_is_an_option(tiny_folder, kv_cache_dtype):
    engine = make_engine(tiny_folder, kv_cache_dtype=kv_cache_dtype, deterministic=True)
    assert engine.runner.state.key_pool.dtype == kv_cache_dtype
    engine.add_request("a", [1, 2, 3], SamplingParams(max_tokens=3))
    while engine.has_unfinished_requests():
        engine.step()


def test_a_small_chunk_that_was_left_out_is_derived_and_warned_of(tiny_folder, caplog):
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, num_blocks=64)
    with caplog.at_level("WARNING", logger="looped"):
        engine = LLMEngine(loaded_model(tiny_folder), config)
    assert engine.scheduler_config.chunk_size == 32 - 4 + 1
    assert "prefill_chunk_size is 29, all that max_num_batched_tokens 32 has room" in caplog.text
    assert "try --max-num-batched-tokens 131, or leave it out" in caplog.text
    assert engine.runner.executables.shape.max_model_len == 4096
