"""What users say of a simulation, as fields that every command has options for.

Commands are made of these when they are imported, so nothing heavy is imported here; `plans` reads
the files that they name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped.errors import UsageError


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
    """How exits are decided: trace (known ahead, so nothing is read), or ouro, ouro_delayed or
    lookahead, which come to the same loops by signals that the host waits for; the last two raise
    made-up depths to 2 or more. None: trace."""
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


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """The scheduler's sizes and limits, where they differ from the engine's defaults."""

    max_num_seqs: int = 16
    """Requests that may be active at once."""
    max_num_batched_tokens: int | None = None
    """Rows that a launch may have: the budget. None: 256, or, where max_num_seqs is above 128, the
    next power of two at or above max_num_seqs + 128."""
    prefill_chunk_size: int | None = None
    """Most prompt tokens in an item. None: min(128, budget - max_num_seqs + 1)."""
    max_decode_rows: int | None = None
    """Decode rows that a launch may have. None: all."""
    min_coda_batch_size: int | None = None
    """Rows worth an LM-head launch while other tokens are still in the loops. None: 1."""
    max_prefill_batches_before_decode: int | None = None
    """Prompt launches before a ready decode goes first. None: 1, where the policy uses it."""
    num_blocks: int | None = None
    """KV blocks, over all planes. None: enough for max_num_seqs of the longest requests."""
    block_size: int = 16
    """Positions in a KV block."""
    kv_watermark: int | None = None
    """Blocks kept free at admission while anything is active. None: 0."""
    prompt_shortcut: bool | None = None
    """Let prompts run their depths in one launch while no request is past its prompt. None: as the
    engine does, where the policy uses it."""
    scheduling_policy: str | None = None
    """Order of admission: fcfs, or priority (lower first, then arrival). None: fcfs."""
    admission_scan_limit: int | None = None
    """Waiting requests looked at in one round of admission. None: 64."""
    admission_bypass_limit: int | None = None
    """Later admissions that a blocked request tolerates before all behind it wait. None: 8."""
    prefix_caching: bool | None = None
    """Share the KV of full prompt blocks between requests with equal prefixes. None: on, but for
    a policy that has several prompt items of a request under way at once."""
    incremental_kv: bool | None = None
    """Claim blocks when they are first written. None: at admission."""

    def values(self) -> dict[str, Any]:
        """Those that are given, by the names of `SchedulerConfig`."""
        return {name: value for name, value in vars(self).items() if value is not None}


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
