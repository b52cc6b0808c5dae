"""Row buckets of each launch kind that a configuration uses, for engines and simulators alike."""

from .buckets import Ladder, coda_ladder, prefill_ladder, recurrent_ladder, score_ladder
from .config import SchedulerConfig
from .items import LaunchKind
from .policies import Policy


def ladders_for(
    config: SchedulerConfig, *, is_deterministic: bool = False, policy: Policy | None = None
) -> dict[LaunchKind, Ladder]:
    """Row buckets of each launch kind that the policy uses.

    A deterministic engine has one bucket for each kind and no `prefill`, so that a row always runs
    through the same program; its score bucket is the budget, so as not to depend on the chunk.

    Args:
        config: sizes and limits.
        is_deterministic: whether one bucket has to do.
        policy: overrides `config.policy`.
    """
    budget = config.budget
    ladders = {
        LaunchKind.RECURRENT: recurrent_ladder(budget, config.chunk_size, config.max_num_seqs),
        LaunchKind.CODA: coda_ladder(config.max_num_seqs),
        LaunchKind.SCORE: score_ladder(budget if is_deterministic else config.chunk_size),
    }
    if is_deterministic:
        return {kind: ladder[-1:] for kind, ladder in ladders.items()}
    if config.needs_prefill_launches(policy or config.chosen_policy):
        ladders[LaunchKind.PREFILL] = prefill_ladder(budget)
    return ladders
