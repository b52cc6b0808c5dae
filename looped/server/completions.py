"""`POST /v1/completions`: texts or token ids in, their continuations out."""

from typing import Any, cast

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from looped.outputs import Completion, LoopScores, TokenEvent

from .backend import Backend
from .errors import ApiError
from .exchange import Exchange
from .generation import Output
from .logprobs import CompletionLogprobsBuilder, joined, prompt_logprobs
from .responses import (
    ERRORS,
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    Usage,
)
from .sampling import ALL_ROOM
from .schema import CompletionRequest


def make_router(backend: Backend) -> APIRouter:
    """The route, for one served model."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=CompletionResponse, responses=ERRORS)
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue a prompt, or several."""
        return await CompletionExchange(backend, body).respond(request)

    return router


class CompletionExchange(Exchange):
    """One request for completions.

    Raises:
        ApiError: a field is out of range.
    """

    id_prefix = "cmpl"
    prompt_field = "prompt"
    default_max_tokens: int | None = 16

    def __init__(self, backend: Backend, body: CompletionRequest) -> None:
        super().__init__(backend, body)
        if body.best_of not in (None, 1, self.num_samples):
            raise ApiError(
                400,
                "best_of: this server returns all samples and picks none: leave it out, or give "
                f"n; got {body.best_of}, and n is {self.num_samples}",
                param="best_of",
            )
        self._prompts = split_prompts(body.prompt)
        self._has_logprobs = body.logprobs is not None
        self._is_echo = bool(body.echo)
        fewest = 0 if self._is_echo else 1
        if body.max_tokens == ALL_ROOM:
            self.default_max_tokens = None
        elif body.max_tokens is not None and body.max_tokens < fewest:
            raise ApiError(
                400,
                f"max_tokens must be at least 1, or 0 with echo; got {body.max_tokens}",
                param="max_tokens",
            )
        # The engine runs a prompt for nothing else but its scores.
        is_scored = self._is_echo and (self._has_logprobs or body.max_tokens == 0)
        self.params = backend.params(
            body,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs or 0 if is_scored else None,
        )
        self._needs_scores = self._is_echo and self._has_logprobs
        self._token_ids: list[tuple[int, ...]] = []
        self._echoes: list[str] = []
        self._scores: dict[int, tuple[LoopScores, ...]] = {}
        """By prompt index; known with the first output of the prompt's sample 0."""
        self._held: dict[int, list[tuple[int, Output]]] = {}
        """Outputs of other samples that came before the scores did."""
        self._builders: dict[int, CompletionLogprobsBuilder] = {}
        self._num_sent: dict[int, int] = {}
        """Characters of each choice's text that are in the stream, without the prompt's."""

    @property
    def num_prompts(self) -> int:
        return len(self._prompts)

    async def prepare(self) -> list[tuple[int, ...]]:
        texts = [prompt for prompt in self._prompts if isinstance(prompt, str)]
        num_tokens = 0 if self.params.max_tokens == 0 else 1
        encoded = iter(await self.backend.encode(texts, self.prompt_field, num_tokens=num_tokens))
        self._token_ids = [
            next(encoded) if isinstance(prompt, str) else prompt for prompt in self._prompts
        ]
        self.backend.check_prompts(self._token_ids, self.prompt_field, num_tokens=num_tokens)
        if self._is_echo:
            decode = self.backend.tokenizer.decode
            self._echoes = [
                prompt if isinstance(prompt, str) else decode(prompt, has_special=True)
                for prompt in self._prompts
            ]
        return self._token_ids

    def choice(self, index: int, completion: Completion) -> BaseModel:
        prompt = index // self.num_samples
        if completion.sample_index == 0:
            self._scores[prompt] = completion.prompt_scores
        assert completion.text is not None
        logprobs = None
        if self._has_logprobs:
            logprobs = self._builder(index).add(
                completion.token_ids, completion.logprobs, completion.top_logprobs or ()
            )
            if self._needs_scores:
                logprobs = joined(self._prompt_logprobs(prompt), logprobs)
        return self._choice(
            index,
            self._echo(prompt) + completion.text,
            logprobs,
            completion.exit_depths,
            completion,
        )

    def choices_of(self, index: int, output: Output) -> list[BaseModel]:
        prompt = index // self.num_samples
        if output.sample_index == 0 and prompt not in self._scores:
            self._scores[prompt] = output.prompt_scores
            released = [(index, output), *self._held.pop(prompt, [])]
        elif self._needs_scores and prompt not in self._scores:
            self._held.setdefault(prompt, []).append((index, output))
            return []
        else:
            released = [(index, output)]
        return [piece for other in released for piece in self._pieces(*other)]

    def _pieces(self, index: int, output: Output) -> list[BaseModel]:
        pieces: list[BaseModel] = []
        if index not in self._num_sent:
            self._num_sent[index] = 0
            if self._is_echo:
                prompt = index // self.num_samples
                logprobs = self._prompt_logprobs(prompt) if self._needs_scores else None
                pieces.append(self._choice(index, self._echo(prompt), logprobs, ()))
        if isinstance(output, TokenEvent):
            self._num_sent[index] += len(output.text)
            logprobs = None
            if self._has_logprobs:
                logprobs = self._builder(index).add(
                    [output.token_id], [output.logprob], [output.top_logprobs or ()]
                )
            pieces.append(self._choice(index, output.text, logprobs, (output.exit_depth,)))
        else:
            assert output.text is not None
            rest = output.text[self._num_sent[index] :]
            pieces.append(self._choice(index, rest, None, (), output))
        return pieces

    def whole(self, common: dict[str, Any], choices: list[BaseModel], usage: Usage) -> BaseModel:
        return self.chunk({**common, "usage": usage}, choices)

    def chunk(self, common: dict[str, Any], choices: list[BaseModel]) -> BaseModel:
        return CompletionResponse(
            object="text_completion", choices=cast(list[CompletionChoice], choices), **common
        )

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: CompletionLogprobs | None,
        loops: tuple[int, ...],
        completion: Completion | None = None,
    ) -> CompletionChoice:
        """A choice, or what is added to it; with its completion, the last there is."""
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            **self.endings(completion, loops),
        )

    def _echo(self, prompt: int) -> str:
        return self._echoes[prompt] if self._is_echo else ""

    def _prompt_logprobs(self, prompt: int) -> CompletionLogprobs:
        return prompt_logprobs(
            self.backend.tokenizer, self._token_ids[prompt], self._scores[prompt]
        )

    def _builder(self, index: int) -> CompletionLogprobsBuilder:
        if index not in self._builders:
            start = len(self._echo(index // self.num_samples))
            self._builders[index] = CompletionLogprobsBuilder(self.backend.tokenizer, start=start)
        return self._builders[index]


def split_prompts(prompt: str | list[Any]) -> list[str | tuple[int, ...]]:
    """The prompts of a request, each a text or token ids.

    Raises:
        ApiError: there is none, or none in one of them.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise ApiError(400, "prompt must hold at least one prompt or token, got []", param="prompt")
    if isinstance(prompt[0], int):
        return [tuple(prompt)]
    return [entry if isinstance(entry, str) else tuple(entry) for entry in prompt]
