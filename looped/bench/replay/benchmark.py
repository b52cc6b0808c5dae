"""`looped bench replay`: one list of arrivals, played to a server of each policy in turn.

Prompts, lengths and arrival times are the same in every arm, and so is every option but the policy.
Each arm has a server process of its own, which is stopped before the next one starts.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from looped.config import ModelConfig
from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.measure.arrivals import Arrival
from looped.measure.violation import Violation
from looped.sched import policy_named

from ..arms import ARMS
from ..serve.endpoint import Endpoint, measure_load
from ..serve.load_run import LoadRun
from ..serve.load_summary import Judgement, LoadSummary, summarise_run
from ..serve.served_request import ServedRequest
from ..serve.serving_process import engine_options, serving

logger = logging.getLogger(__name__)

HEAD = {"benchmark": "replay", "schema": 1}
"""What its files are."""
REPLAYED = ("A0", "A1", "A2")
"""Arms, in the order in which they are played."""
COMPARED = (("A2", "A0"), ("A2", "A1"), ("A1", "A0"))
"""Pairs of which ratios are shown: the first over the second."""
NUM_PROFILED = 16
"""Requests of the list that are played for a trace."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What is replayed, to what."""

    model: Path
    dtype: str | None
    """None: the checkpoint's."""
    engine: EngineConfig
    """Without a policy."""
    arrivals: Sequence[Arrival]
    rate: float
    """Of the arrivals, for the record."""
    timeout: float
    """Seconds that a request may take."""
    start_timeout: float
    """Seconds that a server may take to be ready."""

    def __post_init__(self) -> None:
        engine = self.engine
        if (
            engine.policy is not None
            or engine.policy_options
            or engine.mixed_prefill_decode is not None
        ):
            raise UsageError(
                "a replay plays every policy: leave out --policy, --policy-option and "
                "--mixed-prefill-decode"
            )

    def engine_of(self, arm: str) -> EngineConfig:
        """The options of one arm: those that its policy does not know are left out."""
        policy = policy_named(ARMS[arm].policy)
        known = replace(self.engine, policy=policy.name)
        if not policy.uses_prefill_interval:
            known = replace(known, max_prefill_batches_before_decode=None)
        return known if policy.uses_prompt_shortcut else replace(known, prompt_shortcut=None)

    def check(self, model: ModelConfig) -> None:
        """Refuses what one of the arms cannot work with, before any of them is played.

        Raises:
            UsageError: with the numbers.
        """
        longest = max(len(a.prompt.token_ids) + a.prompt.output_tokens for a in self.arrivals)
        for arm in REPLAYED:
            config = self.engine_of(arm)
            try:
                config.scheduler_config(
                    num_planes=model.num_loops,
                    vocab_size=model.vocab_size,
                    num_blocks=config.num_blocks or model.num_loops + config.kv_watermark,
                    max_model_len=config.max_model_len or longest,
                    cache_salt="",
                )
            except UsageError as error:
                raise UsageError(f"{arm}: {error}") from None
        limit = self.engine.max_model_len
        if limit is not None and longest > limit:
            raise UsageError(
                f"the longest request has {longest} tokens, and --max-model-len is {limit}"
            )

    def options_of(self, arm: str) -> list[str]:
        """Options of the arm's `looped serve`. It accepts any number of requests."""
        server = {
            "--max-concurrent-requests": len(self.arrivals) + 1,
            "--request-timeout": self.timeout,
            "--dtype": self.dtype,
        }
        return [
            *engine_options(self.engine_of(arm)),
            *(str(w) for pair in server.items() if pair[1] is not None for w in pair),
        ]


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """All arms, judged; or those that are over."""

    arms: dict[str, LoadSummary]
    violations: list[Violation]
    judgement: Judgement

    @property
    def is_valid(self) -> bool:
        return not self.violations

    @property
    def is_complete(self) -> bool:
        return len(self.arms) == len(REPLAYED)

    def to_json(self, description: dict[str, Any]) -> dict[str, Any]:
        """The whole replay, for machines."""
        return {
            **description,
            "is_complete": self.is_complete,
            "is_valid": self.is_valid,
            "violations": [str(violation) for violation in self.violations],
            "judgement": asdict(self.judgement),
            "arms": {name: summary.to_json() for name, summary in self.arms.items()},
        }


