"""`POST /v1/chat/completions`: a conversation in the checkpoint's template, and its next turn."""

from typing import Any, cast

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from looped.engine.outputs import Completion, TokenEvent
from looped.sampling_params import MAX_LOGPROBS

from ..errors import ApiError
from ..generation import Output
from .backend import Backend
from .exchange import ALL_THE_ROOM, Exchange
from .logprobs import chat_logprobs
from .responses import (
    ERRORS,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    Usage,
)
from .schema import ChatRequest


def make_router(backend: Backend) -> APIRouter:
    """The route, for one served model."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=ChatResponse, responses=ERRORS)
    async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
        """Answer a conversation."""
        return await ChatExchange(backend, body).respond(request)

    return router


class ChatExchange(Exchange):
    """One request for a chat completion.

    Raises:
        ApiError: a field is out of range.
    """

    id_prefix = "chatcmpl"
    prompt_field = "messages"
    num_prompts = 1
    default_max_tokens = None

    def __init__(self, backend: Backend, body: ChatRequest) -> None:
        super().__init__(backend, body)
        if not body.messages:
            raise ApiError(400, "messages must hold at least one message, got []", param="messages")
        limits = body.max_tokens, body.max_completion_tokens
        if None not in limits and limits[0] != limits[1]:
            raise ApiError(
                400,
                "max_completion_tokens and max_tokens mean the same; give one of them, got "
                f"{limits[1]} and {limits[0]}",
                param="max_completion_tokens",
            )
        self._messages = body.messages
        self._has_logprobs = bool(body.logprobs)
        max_tokens = (
            body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        )
        if max_tokens == ALL_THE_ROOM:
            max_tokens = None
        if max_tokens is not None and max_tokens < 1:
            name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
            raise ApiError(400, f"{name} must be at least 1, got {max_tokens}", param=name)
        params = backend.params(body, max_tokens=max_tokens, logprobs=checked_top_logprobs(body))
        self.params = backend.chat_params(params)
        self._num_sent: dict[int, int] = {}

    async def prepare(self) -> list[tuple[int, ...]]:
        prompt = await self.backend.encode_chat(self._messages, self.prompt_field)
        self.backend.check_prompts([prompt], self.prompt_field, num_tokens=1)
        return [prompt]

    def choice(self, index: int, completion: Completion) -> BaseModel:
        assert completion.text is not None
        logprobs = self._logprobs(
            completion.token_ids, completion.logprobs, completion.top_logprobs or ()
        )
        return ChatChoice(
            index=index,
            message=ChatMessage(role="assistant", content=completion.text),
            logprobs=logprobs,
            **self.endings(completion, completion.exit_depths),
        )

    def choices_of(self, index: int, output: Output) -> list[BaseModel]:
        is_first = index not in self._num_sent
        num_sent = self._num_sent.setdefault(index, 0)
        assert output.text is not None
        if isinstance(output, TokenEvent):
            content = output.text
            self._num_sent[index] += len(content)
            logprobs = self._logprobs(
                (output.token_id,), (output.logprob,), (output.top_logprobs or (),)
            )
            endings = self.endings(None, (output.exit_depth,))
        else:
            content, logprobs = output.text[num_sent:], None
            endings = self.endings(output, ())
        delta = ChatDelta(content=content)
        if is_first:
            delta = ChatDelta(role="assistant", content=content)
        return [ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, **endings)]

    def whole(self, common: dict[str, Any], choices: list[BaseModel], usage: Usage) -> BaseModel:
        return ChatResponse(
            object="chat.completion",
            choices=cast(list[ChatChoice], choices),
            usage=usage,
            **common,
        )

    def chunk(self, common: dict[str, Any], choices: list[BaseModel]) -> BaseModel:
        return ChatChunk(
            object="chat.completion.chunk",
            choices=cast(list[ChatChunkChoice], choices),
            **common,
        )

    def _logprobs(self, *lists: Any) -> ChatLogprobs | None:
        return chat_logprobs(self.backend.tokenizer, *lists) if self._has_logprobs else None


def checked_top_logprobs(body: ChatRequest) -> int | None:
    """How many alternatives the engine is to list; None for no log-probabilities.

    Raises:
        ApiError: out of range, or without `logprobs`.
    """
    if body.top_logprobs is None:
        return 0 if body.logprobs else None
    if not body.logprobs and body.top_logprobs == 0:
        return None
    if not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs, which is off", param="top_logprobs")
    if not 0 <= body.top_logprobs <= MAX_LOGPROBS:
        raise ApiError(
            400,
            f"top_logprobs must be in 0 to {MAX_LOGPROBS}, got {body.top_logprobs}",
            param="top_logprobs",
        )
    return body.top_logprobs
