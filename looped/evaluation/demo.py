"""The demo's held-out problems, answered greedily under every policy, depth and exit threshold.

Policies are compared answer by answer. Accuracy by depth comes from the model loaded with 1, 2, …
P loops, prompts included: with a bound on loops alone, prompts and first tokens would still run all
of them. Thresholds say what adaptive exits save, and what they cost.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from looped.convert import resolve_model_folder
from looped.demo.answers import MAX_TOKENS, Answer, answers
from looped.demo.examples import demo_source
from looped.demo.problems import Problem
from looped.engine.options import EngineConfig
from looped.errors import LoopedError, UsageError
from looped.llm import LLM
from looped.measure.divergence import first_divergence
from looped.models import read_config
from looped.sched import ExitMode, ExitOptions
from looped.training.sources import check_fits

from .accuracy import Accuracy
from .agreement import Agreement, compare_policies
from .loop_use import FULL_DEPTH, LoopUse, exits_in_words

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
POLICIES = ("mixed", "separate", "atomic")
THRESHOLDS = (0.98, 0.95, 0.9)
"""The first is what the demo model's card and examples recommend."""
MIN_LOOPS = 1
"""Its gate has learnt when one loop is enough."""
LONGEST_PROMPT = 112
"""Tokens of a problem at most, in the demo's tokenizer."""
# Few rungs to compile, and no prefix cache: every run is to process its prompts itself.
ENGINE = EngineConfig(
    max_num_seqs=16,
    max_num_batched_tokens=64,
    prefill_chunk_size=32,
    max_model_len=LONGEST_PROMPT + MAX_TOKENS,
    prefix_caching=False,
)


@dataclass(frozen=True, kw_only=True)
class AnswerSummary:
    """All problems under one P and one threshold."""

    num_loops: int
    """P that the model was loaded with."""
    threshold: float
    """1 never leaves early."""
    accuracy: Accuracy
    accuracy_by_difficulty: dict[int, Accuracy]
    loops: LoopUse
    loops_by_difficulty: dict[int, LoopUse]

    def to_json(self) -> dict[str, Any]:
        return {
            "num_loops": self.num_loops,
            "threshold": self.threshold,
            "accuracy": self.accuracy.to_json(),
            "accuracy_by_difficulty": {
                steps: part.to_json() for steps, part in self.accuracy_by_difficulty.items()
            },
            "loops": self.loops.to_json(),
            "loops_by_difficulty": {
                steps: part.to_json() for steps, part in self.loops_by_difficulty.items()
            },
        }


@dataclass(frozen=True, kw_only=True)
class DemoEvaluation:
    """Everything that the held-out problems say about a model."""

    description: dict[str, Any]
    dtype: str
    """Type that the model ran in."""
    num_problems: int
    agreements: list[Agreement]
    """Of the policies, by when tokens could leave."""
    depths: list[AnswerSummary]
    """The model loaded with 1, 2, … P loops, all of them run."""
    thresholds: list[AnswerSummary]
    """The model with P loops, in the order of the thresholds."""

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            **self.description,
            "dtype": self.dtype,
            "num_problems": self.num_problems,
            "agreements": [agreement.to_json() for agreement in self.agreements],
            "depths": [summary.to_json() for summary in self.depths],
            "thresholds": [summary.to_json() for summary in self.thresholds],
        }

    def check_accuracy(self, least_percent: float) -> None:
        """LoopedError if fewer problems are right with every loop at full depth."""
        accuracy = self.depths[-1].accuracy
        if 100 * accuracy.num_right < least_percent * accuracy.num_problems:
            raise LoopedError(
                f"{accuracy.num_right} of {accuracy.num_problems} answers are right with every "
                f"loop, {100 * accuracy.share:.1f} %; at least {least_percent:g} % were asked for"
            )

    def check_agreement(self) -> None:
        """LoopedError if policies part in float32; in bfloat16 near ties may go either way."""
        for agreement in self.agreements:
            if self.dtype == "float32" and not agreement.is_full:
                raise LoopedError(
                    f"policies differ in {agreement.num_problems - agreement.num_identical} of "
                    f"{agreement.num_problems} answers ({agreement.exits}); the first: "
                    f"{agreement.divergences[0]}"
                )


