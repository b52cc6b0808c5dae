"""What requests may say. Types and names only: ranges are the engine's to check, in one place.

Fields of OpenAI's that are not served are here as well, so that they can be refused by name; null
is always the same as leaving a field out.
"""

from typing import Annotated, Any, Literal

from .fields import Fields, LogitBias, expecting, only

Prompt = Annotated[
    str | list[str] | list[int] | list[list[int]],
    expecting("a text, a list of texts, token ids, or a list of token-id lists"),
]
StopTexts = Annotated[str | list[str], expecting("a text or a list of texts")]


class StreamOptions(Fields):
    """What a stream says besides its text."""

    include_usage: bool | None = None
    """End with a chunk that has no choices but the usage."""
    continuous_usage_stats: bool | None = None
    """Put the usage so far into every chunk, too."""
    include_obfuscation: Annotated[Any, only(False)] = None
    """Not served."""


class GenerationFields(Fields):
    """Options that completions and chat completions share."""

    model: str | None = None
    """The served model's name, or nothing."""
    max_tokens: int | None = None
    """Tokens to emit at most."""
    temperature: float | None = None
    """0 is greedy; by default 1."""
    top_p: float | None = None
    """Keep the most likely tokens up to this probability."""
    top_k: int | None = None
    """Keep the k most likely tokens."""
    min_p: float | None = None
    """Keep tokens this many times as likely as the most likely one."""
    n: int | None = None
    """Samples of each prompt, which is computed once for all of them; not at temperature 0."""
    seed: int | None = None
    """Seed of the draws: the same request draws the same tokens."""
    stop: StopTexts | None = None
    """Texts before which the output ends. Not used where only a prompt is scored."""
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
    store: Annotated[Any, only(False)] = None
    """Not served."""
    service_tier: Annotated[Any, only("auto", "default")] = None
    """Not served."""
    response_format: Annotated[Any, only({"type": "text"})] = None
    """Not served."""
    tools: Annotated[Any, only([])] = None
    """Not served."""
    tool_choice: Annotated[Any, only("none", "auto")] = None
    """Not served."""
    functions: Annotated[Any, only([])] = None
    """Not served."""
    function_call: Annotated[Any, only("none", "auto")] = None
    """Not served."""


class CompletionRequest(GenerationFields):
    """Body of `POST /v1/completions`."""

    prompt: Prompt
    """One prompt or several, as text or as token ids."""
    echo: bool | None = None
    """Put the prompt before the output; with `logprobs`, with its log-probabilities. With
    `max_tokens` 0 the prompt is only scored."""
    logprobs: int | None = None
    """Log-probabilities of so many most likely tokens with every token, and of its own."""
    best_of: Annotated[Any, only(1)] = None
    """Not served."""
    suffix: Annotated[Any, only("")] = None
    """Not served."""


class TextPart(Fields):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str | list[TextPart], expecting("a text, or a list of parts of type text")]
    name: str | None = None
    """Handed to the chat template."""
    refusal: Annotated[Any, only()] = None
    """Not served."""
    audio: Annotated[Any, only()] = None
    """Not served."""
    annotations: Annotated[Any, only([])] = None
    """Not served."""
    tool_calls: Annotated[Any, only([])] = None
    """Not served."""
    function_call: Annotated[Any, only()] = None
    """Not served."""

    def for_template(self) -> dict[str, Any]:
        """What the checkpoint's chat template sees."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        named = {} if self.name is None else {"name": self.name}
        return {"role": self.role, "content": text, **named}


class ChatRequest(GenerationFields):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message]
    """The conversation so far."""
    max_completion_tokens: int | None = None
    """Another name for max_tokens; by default, as many as fit."""
    logprobs: bool | None = None
    """Return the log-probability of every token."""
    top_logprobs: int | None = None
    """With `logprobs`: of so many most likely tokens in its place, too."""
    parallel_tool_calls: Annotated[Any, only(True, False)] = None
    """Not served: there are no tools."""
    modalities: Annotated[Any, only(["text"])] = None
    """Not served."""
    audio: Annotated[Any, only()] = None
    """Not served."""
    prediction: Annotated[Any, only()] = None
    """Not served."""
    web_search_options: Annotated[Any, only()] = None
    """Not served."""
    reasoning_effort: Annotated[Any, only()] = None
    """Not served."""
    verbosity: Annotated[Any, only()] = None
    """Not served."""


class TokenizeRequest(Fields):
    """Body of `POST /tokenize`: a prompt as `/v1/completions` takes it, or messages."""

    model: str | None = None
    """The served model's name, or nothing."""
    prompt: str | None = None
    """A text, encoded as it is."""
    messages: list[Message] | None = None
    """A conversation, in the checkpoint's chat template."""
    add_special_tokens: Annotated[Any, only(False)] = None
    """Not served: nothing is ever added to a text."""


class DetokenizeRequest(Fields):
    """Body of `POST /detokenize`."""

    model: str | None = None
    """The served model's name, or nothing."""
    tokens: list[int]
    """Token ids; special tokens become their names."""
