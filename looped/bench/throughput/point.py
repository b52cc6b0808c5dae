"""One point of a throughput sweep, complete: model, engine options, thresholds and requests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.sched import ConfigError, default_budget, policy_named
from looped.sched.policies import PolicyOptions

from ..engine_point import EnginePoint, chunk_within
from .closed_loop import ClosedLoop
from .runs import BASE_THRESHOLD

REQUESTS_PER_PLACE = 4
"""Requests by default, in multiples of the concurrency."""


@dataclass(frozen=True, kw_only=True)
class ThroughputPoint(EnginePoint):
    """One point of a sweep, which all its thresholds and rounds share."""

    policy: str
    policy_options: PolicyOptions = ()
    """For a policy that takes some."""
    thresholds: tuple[float, ...]
    """What is compared, threshold 1 among it."""
    loop: ClosedLoop

    @classmethod
    def derive(
        cls,
        *,
        thresholds: Sequence[float],
        concurrency: int,
        num_requests: int | None,
        budget: int | None,
        chunk_size: int | None,
        loop: dict[str, Any],
        **others: Any,
    ) -> Self:
        """Fills what is None: 4 requests for every one that is under way at a time, and the
        engine's own budget and chunk.

        Raises:
            UsageError: numbers that contradict each other, or a threshold that is named twice.
        """
        if len(set(thresholds)) < len(thresholds):
            raise UsageError(f"thresholds must differ, got {', '.join(map(str, thresholds))}")
        budget = default_budget(concurrency) if budget is None else budget
        others_first = [threshold for threshold in thresholds if threshold != BASE_THRESHOLD]
        return cls(
            thresholds=(BASE_THRESHOLD, *others_first),
            budget=budget,
            chunk_size=chunk_within(budget, concurrency, chunk_size, longest=loop["prompt_tokens"]),
            max_num_seqs=concurrency,
            loop=ClosedLoop(
                concurrency=concurrency,
                num_requests=num_requests or REQUESTS_PER_PLACE * concurrency,
                **loop,
            ),
            **others,
        )

    def __post_init__(self) -> None:
        try:
            policy_named(self.policy, self.policy_options)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        for threshold in self.thresholds:
            self.loop.at(threshold)  # refuses what is none

    def engine_config(self, policy: str) -> EngineConfig:
        """Options of its engines; UsageError for what is none."""
        return replace(super().engine_config(policy), policy_options=self.policy_options)

    @property
    def policy_label(self) -> str:
        """The policy, and its options as they were typed."""
        return " ".join([self.policy, *(f"{key}={value}" for key, value in self.policy_options)])

    @property
    def name(self) -> str:
        """A folder's name that tells the points of a sweep apart."""
        return f"prompt{self.loop.prompt_tokens}-concurrency{self.loop.concurrency}"

    @property
    def max_model_len(self) -> int:
        return self.loop.prompt_tokens + self.loop.output_tokens
