"""Scheduler configurations as results show them, and how a log's engine differed."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from looped.engine.events import EngineEvent
from looped.sched import ConfigError, SchedulerConfig, SchedulerOptions

DECIDING = tuple(option.name for option in fields(SchedulerOptions))
"""Options that decide what runs, besides the policy and the blocks."""


def config_json(config: SchedulerConfig) -> dict[str, Any]:
    """Every option, what was left out resolved; None where the policy ignores one."""
    policy = config.chosen_policy
    return {
        **{one.name: getattr(config, one.name) for one in fields(config) if one.init},
        "policy": policy.name,
        "policy_options": [list(pair) for pair in config.policy_options],
        "max_decode_rows": config.decode_row_limit,
        "max_prefill_batches_before_decode": (
            config.prefill_interval if policy.uses_prefill_interval else None
        ),
        "prompt_shortcut": config.has_prompt_shortcut if policy.uses_prompt_shortcut else None,
        "prefix_caching": config.has_prefix_caching(policy),
        "run_ahead": config.launches_ahead(policy),
    }


def differences(
    engine: EngineEvent,
    configs: Sequence[SchedulerConfig],
    *,
    is_deterministic: bool,
    has_blocks: bool,
) -> list[str]:
    """What decides a run and is not as in a log's engine: `NAME THERE, here HERE` each.

    Args:
        engine: of the log.
        configs: that are simulated; what one of them has in common with the engine is no
            difference.
        is_deterministic: whether they are simulated as `--deterministic` has it.
        has_blocks: whether the size of the pool was asked for.
    """
    try:
        there: Mapping[str, Any] = config_json(engine.scheduler_config())
    except ConfigError:  # a policy that is not here, or was an object: the options as logged
        there = engine.config
    here = [config_json(config) for config in configs]
    told = []
    names = [_policy(there), *dict.fromkeys(map(_policy, here))]
    if names[0] not in names[1:]:
        told.append(f"policy {names[0]}, here {', '.join(names[1:])}")
    for name in (*DECIDING, *(("num_blocks",) if has_blocks else ())):
        if name == "max_decode_rows" and not any(map(_limits_decode_rows, (there, *here))):
            continue
        value = there.get(name)
        values = list(dict.fromkeys(config[name] for config in here))
        if value is not None and None not in values and value not in values:
            told.append(f"{name} {value}, here {', '.join(map(str, values))}")
    if engine.is_deterministic != is_deterministic:
        told.append(f"deterministic {engine.is_deterministic}, here {is_deterministic}")
    return told


def _limits_decode_rows(config: Mapping[str, Any]) -> bool:
    return config["max_decode_rows"] not in (None, config["max_num_seqs"])


def _policy(config: Mapping[str, Any]) -> str:
    options = ",".join(f"{key}={value}" for key, value in config.get("policy_options", ()))
    return f"{config['policy']}:{options}" if options else str(config["policy"])