def play_arms(plan: Replay, folder: Path) -> Iterator[tuple[str, LoadRun, int]]:
    """Every arm, its run and what its server exited with, when that is over.

    Args:
        plan: what is played.
        folder: for each request's times and what the servers say.

    Raises:
        LoopedError: a server does not start, does not answer, or does not stop.
    """
    for arm in REPLAYED:
        log = folder / f"{arm}-server.log"
        logger.info("%s: starting a server, policy %s", arm, ARMS[arm].policy)
        options = plan.options_of(arm)
        with serving(plan.model, options, log=log, start_timeout=plan.start_timeout) as server:
            run = measure_load(
                Endpoint(url=server.url, timeout=plan.timeout),
                list(plan.arrivals),
                name=arm,
                rate=plan.rate,
                log=folder / f"{arm}.jsonl",
            )
            exit_code = server.stop()
        yield arm, run, exit_code


def profile_arms(plan: Replay, folder: Path, profile_folder: Path) -> None:
    """A trace of a server of every arm, under the first requests of the list; measures nothing.

    Args:
        plan: what is played.
        folder: for what the servers say.
        profile_folder: for a folder of each arm.

    Raises:
        LoopedError: a server does not start, does not answer, or does not stop.
    """
    profile_folder.mkdir(parents=True, exist_ok=True)
    for arm in REPLAYED:
        log = folder / f"{arm}-profile-server.log"
        options = [*plan.options_of(arm), "--profile", str(profile_folder / arm)]
        with serving(plan.model, options, log=log, start_timeout=plan.start_timeout) as server:
            measure_load(
                Endpoint(url=server.url, timeout=plan.timeout),
                list(plan.arrivals[:NUM_PROFILED]),
                name=f"{arm}, profile",
                rate=plan.rate,
                log=None,
            )
            server.stop()


def judge_arms(played: dict[str, tuple[LoadRun, int]], judgement: Judgement) -> ReplayResult:
    """Measures arms that were played, and finds every broken rule."""
    runs = {arm: run for arm, (run, _) in played.items()}
    summaries = {arm: summarise_run(run, judgement) for arm, run in runs.items()}
    violations = [broken for summary in summaries.values() for broken in summary.violations]
    for arm, (run, exit_code) in played.items():
        for rule, message in _broken(arm, run, exit_code):
            violations.append(Violation(rule, arm, message))
    violations += [Violation("same_tokens", "all", message) for message in _parted(runs)]
    return ReplayResult(arms=summaries, violations=violations, judgement=judgement)


def _broken(arm: str, run: LoadRun, exit_code: int) -> Iterator[tuple[str, str]]:
    """Rules that an arm has to keep on its own, and what is wrong."""
    failed = [served for served in run.requests if served.failure is not None]
    if failed:
        first = failed[0]
        yield (
            "all_requests_complete",
            f"expected all {len(run.requests)} requests to end well, {len(failed)} did not; "
            f"request {first.index}: {first.failure}: {first.detail}",
        )
    num_mixed = run.counted.get("mixed_launches")
    is_mixing = policy_named(ARMS[arm].policy).is_mixing
    if num_mixed is None:
        yield "launches_are_the_arms", "expected a count of mixed launches in /metrics, got none"
    elif is_mixing and not num_mixed:
        yield (
            "launches_are_the_arms",
            "expected mixed launches, got 0: no prompt came while another request decoded; raise "
            "the rate",
        )
    elif num_mixed and not is_mixing:
        yield "launches_are_the_arms", f"expected no mixed launches, got {num_mixed}"
    if num_compiled := run.counted.get("compilations"):
        yield "no_compilation", f"expected none during the run, got {num_compiled}"
    if exit_code:
        yield "server_ends_well", f"expected exit code 0 after SIGTERM, got {exit_code}"


def _parted(runs: dict[str, LoadRun]) -> Iterator[str]:
    """Requests that are not the same work in all arms."""
    (first, *others) = runs
    for other in others:
        pairs = zip(runs[first].requests, runs[other].requests, strict=True)
        parted = [(a, b) for a, b in pairs if _tokens(a) != _tokens(b)]
        if parted:
            a, b = parted[0]
            yield (
                f"expected the same prompt and output tokens in {first} and {other}, but "
                f"{len(parted)} requests differ: request {a.index} has {_tokens(a)} and "
                f"{_tokens(b)}"
            )


def _tokens(served: ServedRequest) -> tuple[int, int]:
    """Tokens of prompt and output, as the server counts them."""
    usage = served.usage or {}
    return usage.get("prompt_tokens", served.prompt_tokens), served.output_tokens
