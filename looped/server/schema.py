"""What requests may say. Types and names only: ranges are the engine's to check, in one place.

Fields of OpenAI's that are not served are here as well, so that they can be refused by name; those
of other servers are in `foreign_fields`. Null is always the same as leaving a field out.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from .fields import Fields, LogitBias, OpenFields, expecting, not_served, only, shown

Prompt = Annotated[
    str | list[str] | list[int] | list[list[int]],
    expecting("a text, a list of texts, token ids, or a list of token-id lists"),
]
CONTENT = "a text, or a list of parts of type text"


def _without_empty(stop: str | list[str]) -> str | list[str] | None:
    """Nothing ends before an empty text, which clients send for having none."""
    return [text for text in stop if text] if isinstance(stop, list) else stop or None


def _plain_text(response_format: Any) -> Any:
    """A check of the one format there is; whatever else it says is about others."""
    if response_format is None or (
        isinstance(response_format, dict) and response_format.get("type") == "text"
    ):
        return response_format
    reason = not_served(response_format, ({"type": "text"},))
    raise PydanticCustomError("not_served", "{reason}", {"reason": reason})


def _checked_content(content: Any, info: ValidationInfo) -> Any:
    """Names what is not text, and lets only assistants say nothing."""
    if content is None and info.data.get("role", "assistant") != "assistant":
        raise PydanticCustomError("expected", "expected {what}, got null", {"what": CONTENT})
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise PydanticCustomError(
                "not_served",
                "this server reads nothing but parts of type text, got one of type {kind}",
                {"kind": shown(kind)},
            )
    return content


StopTexts = Annotated[
    str | list[str], expecting("a text or a list of texts"), AfterValidator(_without_empty)
]
NumLogprobs = Annotated[
    int | None, BeforeValidator(lambda value: None if value is False else value)
]
"""With false for none, as other servers have it."""
HasLogprobs = Annotated[
    bool | None,
    BeforeValidator(lambda value: False if type(value) is int and value == 0 else value),
]
"""With 0 for false, as other servers have it."""


class StreamOptions(OpenFields):
    """What a stream says besides its text."""

    include_usage: bool | None = None
    """End with a chunk that has no choices but the usage."""
    continuous_usage_stats: bool | None = None
    """Put the usage so far into every chunk, too."""
    include_obfuscation: Annotated[Any, only(False)] = None
    """Not served."""

    @property
    def has_any(self) -> bool:
        """Whether a stream would differ from one without options."""
        return bool(self.include_usage or self.continuous_usage_stats)


class Body(OpenFields):
    """What bodies share."""

    model: str | None = None
    """The served model's name, or nothing."""


class GenerationFields(Body):
    """Options that completions and chat completions share."""

    max_tokens: int | None = None
    """Tokens to emit at most; -1 for as many as have room."""
    temperature: float | None = None
    """0 is greedy; by default 1."""
    top_p: float | None = None
    """Keep the most likely tokens up to this probability."""
    top_k: int | None = None
    """Keep the k most likely tokens; -1 or 0 keeps all."""
    min_p: float | None = None
    """Keep tokens this many times as likely as the most likely one."""
    n: int | None = None
    """Samples of each prompt, which is computed once for all of them. At temperature 0 they are
    equal, and computed once, too."""
    seed: int | None = None
    """Seed of the draws: the same request draws the same tokens; -1 draws a fresh one."""
    stop: StopTexts | None = None
    """Texts before which the output ends; empty ones count for nothing. Not used where only a
    prompt is scored."""
    stop_token_ids: list[int] | None = None
    """Further token ids that end the output."""
    include_stop_str_in_output: bool | None = None
    """End after the stop text instead. Not used where only a prompt is scored."""
    ignore_eos: bool | None = None
    """Do not end at the model's end of sequence."""
    min_tokens: int | None = None
    """No end before so many tokens."""
    presence_penalty: float | None = None
    """Taken off tokens of the output."""
    frequency_penalty: float | None = None
    """The same, for every time that they occur."""
    repetition_penalty: float | None = None
    """Above 1: against tokens of prompt and output."""
    logit_bias: LogitBias | None = None
    """Added to the logits of tokens, by their ids."""
    stream: bool | None = None
    """Answer with server-sent events, a chunk for each token."""
    stream_options: StreamOptions | None = None
    """Only with `stream`."""

    min_loops: int | None = None
    """**Looped.** Fewest loops of a generated token."""
    max_loops: int | None = None
    """**Looped.** Most loops of a generated token."""
    exit_threshold: float | None = None
    """**Looped.** A token leaves the loops once its exit probability reaches this; 1 never does."""
    exit_mode: Literal["ouro", "ouro_delayed", "random_lookahead", "lookahead"] | None = None
    """**Looped.** The exit rule, where the server lets requests choose (`--allow-exit-mode`)."""
    priority: int | None = None
    """**Looped.** Lower goes first, where the server schedules by priority."""
    return_loops: bool | None = None
    """**Looped.** Add `loops` to each choice: the loop count of every emitted token."""

    user: str | None = None
    """Not used: describes the caller."""
    metadata: dict[str, Any] | None = None
    """Not used: describes the caller."""
    safety_identifier: str | None = None
    """Not used: describes the caller."""
    prompt_cache_key: str | None = None
    """Not used: equal prefixes are found by themselves."""
    prompt_cache_retention: str | None = None
    """Not used."""
    store: bool | None = None
    """Not used: answers are never kept."""
    service_tier: str | None = None
    """Not used: there is one."""
    prediction: Any = None
    """Not used: a guess at the answer changes nothing but time."""
    add_special_tokens: bool | None = None
    """Nothing is ever added to a text: true is refused where the checkpoint would add tokens."""
    response_format: Annotated[Any, AfterValidator(_plain_text)] = None
    """Not served: only `{"type": "text"}`."""
    tools: list[Any] | None = None
    """Not served: only with `tool_choice` "none", which means that they are not used; templates do
    not see them."""
    tool_choice: Annotated[Any, only("none", "auto")] = None
    """Not served: "auto" only without `tools`."""
    parallel_tool_calls: bool | None = None
    """Not used: there are no tools."""
    functions: list[Any] | None = None
    """Not served: as `tools`, with `function_call`."""
    function_call: Annotated[Any, only("none", "auto")] = None
    """Not served: as `tool_choice`."""
    modalities: Annotated[Any, only(["text"])] = None
    """Not served."""
    audio: Annotated[Any, only()] = None
    """Not served."""
    web_search_options: Annotated[Any, only()] = None
    """Not served."""
    reasoning_effort: Annotated[Any, only("none")] = None
    """Not served."""
    verbosity: Annotated[Any, only("medium")] = None
    """Not served."""


