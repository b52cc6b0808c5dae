"""The text side of requests: what the engine says in token ids, said in text, up to a stop string.

The engine knows no tokenizer. Whoever drives it registers its requests here and passes every
`StepOutput` through; a request whose text reaches a stop string is ended by way of a callable, so
that the engine may as well run in another thread, which ends it some steps later.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from looped.sched import FinishReason

from .errors import UsageError
from .outputs import Completion, StepOutput, TokenEvent
from .sampling_params import SamplingParams
from .text_stream import TextStream
from .tokenizer import Tokenizer


class TextOutputs:
    """Adds text to the outputs of one engine, and finds stop strings; for use by one thread.

    Args:
        tokenizer: the model's; None leaves outputs as they are and refuses stop strings.
        abort: ends one sample of a request of the engine. Returns its completion, or nothing if
            `add` will see that later; until then, tokens of the sample are dropped.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, abort: Callable[[str, int], Sequence[Completion]]
    ) -> None:
        self._tokenizer = tokenizer
        self._abort = abort
        self._streams: dict[str, dict[int, TextStream]] = {}
        """By request id and sample index; a sample leaves with its completion."""

    def register(self, request_id: str, params: SamplingParams) -> SamplingParams:
        """Announces a request, before any of its tokens.

        Returns:
            The options that the engine takes: those without stop strings.

        Raises:
            UsageError: for stop strings without a tokenizer, or an id that is in use; nothing has
                changed.
        """
        if self._tokenizer is None:
            if params.stop:
                raise UsageError(
                    f"stop needs a tokenizer, and this model has no tokenizer.json; use "
                    f"stop_token_ids, or leave it out; got {params.stop!r}"
                )
            return params
        if request_id in self._streams:
            raise UsageError(f"request id {request_id!r} is in use")
        self._streams[request_id] = {
            sample_index: TextStream(
                self._tokenizer,
                params.stop,
                include_stop_str_in_output=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )
            for sample_index in range(params.n)
        }
        return replace(params, stop=(), include_stop_str_in_output=False)

    def forget(self, request_id: str) -> None:
        """Takes back a registration, of a request that the engine refused or that is of no more
        interest."""
        self._streams.pop(request_id, None)

    def add(self, output: StepOutput) -> StepOutput:
        """What one engine step brought, with text.

        Tokens after a stop string are missing, and completions of requests that one ended are
        there instead. A completion's text begins with the texts of its events; what it has beyond
        them was held back until the end.
        """
        if self._tokenizer is None:
            return output
        ended = {(done.request_id, done.sample_index) for done in output.completions}
        tokens: list[TokenEvent] = []
        completions: list[Completion] = []
        for event in output.tokens:
            stream = self._streams[event.request_id][event.sample_index]
            was_stopped = stream.stop_string is not None
            text = stream.add(event.token_id)
            if was_stopped:
                continue
            tokens.append(replace(event, text=text))
            name = event.request_id, event.sample_index
            if stream.stop_string is not None and name not in ended:
                completions += map(self.finish, self._abort(*name))
        completions += [self.finish(completion) for completion in output.completions]
        return StepOutput(tokens=tokens, completions=completions)

    def finish(self, completion: Completion) -> Completion:
        """The completion with text, up to its stop string if there is one."""
        if self._tokenizer is None:
            return completion
        streams = self._streams[completion.request_id]
        stream = streams.pop(completion.sample_index)
        if not streams:
            del self._streams[completion.request_id]
        # Stopped before the engine's own end: then how that came about is of no interest.
        was_stopped = stream.stop_string is not None
        stream.finish()
        has_ended_well = completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if stream.stop_string is not None and (was_stopped or has_ended_well):
            completion = _stopped_at(completion, stream.num_tokens, stream.stop_string)
        texts = map(self._tokenizer.token_text, completion.token_ids)
        return replace(completion, text=stream.text, tokens=tuple(texts))


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