def evaluate_demo(
    model: str,
    problems: Sequence[Problem],
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    exit_mode: ExitMode | None = None,
    min_loops: int | None = MIN_LOOPS,
    dtype: str | None = "float32",
    config: EngineConfig = ENGINE,
    description: Mapping[str, Any] | None = None,
) -> DemoEvaluation:
    """Answers the problems under every policy at full depth and at the first threshold, with the
    model loaded at every smaller number of loops, and at every threshold.

    Args:
        model: converted or Hugging Face folder, or a hub id, of a model of the demo's task.
        problems: held-out ones; each run answers all of them together.
        thresholds: of adaptive exits; the first is the one at which policies are compared, too.
        exit_mode: how a token is found ready to leave; None takes the engine's default.
        min_loops: fewest loops of a decode token; None takes the engine's default.
        dtype: to run in; in float32 all policies have to agree. None takes the checkpoint's.
        config: sizes of the engines, which compile their steps once for each P.
        description: machine, date and command, for the record.

    Raises:
        LoopedError: no sound model of this task, exits that it cannot serve, or a launch that
            failed.
    """
    if exit_mode is ExitMode.TRACE:
        raise UsageError("exit mode trace replays exits, and there are none here; choose another")
    if FULL_DEPTH in thresholds:
        raise UsageError(
            f"threshold {FULL_DEPTH:g} is every loop, which is measured in any case; leave it out"
        )
    folder = resolve_model_folder(model)
    check_fits(
        demo_source(),
        folder,
        read_config(folder / "config.json"),
        advice="take a model that was trained on this task: looped train pretrain --task demo",
    )
    reference, *others = POLICIES
    adaptive = replace(config, exit_mode=exit_mode, min_loops=min_loops, policy=reference)
    llm = LLM(str(folder), dtype=dtype, config=adaptive)
    compared = [FULL_DEPTH, *thresholds[:1]]
    runs = {reference: _runs(llm, problems, [FULL_DEPTH, *thresholds], reference)}
    for policy in others:
        runs[policy] = _runs(llm.with_options(policy=policy), problems, compared, policy)
    agreements = [
        compare_policies(
            exits_in_words(threshold),
            {
                policy: [answer.completion for answer in answered[threshold]]
                for policy, answered in runs.items()
            },
            partial(first_divergence, llm.engine.loaded.model),
        )
        for threshold in compared
    ]
    num_loops = llm.engine.model_config.num_loops
    depths = []
    for shallower in range(1, num_loops):
        loaded = LLM(str(folder), dtype=dtype, num_loops=shallower, config=config)
        answered = _runs(loaded, problems, [FULL_DEPTH], f"P = {shallower}")
        depths.append(summarise(answered[FULL_DEPTH], shallower, FULL_DEPTH))
    summaries = {
        threshold: summarise(answered, num_loops, threshold)
        for threshold, answered in runs[reference].items()
    }
    return DemoEvaluation(
        description=dict(description or {}),
        dtype=llm.engine.loaded.dtype,
        num_problems=len(problems),
        agreements=agreements,
        depths=[*depths, summaries[FULL_DEPTH]],
        thresholds=[summaries[threshold] for threshold in thresholds],
    )


def summarise(answered: Sequence[Answer], num_loops: int, threshold: float) -> AnswerSummary:
    """What answers come to, overall and by difficulty."""
    by_difficulty: dict[int, list[Answer]] = defaultdict(list)
    for answer in sorted(answered, key=lambda answer: answer.problem.difficulty):
        by_difficulty[answer.problem.difficulty].append(answer)
    return AnswerSummary(
        num_loops=num_loops,
        threshold=threshold,
        accuracy=_accuracy(answered),
        accuracy_by_difficulty={steps: _accuracy(part) for steps, part in by_difficulty.items()},
        loops=_loops(answered, num_loops),
        loops_by_difficulty={
            steps: _loops(part, num_loops) for steps, part in by_difficulty.items()
        },
    )


def _runs(
    llm: LLM, problems: Sequence[Problem], thresholds: Sequence[float], name: str
) -> dict[float, list[Answer]]:
    """Answers of all problems at each threshold."""
    runs = {}
    for threshold in thresholds:
        logger.info("%s, %s: %d problems", name, exits_in_words(threshold), len(problems))
        runs[threshold] = answers(llm, problems, ExitOptions(threshold=threshold))
        failed = [answer for answer in runs[threshold] if answer.completion.error is not None]
        if failed:
            raise LoopedError(
                f"{name}, {exits_in_words(threshold)}: {len(failed)} of {len(problems)} answers "
                f"failed, the first: {failed[0].completion.error}"
            )
    return runs


def _accuracy(answered: Sequence[Answer]) -> Accuracy:
    return Accuracy.of(answer.is_right for answer in answered)


def _loops(answered: Sequence[Answer], num_loops: int) -> LoopUse:
    return LoopUse.of((answer.completion for answer in answered), num_loops)
