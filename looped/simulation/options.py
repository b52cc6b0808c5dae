"""What users say of a simulation, as fields that every command has options for.

Commands are made of these when they are imported, so nothing heavy is imported here; `plans` reads
the files that they name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from looped.errors import UsageError
from looped.sched import ConfigError, SchedulerOptions


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Which requests come, when, and how many loops their tokens run."""

    workload: Path | None = None
    """JSON lines: prompt_tokens, output_tokens and, if known, arrival_time, depths, priority and
    shared_prefix_tokens."""
    from_log: Path | None = None
    """Launch log whose requests are played again: arrivals, lengths, depths and shared prefixes as
    they were."""
    requests: int | None = None
    """Requests to make up. None: 200."""
    prompt_tokens: str | None = None
    """Length of a made-up prompt: N, or FROM:TO for any between. None: 128."""
    output_tokens: str | None = None
    """Tokens that a made-up request emits: N, or FROM:TO. None: 64, or as many as its recorded
    depths are."""
    shared_prefix_tokens: int | None = None
    """Tokens that all made-up prompts begin with, for the prefix cache to find again; fewer than
    the shortest prompt has. None: 0."""
    rate: float | None = None
    """Requests per second, as a Poisson process unless --burstiness says otherwise. Recorded
    arrivals are stretched to it."""
    burstiness: float | None = None
    """Coefficient of variation of the gaps between arrivals (gamma distribution)."""
    concurrency: int | None = None
    """Requests under way at any time (a closed loop), instead of a rate."""
    exits: str | None = None
    """Loops of a token: easy, typical, hard (means 2.25, 2.46, 2.58 of 4), mean:X, or full.
    None: typical."""
    exit_mode: str | None = None
    """How exits are decided: trace (known ahead, so a head runs where a token leaves and nowhere
    else), or ouro, ouro_delayed or lookahead, which come to the same loops by signals on the
    device, with a head wherever a token may leave; the last two raise made-up depths to 2 or more.
    None: trace."""
    heterogeneity: float | None = None
    """Share of the variance of made-up depths that lies between requests, 0 to 1. None: 0.25."""
    autocorrelation: float | None = None
    """Of made-up depths, between neighbouring tokens of a request, 0 to below 1. None: 0.5."""
    exit_trace: Path | None = None
    """JSON: recorded depths, one list a request, instead of --exits; more requests than lists begin
    with the first again. An empty one is all loops."""
    exit_gates: Path | None = None
    """Recorded gates (.npz), from which --exit-threshold makes depths: an approximation."""
    exit_threshold: float | None = None
    """Of --exit-gates. None: 0.5."""
    min_loops: int | None = None
    """Fewest loops, of --exit-gates. None: 2."""


TOLD_SIZES = ("max_num_seqs", "max_num_batched_tokens", "block_size")
"""Options that results name even where they are the defaults."""


@dataclass(frozen=True, kw_only=True)
class SimulationOptions(SchedulerOptions):
    """The scheduler's options, and its pool."""

    num_blocks: int | None = None
    """KV blocks, over all planes. None: enough for max_num_seqs of the longest requests."""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ConfigError as error:
            raise UsageError(str(error)) from None

    def values(self) -> dict[str, Any]:
        """Those that are not the defaults, and the sizes, by the names of `SchedulerConfig`."""
        values = {
            option.name: (getattr(self, option.name), option.default) for option in fields(self)
        }
        return {
            name: value
            for name, (value, default) in values.items()
            if value is not None and (name in TOLD_SIZES or value != default)
        }


def parse_policy(text: str) -> dict[str, Any]:
    """Options of `SchedulerConfig` from `NAME` or `NAME:KEY=VALUE,KEY=VALUE`.

    Raises:
        UsageError: something else.
    """
    name, colon, typed = text.partition(":")
    options = [tuple(word.split("=", 1)) for word in typed.split(",")] if colon else []
    if not name or any(len(option) != 2 for option in options):
        raise UsageError(
            "expected a policy as NAME or NAME:KEY=VALUE,KEY=VALUE, no value with a comma in it; "
            f"got {text!r}"
        )
    return {"policy": name, "policy_options": tuple(options)}


def one_policy(typed: Sequence[str], otherwise: str) -> str:
    """The policy of a command that takes one.

    Args:
        typed: whatever came as `--policy`.
        otherwise: what to do instead of giving several.

    Raises:
        UsageError: several.
    """
    if len(typed) > 1:
        raise UsageError(
            f"expected one --policy, got {len(typed)}: {', '.join(typed)}; {otherwise}"
        )
    return typed[0]


def check_differ(flag: str, values: Sequence[object]) -> None:
    """UsageError for an option that came twice with one value, which would run everything twice."""
    if len(set(values)) < len(values):
        given = ", ".join(str(value) for value in values)
        raise UsageError(f"expected values of {flag} that differ, got {given}")