class CompletionRequest(GenerationFields):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    """One prompt or several, as text or as token ids."""
    echo: bool | None = None
    """Put the prompt before the output; with `logprobs`, with its log-probabilities. With
    `max_tokens` 0 the prompt is only scored."""
    logprobs: NumLogprobs = None
    """Log-probabilities of so many most likely tokens with every token, and of its own; false is
    none."""
    best_of: int | None = None
    """Not served: only 1, or as many as `n`."""
    suffix: Annotated[Any, only("")] = None
    """Not served."""


class TextPart(Fields):
    """A piece of a message's text; whatever else it says is ignored."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """One turn of a conversation; what is not here does not reach the template, and is ignored."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant"],
        expecting("system, developer, user or assistant (tool calls are not served)"),
    ]
    content: Annotated[
        str | list[TextPart] | None,
        expecting(CONTENT),
        BeforeValidator(_checked_content),
        Field(validate_default=True),
    ] = None
    """A text, or parts of type text; an assistant's may be null or left out, and is then empty."""
    name: str | None = None
    """Handed to the chat template."""
    reasoning_content: str | None = None
    """Handed to the chat template."""
    refusal: Annotated[Any, only("")] = None
    """Not served."""
    audio: Annotated[Any, only()] = None
    """Not served."""
    images: Annotated[Any, only([])] = None
    """Not served."""
    tools: Annotated[Any, only([])] = None
    """Not served."""
    tool_calls: Annotated[Any, only([])] = None
    """Not served."""
    function_call: Annotated[Any, only()] = None
    """Not served."""
    prefix: Annotated[Any, only(False)] = None
    """Not served: the answer is a turn of its own."""
    partial: Annotated[Any, only(False)] = None
    """Not served: the answer is a turn of its own."""

    def for_template(self) -> dict[str, str]:
        """What the checkpoint's chat template sees."""
        parts = self.content or ""
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        more = {"name": self.name, "reasoning_content": self.reasoning_content}
        given = {key: value for key, value in more.items() if value is not None}
        return {"role": self.role, "content": text, **given}


class ChatRequest(GenerationFields):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message]
    """The conversation so far."""
    max_completion_tokens: int | None = None
    """Another name for max_tokens; by default, as many as fit."""
    logprobs: HasLogprobs = None
    """Return the log-probability of every token; 0 is false."""
    top_logprobs: int | None = None
    """With `logprobs`: of so many most likely tokens in its place, too."""


class TokenizeRequest(Body):
    """Body of `POST /tokenize`: a prompt as `/v1/completions` takes it, or messages."""

    prompt: str | None = None
    """A text, encoded as it is."""
    messages: list[Message] | None = None
    """A conversation, in the checkpoint's chat template."""
    add_special_tokens: bool | None = None
    """Nothing is ever added to a text: true is refused where the checkpoint would add tokens."""
    return_token_strs: bool | None = None
    """Not used: `token_strs` come in any case."""
    tools: Annotated[Any, only([])] = None
    """Not served."""


class DetokenizeRequest(Body):
    """Body of `POST /detokenize`."""

    tokens: list[int]
    """Token ids; special tokens become their names."""
    skip_special_tokens: Annotated[Any, only(False)] = None
    """Not served."""
