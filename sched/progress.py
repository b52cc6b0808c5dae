"""What a launch means for its requests: what is certain when it is handed out, the rest when its
record is applied. One for every policy.

Items are dispatched on what the launch brings back and on their own kind, never on a stage. What a
launch brings for a request that has ended meanwhile is dropped, and nothing of it is published.
"""

from __future__ import annotations

from .choice.offer import num_targets
from .errors import InterfaceError
from .items import Batch, ItemKind, PromptItem, ScheduledItem
from .memory.resources import Resources
from .request import FinishReason, PromptScoring, Request, Stage
from .results import (
    HeadResult,
    LaunchResult,
    PromptScores,
    RowStatus,
    ScoreResult,
    StepUpdate,
    TokenOutput,
)


class Progress:
    """Moves active requests from stage to stage, and ends them."""

    def __init__(self, num_planes: int, resources: Resources) -> None:
        self._num_planes = num_planes
        self._resources = resources

    def dispatched(self, batch: Batch) -> None:
        """Account for what is certain of a launch: prompt items advance, and rows ride."""
        for item in batch.items:
            request = item.request
            if item.kind is ItemKind.DECODE:
                request.launched_row()
                continue
            assert item.prompt_item is not None
            self._advance_prompt(batch, request, item.prompt_item)
            if item.passes_to_head == batch.num_passes:
                request.launched_row()

    def apply(self, batch: Batch, result: LaunchResult) -> StepUpdate:
        """Consume the result of a launch.

        Raises:
            InterfaceError: the result does not fit the batch; nothing has changed.
        """
        self._check(batch, result)
        update = StepUpdate()
        if result.score is not None:
            self._apply_score(batch.items[0], result.score, update)
        else:
            self._apply_passes(batch, update)
        if result.head is not None:
            self._apply_rows(batch, result.head, update)
        return update

    def fail(self, batch: Batch, message: str) -> list[Request]:
        """End the requests of a batch that could not be run; returns each once."""
        requests = [
            request
            for request in dict.fromkeys(item.request for item in batch.items)
            if not request.is_finished
        ]
        for request in requests:
            self.end(request, FinishReason.ERROR, message)
        return requests

    def end(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End an active request, whatever is under way of it."""
        self._resources.release(request)
        request.stage = Stage.FINISHED
        request.finish_reason = reason
        request.error = error

    def _advance_prompt(self, batch: Batch, request: Request, work: PromptItem) -> None:
        if batch.launch.runs_layers:
            work.depth += batch.num_passes
            work.awaits_score = self._is_scored(request, work)
        else:
            work.awaits_score = False
        if work.depth == self._num_planes and not work.awaits_score:
            self._resources.complete_item(request, work)

    def _is_scored(self, request: Request, work: PromptItem) -> bool:
        is_due = request.scoring is PromptScoring.EVERY_LOOP or (
            request.scoring is PromptScoring.LAST_LOOP and work.depth == self._num_planes
        )
        return is_due and num_targets(request, work) > 0

    def _apply_passes(self, batch: Batch, update: StepUpdate) -> None:
        for item in batch.items:
            request = item.request
            if request.is_finished:
                continue
            if item.kind is ItemKind.PROMPT:
                if item.known_depth + batch.num_passes == self._num_planes:
                    assert item.prompt_item is not None
                    is_scored = request.scoring is not PromptScoring.NONE
                    if not (is_scored and num_targets(request, item.prompt_item)):
                        self._complete_tokens(request, item.prompt_item, update)
            elif not item.passes_to_head:
                request.row_stayed(is_exit_pending=None)

    def _apply_score(self, item: ScheduledItem, result: ScoreResult, update: StepUpdate) -> None:
        request, work = item.request, item.prompt_item
        assert work is not None
        if request.is_finished:
            return
        loop = item.known_depth + 1
        if result.is_finite:
            self._scores_after(request, loop).extend(result)
            if loop == self._num_planes:
                self._complete_tokens(request, work, update)
            return
        first, last = item.first_position + 1, item.first_position + item.count
        self._end_non_finite(request, f"prompt tokens {first} to {last} after loop {loop}", update)

    def _complete_tokens(self, request: Request, work: PromptItem, update: StepUpdate) -> None:
        self._resources.written(request, work.token_end)
        if request.max_tokens == 0 and work.token_end == request.num_prompt_tokens:
            self.end(request, FinishReason.LENGTH)
            update.finished.append(request)

    @staticmethod
    def _scores_after(request: Request, loop: int) -> PromptScores:
        for scores in request.prompt_scores:
            if scores.loop == loop:
                return scores
        request.prompt_scores.append(PromptScores(loop))
        return request.prompt_scores[-1]

    def _end_non_finite(self, request: Request, place: str, update: StepUpdate) -> None:
        self._resources.blocks.withdraw(request)
        self.end(
            request,
            FinishReason.ERROR,
            f"expected finite logits for {place}, got NaN or infinity; "
            "check the checkpoint and the activation dtype",
        )
        update.finished.append(request)

    def _apply_rows(self, batch: Batch, head: HeadResult, update: StepUpdate) -> None:
        for row, item in enumerate(batch.head_items):
            request, status = item.request, head.statuses[row]
            if request.is_finished:
                continue
            if status is not RowStatus.LEFT:
                request.row_stayed(is_exit_pending=status is RowStatus.LEAVES_NEXT)
            elif head.is_finite[row]:
                self._add_token(_token(request, head, row), update)
            else:
                self._end_non_finite(request, f"output token {request.num_outputs}", update)

    def _add_token(self, token: TokenOutput, update: StepUpdate) -> None:
        request = token.request
        request.output_token_ids.append(token.token_id)
        request.logprobs.append(token.logprob)
        request.top_logprobs.append(token.top_logprobs)
        request.exit_depths.append(token.exit_depth)
        update.tokens.append(token)
        if token.token_id in request.stop_token_ids:
            self.end(request, FinishReason.STOP)
        elif len(request.output_token_ids) == request.max_tokens:
            self.end(request, FinishReason.LENGTH)
        else:
            request.row_left()
            return
        update.finished.append(request)

    def _check(self, batch: Batch, result: LaunchResult) -> None:
        """InterfaceError for a result that lacks something, or says what no rule allows."""
        for name, part, is_due in (
            ("head", result.head, bool(batch.head_items)),
            ("score", result.score, batch.launch.brings_scores),
        ):
            if (part is not None) != is_due:
                expected = f"a {name} result" if is_due else f"no {name} result"
                raise InterfaceError(f"expected {expected} of a {batch.launch.name} launch")
        if result.score is not None:
            _check_score(batch.items[0], result.score)
        if result.head is not None:
            _check_lengths(len(batch.head_items), result.head)
            for item, status, loops in zip(
                batch.head_items, result.head.statuses, result.head.loops, strict=True
            ):
                if not item.request.is_finished:
                    _check_row(item.request, status, loops)


def _check_row(request: Request, status: RowStatus, loops: int) -> None:
    outlook, loop = request.known, request.loops_done + 1
    assert outlook is not None
    if status is RowStatus.LEFT:
        is_allowed = outlook.may_leave
    else:
        after = outlook.stayed(is_exit_pending=status is RowStatus.LEAVES_NEXT)
        is_allowed = status is not RowStatus.MASKED and after is not None
    if not is_allowed or loops != loop:
        raise InterfaceError(
            f"output token {request.num_outputs} of request {request.request_id!r}: expected what "
            f"its exit rule allows after loop {loop}, got {status.name} after loop {loops}"
        )


def _token(request: Request, head: HeadResult, row: int) -> TokenOutput:
    return TokenOutput(
        request,
        request.num_outputs,
        head.token_ids[row],
        head.logprobs[row],
        head.loops[row],
        None if head.top_logprobs is None else head.top_logprobs[row],
        None if head.gates is None or not request.num_outputs else head.gates[row],
    )


def _check_lengths(count: int, head: HeadResult) -> None:
    lengths = [
        len(values)
        for values in (
            head.statuses,
            head.loops,
            head.token_ids,
            head.logprobs,
            head.is_finite,
            head.top_logprobs,
            head.gates,
        )
        if values is not None
    ]
    if set(lengths) != {count}:
        raise InterfaceError(f"expected {count} entries in a head result, got {lengths}")


def _check_score(item: ScheduledItem, result: ScoreResult) -> None:
    lengths = {len(result.logprobs), len(result.best_token_ids)}
    if result.top_logprobs is not None:
        lengths.add(len(result.top_logprobs))
    if lengths != {item.count}:
        raise InterfaceError(f"expected {item.count} entries in a score result, got {lengths}")
