"""What a finished launch means for its requests: one `apply` for every policy.

Items are dispatched on what the launch brings back and on their own kind, never on a stage. A
request that was aborted while in flight ends here: its results are dropped and nothing of it is
published.
"""

from .choice.offer import num_targets
from .errors import InterfaceError
from .exits import ExitDecision, decide
from .items import Batch, ItemKind, PromptItem, ScheduledItem
from .memory.resources import Resources
from .request import FinishReason, PromptScoring, Request, Stage
from .results import (
    CodaResult,
    LaunchResult,
    PromptScores,
    RecurrentResult,
    ScoreResult,
    StepUpdate,
    TokenOutput,
)


class Progress:
    """Moves active requests from stage to stage, and ends them."""

    def __init__(self, num_planes: int, resources: Resources) -> None:
        self._num_planes = num_planes
        self._resources = resources

    def apply(self, batch: Batch, result: LaunchResult) -> StepUpdate:
        """Consume the result of a launch.

        Raises:
            InterfaceError: the result does not fit the batch; nothing has changed.
        """
        if not isinstance(result, batch.launch.result_type):
            raise _wrong_type(batch, result)
        match result:
            case RecurrentResult():
                return self._apply_passes(batch, result)
            case CodaResult():
                return self._apply_coda(batch, result)
            case ScoreResult():
                return self._apply_score(batch, result)

    def fail(self, batch: Batch, message: str) -> list[Request]:
        """End the requests of a batch that could not be run; returns each once."""
        requests = list(dict.fromkeys(item.request for item in batch.items))
        for request in requests:
            self._land(request)
            self.end(request, FinishReason.ERROR, message)
        return requests

    def end(self, request: Request, reason: FinishReason, error: str | None = None) -> None:
        """End an active request that is not in flight; an abort that waited has precedence."""
        self._resources.release(request)
        request.stage = Stage.FINISHED
        request.finish_reason = FinishReason.ABORT if request.is_aborted else reason
        request.error = None if request.is_aborted else error

    def _apply_passes(self, batch: Batch, result: RecurrentResult) -> StepUpdate:
        signals = self._checked_signals(batch, result)
        update = StepUpdate()
        for index, item in enumerate(batch.items):
            request = item.request
            self._land(request)
            if request.is_aborted:
                self._end_aborted(request, update)
            elif item.kind is ItemKind.PROMPT:
                self._advance_prompt(item, batch.num_passes, update)
            else:
                self._advance_decode(item, signals[index])
        return update

    def _apply_coda(self, batch: Batch, result: CodaResult) -> StepUpdate:
        num_items = len(batch.items)
        lengths = (len(result.token_ids), len(result.logprobs), len(result.is_finite))
        if lengths != (num_items,) * 3:
            raise InterfaceError(f"expected {num_items} entries in a coda result, got {lengths}")
        update = StepUpdate()
        tops = result.top_logprobs if result.top_logprobs is not None else [None] * num_items
        if len(tops) != num_items:
            raise InterfaceError(f"expected {num_items} entries of top_logprobs, got {len(tops)}")
        rows = zip(
            batch.items, result.token_ids, result.logprobs, tops, result.is_finite, strict=True
        )
        for item, token_id, logprob, top_logprobs, is_finite in rows:
            request = item.request
            self._land(request)
            if request.is_aborted:
                self._end_aborted(request, update)
            elif is_finite:
                token = TokenOutput(
                    request, item.output_index, token_id, logprob, item.exit_loop, top_logprobs
                )
                self._add_token(token, update)
            else:
                self._end_non_finite(request, f"output token {item.output_index}", update)
        return update

    def _apply_score(self, batch: Batch, result: ScoreResult) -> StepUpdate:
        (item,) = batch.items
        request, prompt_item = item.request, item.prompt_item
        assert prompt_item is not None
        lengths = {len(result.logprobs), len(result.best_token_ids)}
        if result.top_logprobs is not None:
            lengths.add(len(result.top_logprobs))
        if lengths != {item.count}:
            raise InterfaceError(f"expected {item.count} entries in a score result, got {lengths}")
        update = StepUpdate()
        self._land(request)
        if request.is_aborted:
            self._end_aborted(request, update)
        elif result.is_finite:
            self._scores_after(request, item.depth + 1).extend(result)
            prompt_item.awaits_score = False
            self._complete_item(request, prompt_item, update)
        else:
            first, last = item.first_position + 1, item.first_position + item.count
            place = f"prompt tokens {first} to {last} after loop {item.depth + 1}"
            self._end_non_finite(request, place, update)
        return update

    @staticmethod
    def _scores_after(request: Request, loop: int) -> PromptScores:
        for scores in request.prompt_scores:
            if scores.loop == loop:
                return scores
        request.prompt_scores.append(PromptScores(loop))
        return request.prompt_scores[-1]

    def _land(self, request: Request) -> None:
        request.is_in_flight = False

    def _end_aborted(self, request: Request, update: StepUpdate) -> None:
        if request.stage is Stage.FINISHED:
            return  # with another item of the same launch
        self.end(request, FinishReason.ABORT)
        update.finished.append(request)

    def _end_non_finite(self, request: Request, place: str, update: StepUpdate) -> None:
        self._resources.blocks.withdraw(request)
        self.end(
            request,
            FinishReason.ERROR,
            f"expected finite logits for {place}, got NaN or infinity; "
            "check the checkpoint and the activation dtype",
        )
        update.finished.append(request)

    def _advance_prompt(self, item: ScheduledItem, num_passes: int, update: StepUpdate) -> None:
        request, prompt_item = item.request, item.prompt_item
        assert prompt_item is not None
        prompt_item.embedded = True
        prompt_item.depth += num_passes
        is_scored = request.scoring is PromptScoring.EVERY_LOOP or (
            request.scoring is PromptScoring.LAST_LOOP and prompt_item.depth == self._num_planes
        )
        prompt_item.awaits_score = is_scored and num_targets(request, prompt_item) > 0
        if not prompt_item.awaits_score:
            self._complete_item(request, prompt_item, update)

    def _complete_item(self, request: Request, prompt_item: PromptItem, update: StepUpdate) -> None:
        """Move a request on if its chunk has run every depth, and is scored where it has to be."""
        if prompt_item.depth < self._num_planes:
            return
        self._resources.complete_item(request, prompt_item)
        if request.is_prompt_complete and request.max_tokens == 0:
            self.end(request, FinishReason.LENGTH)
            update.finished.append(request)

    def _advance_decode(self, item: ScheduledItem, signal: float | None) -> None:
        request = item.request
        request.loops_done += 1
        decision = decide(
            request.exit_rule,
            request.loops_done,
            signal,
            request.is_exit_pending,
            item.output_index,
        )
        if decision is ExitDecision.EXIT:
            request.stage = Stage.CODA
        request.is_exit_pending = decision is ExitDecision.EXIT_NEXT

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
            request.stage = Stage.RECURRENT
            request.loops_done = 0
            return
        update.finished.append(request)

    @staticmethod
    def _checked_signals(batch: Batch, result: RecurrentResult) -> list[float | None]:
        """Return a signal, or None, for every item of the batch that can be a decode item."""
        if result.decode_signals is None:
            if batch.is_read:
                raise InterfaceError(
                    "expected decode signals, since a row of the launch is at a deciding loop; "
                    "got none"
                )
            return [None] * batch.num_decode
        if len(result.decode_signals) != batch.num_decode:
            raise InterfaceError(
                f"expected {batch.num_decode} decode signals, one per decode item; "
                f"got {len(result.decode_signals)}"
            )
        return list(result.decode_signals)


def _wrong_type(batch: Batch, result: LaunchResult) -> InterfaceError:
    return InterfaceError(
        f"unexpected {type(result).__name__} for a {batch.launch.name} launch: "
        f"expected {batch.launch.result_type.__name__}"
    )
