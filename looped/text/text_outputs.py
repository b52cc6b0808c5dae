"""The text side of requests: what the engine says in token ids, said in text, up to a stop string.

The engine knows no tokenizer. Whoever drives it registers its requests here and passes every
`StepOutput` through; a request whose text reaches a stop string is ended by way of a callable, so
that the engine may as well run in another thread, which ends it some steps later. Samples that are
equal are one for the engine, and become several here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from looped.engine.outputs import Completion, StepOutput, TokenEvent, copies
from looped.errors import UsageError
from looped.sampling_params import SamplingParams
from looped.sched import FinishReason

from .text_stream import TextStream
from .tokenizer import Tokenizer


@dataclass
class Registration:
    """A request that has not ended."""

    streams: dict[int, TextStream | None]
    """Texts of the samples that are computed, by sample index, None without a tokenizer; one leaves
    with its completion."""
    num_copies: int
    """Samples that each of these stands for."""
    stop_names: Mapping[int, str]
    """Of the stop strings, those that are names of special tokens, by token id."""


class TextOutputs:
    """Adds text to the outputs of one engine, and finds stop strings; for use by one thread.

    Only registered requests are seen: tokens and completions of any other are dropped. An id is in
    use until every sample's completion has come by, so that a request never gets what an earlier
    one of its name left behind, however late that comes.

    Args:
        tokenizer: the model's; None adds no text and refuses stop strings.
        abort: ends one sample of a request of the engine. Returns its completion, or nothing if
            `add` will see that later; until then, tokens of the sample are dropped.
        vocab_size: ids that the model can draw; None is all that the tokenizer has.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        abort: Callable[[str, int], Sequence[Completion]],
        *,
        vocab_size: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._abort = abort
        self._vocab_size = vocab_size
        self._requests: dict[str, Registration] = {}

    def register(self, request_id: str, params: SamplingParams) -> SamplingParams:
        """Announces a request, before the engine has it.

        Returns:
            The options that the engine takes: ids for the names of special tokens, no stop strings,
            and one sample where all are equal.

        Raises:
            UsageError: for stop strings that cannot be found, or an id that is in use; nothing has
                changed.
        """
        stop_names = self._stop_names(params)
        if request_id in self._requests:
            raise UsageError(f"request id {request_id!r} is in use")
        num_computed = params.num_computed
        self._requests[request_id] = Registration(
            streams={index: self._new_stream(params) for index in range(num_computed)},
            num_copies=params.n // num_computed,
            stop_names=stop_names,
        )
        if num_computed == params.n and not params.stop:
            return params
        return replace(
            params,
            n=num_computed,
            stop=(),
            include_stop_str_in_output=False,
            stop_token_ids=frozenset(params.stop_token_ids) | stop_names.keys(),
        )

    def withdraw(self, request_id: str) -> None:
        """Takes back a registration of a request that the engine refused; its id is free."""
        self._requests.pop(request_id, None)

    def add(self, output: StepOutput) -> StepOutput:
        """What one engine step brought, with text.

        Tokens after a stop string are missing, and completions of requests that one ended are
        there instead. A completion's text begins with the texts of its events; what it has beyond
        them was held back until the end.
        """
        ended = {(done.request_id, done.sample_index) for done in output.completions}
        tokens: list[TokenEvent] = []
        completions: list[Completion] = []
        for event in output.tokens:
            name = event.request_id, event.sample_index
            request = self._requests.get(event.request_id)
            if request is None or event.sample_index not in request.streams:
                continue
            stream = request.streams[event.sample_index]
            if stream is None:
                tokens += copies(event, request.num_copies)
                continue
            was_stopped = stream.stop_string is not None
            text = stream.add(event.token_id)
            if was_stopped:
                continue
            tokens += copies(replace(event, text=text), request.num_copies)
            if stream.stop_string is not None and name not in ended:
                completions += self._finish_all(self._abort(*name))
        completions += self._finish_all(output.completions)
        return StepOutput(tokens=tokens, completions=completions)

    def finish(self, completion: Completion) -> Completion | None:
        """The completion of a computed sample with text, up to its stop string if there is one;
        None if it is not of a registered request."""
        request = self._requests.get(completion.request_id)
        if request is None or completion.sample_index not in request.streams:
            return None
        stream = request.streams.pop(completion.sample_index)
        if not request.streams:
            self.withdraw(completion.request_id)
        if self._tokenizer is None or stream is None:
            return completion
        reason = completion.stop_reason
        if isinstance(reason, int) and reason in request.stop_names:
            completion = replace(completion, stop_reason=request.stop_names[reason])
        # Stopped before the engine's own end: then how that came about is of no interest.
        was_stopped = stream.stop_string is not None
        stream.finish()
        has_ended_well = completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if stream.stop_string is not None and (was_stopped or has_ended_well):
            completion = _stopped_at(completion, stream.num_tokens, stream.stop_string)
        texts = map(self._tokenizer.token_text, completion.token_ids)
        return replace(completion, text=stream.text, tokens=tuple(texts))

    def _finish_all(self, completions: Sequence[Completion]) -> list[Completion]:
        """Completions of computed samples with text, and those of all that they stand for."""
        finished: list[Completion] = []
        for completion in completions:
            request = self._requests.get(completion.request_id)
            done = self.finish(completion)
            if request is not None and done is not None:
                finished += copies(done, request.num_copies)
        return finished

    def _new_stream(self, params: SamplingParams) -> TextStream | None:
        if self._tokenizer is None:
            return None
        return TextStream(
            self._tokenizer,
            params.stop,
            include_stop_str_in_output=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        )

    def _stop_names(self, params: SamplingParams) -> dict[int, str]:
        """Stop strings that are the whole name of a special token, by the id that they mean.

        They stay stop strings as well: other tokens may spell the same text. An id that the model
        does not know is left out, since it is never drawn.

        Raises:
            UsageError: there is no tokenizer.
        """
        if not params.stop:
            return {}
        if self._tokenizer is None:
            raise UsageError(
                f"stop needs a tokenizer, and this model has no tokenizer.json; use "
                f"stop_token_ids, or leave it out; got {params.stop!r}"
            )
        special = self._tokenizer.special_token_ids
        names = {special[text]: text for text in params.stop if text in special}
        limit = self._vocab_size
        return {index: text for index, text in names.items() if limit is None or index < limit}


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
