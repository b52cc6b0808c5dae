"""What answers say, in OpenAI's words and a few of our own; what is not set is left out."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

FinishReason = Literal["stop", "length"]


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(use_attribute_docstrings=True, protected_namespaces=())


class PromptTokensDetails(Answer):
    cached_tokens: int
    """Prompt tokens that the prefix cache held."""


class Usage(Answer):
    """What a request took."""

    prompt_tokens: int
    """Tokens of all prompts, each once however many samples it has."""
    completion_tokens: int
    """Tokens emitted, up to the one that completed a stop text."""
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    prompt_loops: int
    """**Looped.** Loops of the prompts: P for every token, those that were cached included."""
    completion_loops: int
    """**Looped.** Loops executed for the emitted tokens."""


class CompletionLogprobs(Answer):
    """A list entry for every token, those of an echoed prompt first."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """Null for the first token of a prompt."""
    top_logprobs: list[dict[str, float] | None]
    """The most likely tokens by their text, and the token itself; of two tokens with one text,
    the more likely one."""
    text_offset: list[int]
    """Where each token's text begins in the choice's, in characters."""


class CompletionChoice(Answer):
    """One sample of one prompt."""

    index: int
    """prompt index * n + sample index."""
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    """Null in the chunks of a stream but the last."""
    stop_reason: int | str | None
    """The token id or stop text that ended it."""
    loops: list[int] | None = None
    """**Looped.** With `return_loops`: the loop count of every emitted token."""


class CompletionResponse(Answer):
    """Answer of `POST /v1/completions`, and a chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob]
    """An entry for every emitted token."""


class ChatMessage(Answer):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str


class ChatChoice(Answer):
    """One sample."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    loops: list[int] | None = None
    """**Looped.** With `return_loops`: the loop count of every emitted token."""


class ChatResponse(Answer):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(Answer):
    """What the assistant goes on to say."""

    role: Literal["assistant"] | None = None
    """In the first chunk of a choice."""
    content: str


class ChatChunkChoice(Answer):
    """What one token adds to one sample."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    loops: list[int] | None = None


class ChatChunk(Answer):
    """A chunk of a chat completion's stream."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    num_loops: int
    """**Looped.** P: loops of the model."""
    vocab_size: int
    """**Looped.** V: token ids of a prompt are below it."""


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizeResponse(Answer):
    tokens: list[int]
    token_strs: list[str]
    """Text of each token on its own."""
    count: int
    max_model_len: int


class DetokenizeResponse(Answer):
    prompt: str


class ErrorDetails(Answer):
    message: str
    type: str
    param: str | None
    """The field of the request that is to blame."""
    code: str | None


class ErrorResponse(Answer):
    error: ErrorDetails


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorResponse, "description": "A field is wrong, or not served"},
    401: {"model": ErrorResponse, "description": "No key, or another one"},
    404: {"model": ErrorResponse, "description": "No such model"},
    408: {"model": ErrorResponse, "description": "Took too long"},
    413: {"model": ErrorResponse, "description": "Body too large"},
    429: {"model": ErrorResponse, "description": "Too much under way; try again"},
    500: {"model": ErrorResponse, "description": "A launch failed"},
    503: {"model": ErrorResponse, "description": "Warming up, stopping, or the engine is lost"},
}
"""For the interactive page."""
