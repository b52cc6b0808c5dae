"""Every option has one home, and reaches the scheduler from there."""

from dataclasses import fields

import pytest

from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.sched import SchedulerConfig, SchedulerOptions
from looped.simulation.options import SimulationOptions

MODEL = {
    "num_planes": 4,
    "vocab_size": 50,
    "num_blocks": 64,
    "max_model_len": 99,
    "cache_salt": "salt",
}
CHOSEN = {
    "prompt_shortcut": False,
    "max_num_seqs": 5,
    "max_num_batched_tokens": 70,
    "max_decode_rows": 3,
    "prefill_chunk_size": 20,
    "block_size": 8,
    "kv_watermark": 4,
    "max_prefill_batches_before_decode": 3,
    "scheduling_policy": "priority",
    "admission_scan_limit": 7,
    "admission_bypass_limit": 6,
    "prefix_caching": False,
    "run_ahead": 3,
    "incremental_kv": True,
}
ROLES = (EngineConfig, SchedulerConfig, SimulationOptions)


def test_no_role_spells_an_option_of_the_scheduler_again():
    names = {option.name for option in fields(SchedulerOptions)}
    for role in ROLES:
        assert issubclass(role, SchedulerOptions)
        assert not names & role.__annotations__.keys(), role


def test_every_option_reaches_the_scheduler():
    options = {option.name: option.default for option in fields(SchedulerOptions)}
    assert CHOSEN.keys() == options.keys()
    assert not [name for name, value in CHOSEN.items() if value == options[name]]
    for policy in ("mixed", "separate"):  # each ignores an option that the other knows
        ignored = "max_prefill_batches_before_decode" if policy == "mixed" else "prompt_shortcut"
        chosen = {name: value for name, value in CHOSEN.items() if name != ignored}
        built = EngineConfig(policy=policy, **chosen).scheduler_config(**MODEL)
        assert built == SchedulerConfig(policy=policy, **chosen, **MODEL)
        assert SimulationOptions(**chosen).values() == chosen


@pytest.mark.parametrize("role", [EngineConfig, SimulationOptions])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size must be >= 1, got 0"),
        ({"kv_watermark": -1}, "kv_watermark must be >= 0, got -1"),
        ({"max_prefill_batches_before_decode": 0}, "decode must be >= 1, got 0"),
        ({"scheduling_policy": "lifo"}, "one of fcfs, priority, got 'lifo'"),
        ({"run_ahead": 5}, "run_ahead must be in 0..4, got 5"),
        ({"run_ahead": -1}, "run_ahead must be in 0..4, got -1"),
    ],
)
def test_what_is_wrong_by_itself_is_refused_by_whoever_is_built(role, options, message):
    with pytest.raises(UsageError, match=message):
        role(**options)


def test_what_contradicts_another_option_is_refused_with_both():
    with pytest.raises(UsageError, match="max_num_batched_tokens must be >= max_num_seqs"):
        EngineConfig(max_num_seqs=300, max_num_batched_tokens=256).scheduler_config(**MODEL)


def test_sizes_are_told_even_where_they_are_the_defaults():
    assert SimulationOptions().values() == {
        "max_num_seqs": 16,
        "block_size": 16,
    }
