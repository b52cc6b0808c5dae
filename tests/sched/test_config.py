"""The configuration: complete when built, contradictions refused with their numbers."""

import pytest
from stub_executor import StubExecutor

from looped.sched import POLICIES, ConfigError, Policy, Scheduler, SchedulerConfig

SIZES = {"num_planes": 4, "vocab_size": 100, "num_blocks": 256, "max_model_len": 128}


def config_with(**options: object) -> SchedulerConfig:
    return SchedulerConfig(**(SIZES | options))  # type: ignore[arg-type]


def test_an_unset_chunk_is_derived_and_says_so() -> None:
    config = config_with()
    assert (config.prefill_chunk_size, config.is_chunk_derived) == (128, True)
    small = config_with(max_num_batched_tokens=20, max_num_seqs=16)
    assert (small.prefill_chunk_size, small.chunk_size) == (5, 5)
    explicit = config_with(prefill_chunk_size=64)
    assert (explicit.chunk_size, explicit.is_chunk_derived) == (64, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_planes": 0}, "num_planes must be >= 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be >= 1, got 0"),
        ({"block_size": 0}, "block_size must be >= 1, got 0"),
        ({"min_coda_batch_size": 0}, "min_coda_batch_size must be >= 1, got 0"),
        ({"admission_scan_limit": 0}, "admission_scan_limit must be >= 1, got 0"),
        ({"admission_bypass_limit": -1}, "admission_bypass_limit must be >= 0, got -1"),
        ({"max_prefill_batches_before_decode": 0}, "must be >= 1, got 0"),
        ({"max_num_batched_tokens": 15}, "15 < 16; try --max-num-batched-tokens 16"),
        ({"min_coda_batch_size": 17}, "17 > 16; try --min-coda-batch-size 16"),
        ({"prefill_chunk_size": 257}, r"257 is not in 1..256; try --prefill-chunk-size 128"),
        ({"prefill_chunk_size": 0}, r"0 is not in 1..256"),
        ({"num_blocks": 3}, "3 < 4; raise --num-blocks"),
        ({"kv_watermark": 256}, "256 >= 256; lower --kv-watermark"),
        ({"policy": "magic"}, "policy must be one of atomic, separate, got 'magic'"),
        ({"scheduling_policy": "lifo"}, "must be one of fcfs, priority, got 'lifo'"),
    ],
)
def test_a_contradiction_is_refused_with_numbers_and_a_way_out(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_with(**options)


def test_an_option_that_the_policy_ignores_is_refused() -> None:
    config = config_with(max_prefill_batches_before_decode=2)
    assert config.prefill_interval == 2
    assert config_with().prefill_interval == 1
    shipped = POLICIES["separate"]
    ignoring = Policy(name="ignoring", choose=shipped.choose, take=shipped.take)
    with pytest.raises(ConfigError, match="must be left out with policy ignoring"):
        Scheduler(config, StubExecutor(config), ignoring)


@pytest.mark.parametrize(("chunk", "is_refused"), [(241, False), (242, True)])
def test_a_mixing_policy_needs_room_for_a_chunk_beside_all_other_rows(
    chunk: int, is_refused: bool
) -> None:
    shipped = POLICIES["separate"]
    mixing = Policy(name="mixing", choose=shipped.choose, take=shipped.take, is_mixing=True)
    config = config_with(prefill_chunk_size=chunk)
    if not is_refused:
        config.check_policy(mixing)
        return
    message = r"242 \+ 16 - 1 > 256; try --max-num-batched-tokens 257"
    with pytest.raises(ConfigError, match=message):
        config.check_policy(mixing)
