"""The configuration: complete when built, contradictions refused with their numbers."""

import re

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
    ("num_seqs", "budget"),
    [
        (1, 256),
        (16, 256),
        (128, 256),
        (129, 512),
        (256, 512),
        (384, 512),
        (385, 1024),
        (2000, 4096),
    ],
)
def test_an_unset_budget_has_room_for_a_whole_chunk(num_seqs: int, budget: int) -> None:
    config = config_with(max_num_seqs=num_seqs)
    assert (config.max_num_batched_tokens, config.budget) == (budget, budget)
    assert config.chunk_size == 128
    assert config.chunk_warning is None


@pytest.mark.parametrize(
    ("options", "chunk", "proposed"),
    [
        ({"max_num_seqs": 256, "max_num_batched_tokens": 256}, 1, 383),
        ({"max_num_batched_tokens": 20}, 5, 143),
        ({"max_num_batched_tokens": 142, "policy": "separate"}, 127, 143),
        ({"max_num_batched_tokens": 143}, 128, None),
        ({"max_num_batched_tokens": 20, "max_model_len": 6}, 5, 21),
        ({"max_num_batched_tokens": 20, "max_model_len": 5}, 5, None),
        ({"max_num_batched_tokens": 20, "prefill_chunk_size": 2}, 2, None),
    ],
)
def test_a_derived_chunk_that_is_small_is_warned_of_with_what_mends_it(
    options: dict[str, object], chunk: int, proposed: int | None
) -> None:
    config = config_with(**options)
    assert config.chunk_size == chunk
    if proposed is None:
        assert config.chunk_warning is None
        return
    assert f"prefill_chunk_size is {chunk}," in str(config.chunk_warning)
    assert f"try --max-num-batched-tokens {proposed}, or leave it out" in str(config.chunk_warning)
    mended = config_with(**{**options, "max_num_batched_tokens": proposed})
    assert mended.chunk_size == min(128, mended.max_model_len)
    assert mended.chunk_warning is None


@pytest.mark.parametrize("policy", ["mixed", "separate"])
@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 255, "max_num_seqs": 256},
        {"max_num_batched_tokens": 15, "max_model_len": 7},
        {"max_num_batched_tokens": 15, "prefill_chunk_size": 300},
        {"max_num_batched_tokens": 15, "prefill_chunk_size": 0},
        {"max_num_batched_tokens": 16, "prefill_chunk_size": 17},
        {"max_num_batched_tokens": 16, "prefill_chunk_size": 0},
        {"max_num_batched_tokens": 256, "max_num_seqs": 256, "prefill_chunk_size": 400},
        {"prefill_chunk_size": 4000},
        {"prefill_chunk_size": 4000, "max_num_seqs": 256},
        {"prefill_chunk_size": 0, "max_num_seqs": 256},
        {"prefill_chunk_size": 250},
        {"prefill_chunk_size": 128, "max_num_batched_tokens": 128},
    ],
)
def test_the_option_that_an_error_proposes_leads_to_a_useful_chunk(
    options: dict[str, object], policy: str
) -> None:
    """One that was asked for, where there is one, or else min(128, max_model_len)."""
    options, num_refusals = {**options, "policy": policy}, 0
    wanted = options.get("prefill_chunk_size") or 128
    while (refusal := refusal_of(options)) is not None:
        num_refusals += 1
        ((flag, value),) = re.findall(r"--([a-z-]+) (\d+)", refusal)
        if "leave it out" in refusal:
            del options["prefill_chunk_size"]
        options[flag.replace("-", "_")] = int(value)
        assert num_refusals <= 2, refusal
    config = config_with(**options)
    assert config.chunk_size >= min(wanted, 128, config.max_model_len)
    assert config.chunk_warning is None
    assert num_refusals or policy == "separate"


def refusal_of(options: dict[str, object]) -> str | None:
    try:
        config_with(**options)
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_planes": 0}, "num_planes must be >= 1, got 0"),
        ({"max_num_seqs": 0}, "max_num_seqs must be >= 1, got 0"),
        ({"block_size": 0}, "block_size must be >= 1, got 0"),
        ({"admission_scan_limit": 0}, "admission_scan_limit must be >= 1, got 0"),
        ({"admission_bypass_limit": -1}, "admission_bypass_limit must be >= 0, got -1"),
        (
            {"policy": "separate", "max_prefill_batches_before_decode": 0},
            "must be >= 1, got 0",
        ),
        ({"max_prefill_batches_before_decode": 1}, "must be left out with policy mixed.*got 1"),
        ({"policy": "atomic", "prompt_shortcut": True}, "must be left out with policy atomic"),
        ({"policy": "separate", "prompt_shortcut": False}, "with policy separate.*got False"),
        ({"max_num_batched_tokens": 15}, "15 < 16; try --max-num-batched-tokens 143"),
        ({"prefill_chunk_size": 257}, r"257 is not in 1..256; try --prefill-chunk-size 128"),
        ({"prefill_chunk_size": 0}, r"0 is not in 1..256"),
        ({"num_blocks": 3}, "3 < 4; raise --num-blocks"),
        ({"kv_watermark": 256}, "256 >= 256; lower --kv-watermark"),
        ({"policy": "magic"}, "policy must be one of mixed, .*, got 'magic'"),
        ({"scheduling_policy": "lifo"}, "must be one of fcfs, priority, got 'lifo'"),
    ],
)
def test_a_contradiction_is_refused_with_numbers_and_a_way_out(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_with(**options)


def test_an_option_that_the_policy_ignores_is_refused() -> None:
    config = config_with(policy="separate", max_prefill_batches_before_decode=2)
    assert config.prefill_interval == 2
    assert config_with().prefill_interval == 1
    shipped = POLICIES["separate"]
    ignoring = Policy(name="ignoring", choose=shipped.choose, take=shipped.take)
    with pytest.raises(ConfigError, match="must be left out with policy ignoring"):
        Scheduler(config, StubExecutor(config), ignoring)


@pytest.mark.parametrize(
    ("chunk", "budget", "seqs"), [(241, 256, 16), (128, 143, 16), (1, 16, 16), (16, 16, 1)]
)
def test_the_guard_of_mixed_lets_a_chunk_through_that_just_fits(
    chunk: int, budget: int, seqs: int
) -> None:
    sizes = {"max_num_batched_tokens": budget, "max_num_seqs": seqs}
    assert config_with(prefill_chunk_size=chunk, **sizes).chunk_size == chunk
    over = rf"{chunk + 1} \+ {seqs} - 1 > {budget}; try --max-num-batched-tokens {budget + 1}"
    if chunk < budget:
        with pytest.raises(ConfigError, match=over):
            config_with(prefill_chunk_size=chunk + 1, **sizes)
    for policy in ("separate", "atomic"):
        config_with(prefill_chunk_size=budget, policy=policy, **sizes)


def test_a_derived_chunk_always_passes_the_guard() -> None:
    for budget in range(16, 300, 7):
        config = config_with(max_num_batched_tokens=budget)
        assert config.chunk_size + 16 - 1 <= budget or config.chunk_size == budget - 15
        assert config.chunk_size == min(128, budget - 15)


def test_a_mixing_plug_in_is_held_to_the_same_guard() -> None:
    shipped = POLICIES["separate"]
    mixing = Policy(name="mixing", choose=shipped.choose, take=shipped.take, is_mixing=True)
    config = config_with(policy="separate", prefill_chunk_size=242)
    with pytest.raises(ConfigError, match="with policy mixing"):
        Scheduler(config, StubExecutor(config), mixing)
