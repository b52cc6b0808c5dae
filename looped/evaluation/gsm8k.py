"""GSM8K on a checkpoint: few-shot prompts, answered together, and judged twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

from looped.engine.generation_request import GenerationRequest
from looped.engine.outputs import Completion
from looped.errors import LoopedError, UsageError
from looped.llm import LLM
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions, FinishReason

from .accuracy import Accuracy
from .gsm8k_problems import GradeProblem
from .gsm8k_prompts import STOP, WORKED_EXAMPLES, few_shot_messages, few_shot_prompt
from .loop_use import FULL_DEPTH, LoopUse, exits_in_words
from .number_extraction import flexible_number, strict_number

SCHEMA_VERSION = 1
MAX_TOKENS = 320
"""More than the steps of a problem take."""
NUM_SHOTS = len(WORKED_EXAMPLES)


@dataclass(frozen=True, kw_only=True)
class GradeAnswer:
    """One problem, and what the engine wrote."""

    problem: GradeProblem
    completion: Completion

    @cached_property
    def strict(self) -> Decimal | None:
        """The number of "The answer is N."."""
        return strict_number(self.completion.text or "")

    @cached_property
    def flexible(self) -> Decimal | None:
        """The last number in the text."""
        return flexible_number(self.completion.text or "")

    @property
    def is_right_strictly(self) -> bool:
        return self._is_right(self.strict)

    @property
    def is_right_flexibly(self) -> bool:
        return self._is_right(self.flexible)

    def _is_right(self, number: Decimal | None) -> bool:
        return self.completion.error is None and number == self.problem.number

    def to_json(self) -> dict[str, Any]:
        """The answer as a line of answers.jsonl; numbers as texts, which are exact."""
        done = self.completion
        return {
            "question": self.problem.question,
            "number": str(self.problem.number),
            "strict": None if self.strict is None else str(self.strict),
            "flexible": None if self.flexible is None else str(self.flexible),
            "is_right_strictly": self.is_right_strictly,
            "is_right_flexibly": self.is_right_flexibly,
            "text": done.text,
            "token_ids": list(done.token_ids),
            "exit_depths": list(done.exit_depths),
            "finish_reason": done.finish_reason.value,
            "error": done.error,
        }


@dataclass(frozen=True, kw_only=True)
class GradeEvaluation:
    """Answers of one model under one exit rule."""

    description: dict[str, Any]
    num_loops: int
    """P that the model was loaded with."""
    exit_options: ExitOptions
    """When tokens could leave; what is None was the engine's default."""
    answers: list[GradeAnswer]

    @property
    def exits(self) -> str:
        """When tokens could leave, in words: every part of the rule that was given."""
        options = self.exit_options
        threshold = FULL_DEPTH if options.threshold is None else options.threshold
        parts = [exits_in_words(threshold)]
        if options.mode is not None:
            parts.append(f"mode {options.mode.value}")
        if options.min_loops is not None:
            parts.append(f"min_loops {options.min_loops}")
        if options.max_loops is not None:
            parts.append(f"max_loops {options.max_loops}")
        return ", ".join(parts)

    @property
    def strict(self) -> Accuracy:
        return Accuracy.of(answer.is_right_strictly for answer in self.answers)

    @property
    def flexible(self) -> Accuracy:
        return Accuracy.of(answer.is_right_flexibly for answer in self.answers)

    @property
    def loops(self) -> LoopUse:
        return LoopUse.of((answer.completion for answer in self.answers), self.num_loops)

    @property
    def num_unstated(self) -> int:
        """Answers that never say "The answer is N."."""
        return sum(answer.strict is None for answer in self.answers)

    @property
    def num_cut_off(self) -> int:
        """Answers that ran into max_tokens."""
        return sum(
            answer.completion.finish_reason is FinishReason.LENGTH for answer in self.answers
        )

    @property
    def failed(self) -> list[GradeAnswer]:
        """Answers whose request ended with an error; they count as wrong."""
        return [answer for answer in self.answers if answer.completion.error is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            **self.description,
            "num_loops": self.num_loops,
            "exit_mode": self.exit_options.mode,
            "exit_threshold": self.exit_options.threshold,
            "min_loops": self.exit_options.min_loops,
            "max_loops": self.exit_options.max_loops,
            "strict": self.strict.to_json(),
            "flexible": self.flexible.to_json(),
            "num_unstated": self.num_unstated,
            "num_cut_off": self.num_cut_off,
            "num_failed": len(self.failed),
            "loops": self.loops.to_json(),
        }

    def check_complete(self) -> None:
        """LoopedError if a request failed."""
        if self.failed:
            raise LoopedError(
                f"{len(self.failed)} of {len(self.answers)} requests failed, the first: "
                f"{self.failed[0].completion.error}"
            )


def evaluate_gsm8k(
    llm: LLM,
    problems: Sequence[GradeProblem],
    *,
    num_shots: int = NUM_SHOTS,
    max_tokens: int = MAX_TOKENS,
    is_chat: bool = False,
    description: Mapping[str, Any] | None = None,
) -> GradeEvaluation:
    """Answers all problems greedily and together; exits are the engine's defaults.

    Args:
        llm: the model, with its engine's options.
        problems: what to ask.
        num_shots: worked examples before each question.
        max_tokens: of an answer.
        is_chat: put examples and question into the model's chat template. Benchmarks of a model's
            raw completions leave it out.
        description: machine, date and command, for the record.

    Raises:
        UsageError: options out of range, or a prompt that is too long; then nothing has run.
    """
    check_shots(num_shots)
    requests = [
        request(llm, problem, num_shots=num_shots, max_tokens=max_tokens, is_chat=is_chat)
        for problem in problems
    ]
    completions = llm.generate(
        [request.prompt_token_ids for request in requests],
        [request.params for request in requests],
    )
    return GradeEvaluation(
        description=dict(description or {}),
        num_loops=llm.engine.model_config.num_loops,
        exit_options=llm.engine.config.exit_defaults(llm.engine.model_config),
        answers=[
            GradeAnswer(problem=problem, completion=completion)
            for problem, completion in zip(problems, completions, strict=True)
        ],
    )


def check_shots(num_shots: int) -> None:
    """UsageError for more worked examples than there are."""
    if not 0 <= num_shots <= NUM_SHOTS:
        raise UsageError(f"num_shots must be in 0 to {NUM_SHOTS}, got {num_shots}")


def request(
    llm: LLM, problem: GradeProblem, *, num_shots: int, max_tokens: int, is_chat: bool
) -> GenerationRequest:
    """A problem as it is asked: plain text unless a chat is wanted."""
    params = SamplingParams(max_tokens=max_tokens, stop=STOP)
    if not is_chat:
        prompt = few_shot_prompt(problem.question, num_shots)
        return GenerationRequest(prompt_token_ids=llm.encode(prompt), params=params)
    messages = few_shot_messages(problem.question, num_shots)
    return llm.with_chat_stop(
        GenerationRequest(prompt_token_ids=llm.encode_chat(messages), params=params)
    )
