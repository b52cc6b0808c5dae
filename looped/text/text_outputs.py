"""The text side of requests: what the engine says in token ids, said in text, up to a stop string.

The engine knows no tokenizer. Whoever drives it registers its requests here and passes every
`StepOutput` through; a request whose text reaches a stop string is ended by way of a callable, so
that the engine may as well run in another thread, which ends it some steps later.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from looped.engine.outputs import Completion, StepOutput, TokenEvent
from looped.errors import UsageError
from looped.sampling_params import SamplingParams
from looped.sched import FinishReason

from .text_stream import TextStream
from .tokenizer import Tokenizer


class TextOutputs:
    """Adds text to the outputs of one engine, and finds stop strings; for use by one thread.

    Only registered requests are seen: tokens and completions of any other are dropped. An id is in
    use until every sample's completion has come by, so that a request never gets what an earlier
    one of its name left behind, however late that comes.

    Args:
        tokenizer: the model's; None adds no text and refuses stop strings.
        abort: ends one sample of a request of the engine. Returns its completion, or nothing if
            `add` will see that later; until then, tokens of the sample are dropped.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, abort: Callable[[str, int], Sequence[Completion]]
    ) -> None:
        self._tokenizer = tokenizer
        self._abort = abort
        self._streams: dict[str, dict[int, TextStream | None]] = {}
        """By request id and sample index, None without a tokenizer; a sample leaves with its
        completion."""

    def register(self, request_id: str, params: SamplingParams) -> SamplingParams:
        """Announces a request, before the engine has it.

        Returns:
            The options that the engine takes: those without stop strings.

        Raises:
            UsageError: for stop strings that cannot be found, or an id that is in use; nothing has
                changed.
        """
        self.check_stop(params.stop)
        if request_id in self._streams:
            raise UsageError(f"request id {request_id!r} is in use")
        self._streams[request_id] = {
            sample_index: self._new_stream(params) for sample_index in range(params.n)
        }
        return params.without_stop

    def withdraw(self, request_id: str) -> None:
        """Takes back a registration of a request that the engine refused; its id is free."""
        self._streams.pop(request_id, None)

    def add(self, output: StepOutput) -> StepOutput:
        """What one engine step brought, with text.

        Tokens after a stop string are missing, and completions of requests that one ended are
        there instead. A completion's text begins with the texts of its events; what it has beyond
        them was held back until the end.
        """
        ended = {(done.request_id, done.sample_index) for done in output.completions}
        tokens: list[TokenEvent] = []
        completions: list[Completion | None] = []
        for event in output.tokens:
            name = event.request_id, event.sample_index
            streams = self._streams.get(event.request_id, {})
            if event.sample_index not in streams:
                continue
            stream = streams[event.sample_index]
            if stream is None:
                tokens.append(event)
                continue
            was_stopped = stream.stop_string is not None
            text = stream.add(event.token_id)
            if was_stopped:
                continue
            tokens.append(replace(event, text=text))
            if stream.stop_string is not None and name not in ended:
                completions += map(self.finish, self._abort(*name))
        completions += map(self.finish, output.completions)
        return StepOutput(tokens=tokens, completions=[done for done in completions if done])

    def finish(self, completion: Completion) -> Completion | None:
        """The completion with text, up to its stop string if there is one; None if it is not of a
        registered request."""
        streams = self._streams.get(completion.request_id, {})
        if completion.sample_index not in streams:
            return None
        stream = streams.pop(completion.sample_index)
        if not streams:
            self.withdraw(completion.request_id)
        if self._tokenizer is None or stream is None:
            return completion
        # Stopped before the engine's own end: then how that came about is of no interest.
        was_stopped = stream.stop_string is not None
        stream.finish()
        has_ended_well = completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if stream.stop_string is not None and (was_stopped or has_ended_well):
            completion = _stopped_at(completion, stream.num_tokens, stream.stop_string)
        texts = map(self._tokenizer.token_text, completion.token_ids)
        return replace(completion, text=stream.text, tokens=tuple(texts))

    def _new_stream(self, params: SamplingParams) -> TextStream | None:
        if self._tokenizer is None:
            return None
        return TextStream(
            self._tokenizer,
            params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def check_stop(self, stop: Sequence[str]) -> None:
        """UsageError for stop strings that cannot be found."""
        if not stop:
            return
        if self._tokenizer is None:
            raise UsageError(
                f"stop needs a tokenizer, and this model has no tokenizer.json; use "
                f"stop_token_ids, or leave it out; got {stop!r}"
            )
        special = self._tokenizer.special_token_ids
        for text in stop:
            if text in special:
                raise UsageError(
                    f"stop is looked for in the text, which has no special tokens; for {text!r} "
                    f"use stop_token_ids, with {special[text]}"
                )


def _stopped_at(completion: Completion, num_tokens: int, stop_string: str) -> Completion:
    """The completion as if the engine had ended it after so many tokens."""
    tops = completion.top_logprobs
    return replace(
        completion,
        token_ids=completion.token_ids[:num_tokens],
        exit_depths=completion.exit_depths[:num_tokens],
        logprobs=completion.logprobs[:num_tokens],
        top_logprobs=None if tops is None else tops[:num_tokens],
        finish_reason=FinishReason.STOP,
        stop_reason=stop_string,
        error=None,
    )
