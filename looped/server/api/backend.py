"""What the routes share: the model's facts, its tokenizer, and a way to the engine."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from looped.engine.generation_request import GenerationRequest
from looped.engine.outputs import TokenEvent
from looped.errors import LoopedError, UsageError
from looped.llm import LLM
from looped.sampling_params import SamplingParams

from ..config import ServerConfig
from ..errors import ApiError, bad_field
from ..generation import Generation, Output
from ..service import Service
from ..text_work import TextWork
from .foreign_fields import FieldCheck
from .responses import PromptTokensDetails, Usage
from .sampling import to_params
from .schema import Body, GenerationFields, Message, TokenizeRequest

T = TypeVar("T")


class Backend:
    """One served model.

    Args:
        llm: the model; it needs a tokenizer.
        config: the server's options.
        service: the way to its engine.

    Raises:
        UsageError: the model has no tokenizer, or the engine an exit mode that needs a trace.
    """

    def __init__(self, llm: LLM, config: ServerConfig, service: Service) -> None:
        self.config = config
        self.service = service
        self.model_name = config.served_model_name or llm.model
        self.created = int(time.time())
        self.num_loops = llm.engine.model_config.num_loops
        self.vocab_size = llm.engine.model_config.vocab_size
        scheduler = llm.engine.scheduler_config
        self.max_num_seqs = scheduler.max_num_seqs
        self.max_model_len = scheduler.max_model_len
        self._scheduler = scheduler
        self._longest_reason = f"max_model_len is {scheduler.max_model_len}"
        self._pool_reason = f"the KV pool holds {scheduler.pool_positions} positions of a request"
        self._has_priorities = scheduler.scheduling_policy == "priority"
        self._llm = llm
        self.tokenizer = service.tokenizer
        self.text_work = TextWork(
            most_short_jobs=config.max_concurrent_requests, seconds=config.request_timeout
        )
        self._field_check = FieldCheck(is_strict=config.strict_fields)
        self._most_characters = self.tokenizer.most_characters_per_token

    def check_model(self, name: str | None) -> None:
        """ApiError (404) unless the name is the served model's, or nothing."""
        if name and name != self.model_name:
            raise ApiError(
                404,
                f"this server's model is {self.model_name!a}, got {name[:200]!a}",
                param="model",
                code="model_not_found",
            )

    def check_body(self, body: Body) -> None:
        """ApiError for another model's name, and for fields that are not served."""
        self.check_model(body.model)
        self._field_check.check(body)
        if isinstance(body, GenerationFields) and body.stream_options is not None:
            self._field_check.check(body.stream_options, prefix="stream_options.")
        if not isinstance(body, GenerationFields | TokenizeRequest):
            return
        if body.add_special_tokens and self.tokenizer.has_added_tokens:
            raise ApiError(
                400,
                "add_special_tokens: this server never adds the tokens that this checkpoint has "
                "for it: leave it out, or give false, and put their names into the text; got true",
                param="add_special_tokens",
            )

    def params(self, body: GenerationFields, **chosen: Any) -> SamplingParams:
        """The engine's options; errors as of `to_params`."""
        return to_params(
            body,
            has_priorities=self._has_priorities,
            has_exit_modes=self.config.allow_exit_mode,
            **chosen,
        )

    def chat_params(self, params: SamplingParams) -> SamplingParams:
        """Options that end at the chat template's end of a turn, too."""
        request = GenerationRequest(prompt_token_ids=(), params=params)
        return self._llm.with_chat_stop(request).params

    def check_ids(self, token_ids: Sequence[int], field: str) -> None:
        """ApiError unless all token ids are in the vocabulary."""
        last = self.vocab_size - 1
        wrong = next((token_id for token_id in token_ids if not 0 <= token_id <= last), None)
        if wrong is not None:
            # A text gives such an id where the tokenizer has a token that the model has not.
            is_named = last < wrong < self.tokenizer.vocab_size
            name = self.tokenizer.token_text(wrong)[:50] if is_named else ""
            named = f", which only the tokenizer knows ({name!a})" if name else ""
            raise ApiError(
                400, f"{field} must hold token ids in 0 to {last}, got {wrong}{named}", param=field
            )

    def check_prompts(
        self, prompts: Sequence[Sequence[int]], field: str, *, num_tokens: int
    ) -> None:
        """ApiError unless all prompts are of this model's tokens and leave room for output.

        Args:
            prompts: token ids.
            field: the field that they come from.
            num_tokens: fewest tokens to follow: 1, or 0 where prompts are only scored.
        """
        longest = max(map(len, prompts))
        limit, reason = self._prompt_limit(num_tokens)
        if longest > limit:
            raise too_long(field, limit, reason, str(longest))
        for prompt in prompts:
            self.check_ids(prompt, field)

    def check_texts(self, texts: Sequence[str], field: str, *, num_tokens: int) -> None:
        """ApiError for a text that is too long for any tokenisation: none is encoded in vain.

        Args:
            texts: what is to be encoded.
            field: the field that they come from.
            num_tokens: as of `check_prompts`.
        """
        if self._most_characters is None:
            return
        limit, reason = self._prompt_limit(num_tokens)
        fewest = -(-max(map(len, texts), default=0) // self._most_characters)
        if fewest > limit:
            raise too_long(field, limit, reason, f"at least {fewest}")

    def _prompt_limit(self, num_tokens: int) -> tuple[int, str]:
        """The most tokens of a prompt that so many follow, and what says so."""
        limits = [
            (self.max_model_len - num_tokens, self._longest_reason),
            (self._scheduler.pool_positions, self._pool_reason),
        ]
        if self.config.max_prompt_tokens is not None:
            limits.append((self.config.max_prompt_tokens, "--max-prompt-tokens"))
        return min(limits, key=lambda limit: limit[0])

    def now(self) -> int:
        """Seconds since 1970, for `created`."""
        return int(time.time())

    async def encode(
        self, texts: Sequence[str], field: str, *, num_tokens: int
    ) -> list[tuple[int, ...]]:
        """Token ids of prompts as they are, in a helper thread; arguments of `check_texts`.

        Raises:
            ApiError: one is too long, or too much is being encoded.
        """
        if not texts:
            return []
        self.check_texts(texts, field, num_tokens=num_tokens)
        return await self.text_work.run(
            sum(map(len, texts)), lambda: [tuple(self.tokenizer.encode(text)) for text in texts]
        )

    async def with_chat_text(self, messages: Sequence[Message], work: Callable[[str], T]) -> T:
        """Does something, in a helper thread, with a conversation in the checkpoint's template.

        Raises:
            ApiError: there is no template, or it refuses the messages.
        """
        turns = [message.for_template() for message in messages]

        def job() -> T:
            try:
                text = self.tokenizer.render_chat(turns)
            except LoopedError as error:
                raise ApiError(400, str(error), param="messages") from None
            return work(text)

        return await self.text_work.run(sum(sum(map(len, turn.values())) for turn in turns), job)

    async def encode_chat(self, messages: Sequence[Message], field: str) -> tuple[int, ...]:
        """Token ids of a conversation that one token or more follows; errors as of `encode`."""

        def encode(text: str) -> tuple[int, ...]:
            self.check_texts([text], field, num_tokens=1)
            return tuple(self.tokenizer.encode(text))

        return await self.with_chat_text(messages, encode)

    def limited(
        self,
        params: SamplingParams,
        num_prompt_tokens: int,
        *,
        default: int | None,
        fields: Mapping[str, str],
    ) -> SamplingParams:
        """The options with a max_tokens, if that was left out: the default, or what has room.

        Args:
            params: options of the request.
            num_prompt_tokens: of a prompt that is not too long.
            default: None is all the room.
            fields: the body's, by the engine's names.

        Raises:
            ApiError: there is no room for the max_tokens, or the min_tokens, that was asked for.
        """
        room = self._scheduler.room_after(num_prompt_tokens)
        if params.max_tokens is not None and params.max_tokens > room:
            is_pool_short = self._scheduler.room_after(0) < self.max_model_len
            reason = self._pool_reason if is_pool_short else self._longest_reason
            raise ApiError(
                400,
                f"{fields['max_tokens']} must be at most {room}, the room that a prompt of "
                f"{num_prompt_tokens} tokens leaves ({reason}), got {params.max_tokens}",
                param=fields["max_tokens"],
                code="context_length_exceeded",
            )
        most = room if default is None else min(default, room)
        if params.max_tokens is None and params.min_tokens > most:
            raise ApiError(
                400,
                f"min_tokens must be at most {most}, all that follow a prompt of "
                f"{num_prompt_tokens} tokens without max_tokens, got {params.min_tokens}",
                param="min_tokens",
            )
        return params.limited(room, default=most)

    def open(self, prefix: str, *, num_prompts: int, num_samples: int) -> Generation:
        """Takes on a request; errors as of `Service.open`."""
        name = f"{prefix}-{uuid4().hex}"
        return self.service.open(name, num_prompts=num_prompts, num_samples=num_samples)

    async def submit(
        self,
        generation: Generation,
        prompts: Sequence[tuple[int, ...]],
        params: Sequence[SamplingParams],
        *,
        prompt_field: str,
        fields: Mapping[str, str],
    ) -> None:
        """Gives an open request to the engine.

        Args:
            generation: the request.
            prompts: token ids.
            params: options of each.
            prompt_field: the field that the prompts come from.
            fields: the body's, by the engine's names.

        Raises:
            ApiError: the engine refuses it, or is lost.
        """
        try:
            await self.service.submit(generation, prompts, params)
        except UsageError as error:
            raise bad_field(str(error), fields, default=prompt_field) from None
        except LoopedError as error:
            raise ApiError(503, str(error)) from None


def too_long(field: str, limit: int, reason: str, got: str) -> ApiError:
    """A prompt has more tokens than it may."""
    return ApiError(
        400,
        f"{field} must have at most {limit} tokens ({reason}), got {got}",
        param=field,
        code="context_length_exceeded",
    )


class UsageCounter:
    """What a request has taken so far.

    Args:
        prompts: its prompts; each counts once, however many samples it has.
        num_loops: P, which every prompt token runs.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], num_loops: int) -> None:
        self._num_prompt_tokens = sum(map(len, prompts))
        self._num_loops = num_loops
        self._num_cached = 0
        self._num_tokens = 0
        self._token_loops = 0

    def add(self, output: Output) -> None:
        """The next token or completion of any of its samples."""
        if isinstance(output, TokenEvent):
            self._num_tokens += 1
            self._token_loops += output.exit_depth
        elif output.sample_index == 0:
            self._num_cached += output.num_cached_tokens

    @property
    def usage(self) -> Usage:
        """The totals."""
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=self._num_tokens,
            total_tokens=self._num_prompt_tokens + self._num_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self._num_cached),
            prompt_loops=self._num_loops * self._num_prompt_tokens,
            completion_loops=self._token_loops,
        )
