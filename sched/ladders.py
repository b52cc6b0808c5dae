"""Row buckets of each program that a configuration uses, for engines and simulators alike."""

from collections.abc import Mapping, Sequence

from .buckets import Ladder, bucket_for
from .config import SchedulerConfig
from .launches import PROGRAM_KINDS, LaunchKind, RowLimits
from .policies import Policy

Rung = tuple[LaunchKind, int]
"""The kind of a program and its number of rows, padding included."""


def ladders_for(
    config: SchedulerConfig, *, is_deterministic: bool = False, policy: Policy | None = None
) -> dict[LaunchKind, Ladder]:
    """Row buckets of each launch kind that the policy uses.

    A deterministic engine has one bucket for each kind, the largest, and splits launches of
    several passes, so that a row always runs through the same program.

    Args:
        config: sizes and limits.
        is_deterministic: whether one bucket has to do.
        policy: overrides `config.policy`.
    """
    policy = policy or config.chosen_policy
    ladders: dict[LaunchKind, Ladder] = {}
    # Those that stand alone come first; logs and progress bars have kept this order.
    for kind in sorted(PROGRAM_KINDS, key=_can_be_split):
        ladder = kind.ladder(config, policy, is_deterministic=is_deterministic)
        if ladder is not None:
            ladders[kind] = ladder[-1:] if is_deterministic else ladder
    return ladders


def all_rungs(ladders: Mapping[LaunchKind, Ladder]) -> list[Rung]:
    """Every rung of every ladder."""
    return [(kind, rows) for kind, ladder in ladders.items() for rows in ladder]


def rung_order(rung: Rung) -> tuple[int, int]:
    """Sort key of rungs: by kind, then by rows."""
    return PROGRAM_KINDS.index(rung[0]), rung[1]


def reachable_rungs(
    ladders: Mapping[LaunchKind, Ladder],
    config: SchedulerConfig,
    prompt_lengths: Sequence[int],
    *,
    has_scores: bool,
) -> list[Rung]:
    """The rungs that a closed set of requests can reach, for callers that know theirs.

    Args:
        ladders: all of the engine's.
        config: limits of concurrency and chunk.
        prompt_lengths: tokens of each prompt, once per sample.
        has_scores: whether any of the prompts is scored.
    """
    num_seqs = min(len(prompt_lengths), config.max_num_seqs)
    longest = sorted(prompt_lengths, reverse=True)[:num_seqs]
    # Several passes run one prompt item a request, a single one as many as are under way.
    most_tokens = config.chunk_size * config.max_window(config.chosen_policy)
    limits = RowLimits(
        num_seqs=num_seqs,
        num_prompt_rows=sum(min(length, config.chunk_size) for length in longest),
        num_window_rows=sum(min(length, most_tokens) for length in longest),
        has_scores=has_scores,
    )
    reachable = {
        (kind, bucket_for(ladder, num_rows))
        for kind, ladder in ladders.items()
        for num_rows in range(1, min(kind.most_rows(limits), ladder[-1]) + 1)
        if kind.is_launched_with(num_rows, config)
    }
    return [rung for rung in all_rungs(ladders) if rung in reachable]


def _can_be_split(kind: LaunchKind) -> bool:
    return kind.called_kind(2) is not kind
