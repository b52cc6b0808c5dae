"""One request and its answer, whole or as a stream: what the two endpoints have in common."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from looped.engine.outputs import Completion
from looped.sampling_params import SamplingParams

from ..generation import Generation, Output
from ..streams import NOBODY, ClientGoneError, EventStream, unless_gone
from .backend import Backend, UsageCounter
from .responses import FinishReason, Usage
from .sampling import field_names
from .schema import GenerationFields

ALL_THE_ROOM = -1
"""A max_tokens as llama.cpp has it: as many as have room."""


class Exchange(ABC):
    """One request of an endpoint.

    Args:
        backend: the served model.
        body: the request.

    Raises:
        ApiError: the body names another model, or has a field that is refused.
    """

    id_prefix: str
    """What the ids of the endpoint's answers begin with."""
    prompt_field: str
    """The field that prompts come from."""
    default_max_tokens: int | None
    """Tokens to emit at most where the body does not say, and there is room for more; None for all
    the room."""
    params: SamplingParams
    """Options of all prompts; max_tokens None where the body does not say."""

    def __init__(self, backend: Backend, body: GenerationFields) -> None:
        backend.check_body(body)
        self.backend = backend
        self.num_samples = 1 if body.n is None else body.n
        self._has_loops = bool(body.return_loops)
        self._body = body
        self._name = ""

    @property
    @abstractmethod
    def num_prompts(self) -> int:
        """Prompts of the request."""

    @abstractmethod
    async def prepare(self) -> list[tuple[int, ...]]:
        """Token ids of the prompts; ApiError for a bad field."""

    @abstractmethod
    def choice(self, index: int, completion: Completion) -> BaseModel:
        """A choice as it stands in a whole answer; called in the order of the choices."""

    @abstractmethod
    def choices_of(self, index: int, output: Output) -> list[BaseModel]:
        """What an output adds to a choice, in a stream; mostly one piece, at times none."""

    @abstractmethod
    def whole(self, common: dict[str, Any], choices: list[BaseModel], usage: Usage) -> BaseModel:
        """The whole answer; `common` is what every answer says."""

    @abstractmethod
    def chunk(self, common: dict[str, Any], choices: list[BaseModel]) -> BaseModel:
        """A chunk of a stream; `common` may have usage in it."""

    async def respond(self, request: Request) -> Response:
        """The answer; in any case the engine is left without the request.

        Raises:
            ApiError: the request is refused, or has failed before an answer began.
        """
        generation = self.backend.open(
            self.id_prefix, num_prompts=self.num_prompts, num_samples=self.num_samples
        )
        self._name = generation.name
        is_handed_over = False
        try:
            usage = await unless_gone(request, self._submit(generation))
            if self._body.stream:
                is_handed_over = True
                return EventStream(
                    generation,
                    self._chunks(generation, usage),
                    keep_alive_seconds=self.backend.config.keep_alive_seconds,
                )
            answer = await unless_gone(request, self._collect(generation, usage))
            return Response(
                answer.model_dump_json(exclude_unset=True), media_type="application/json"
            )
        except ClientGoneError:
            return NOBODY
        finally:
            if not is_handed_over:
                generation.close()

    async def _submit(self, generation: Generation) -> UsageCounter:
        prompts = await self.prepare()
        fields = field_names(self._body)
        params = [
            self.backend.limited(
                self.params, len(prompt), default=self.default_max_tokens, fields=fields
            )
            for prompt in prompts
        ]
        await self.backend.submit(
            generation, prompts, params, prompt_field=self.prompt_field, fields=fields
        )
        return UsageCounter(prompts, self.backend.num_loops)

    async def _collect(self, generation: Generation, usage: UsageCounter) -> BaseModel:
        completions: dict[int, Completion] = {}
        async for index, output in generation.outputs():
            usage.add(output)
            if isinstance(output, Completion):
                completions[index] = output
        choices = [self.choice(*item) for item in sorted(completions.items())]
        return self.whole(self._common(), choices, usage.usage)

    async def _chunks(
        self, generation: Generation, usage: UsageCounter
    ) -> AsyncIterator[BaseModel]:
        options = self._body.stream_options
        has_usage = options is not None and bool(options.include_usage)
        has_usage_always = options is not None and bool(options.continuous_usage_stats)
        common = self._common()
        if has_usage:
            common["usage"] = None
        async for index, output in generation.outputs():
            usage.add(output)
            for choice in self.choices_of(index, output):
                if has_usage_always:
                    common["usage"] = usage.usage
                yield self.chunk(common, [choice])
        if has_usage:
            yield self.chunk({**common, "usage": usage.usage}, [])

    def endings(self, completion: Completion | None, loops: Sequence[int]) -> dict[str, Any]:
        """What choices of both endpoints say besides their text; None while more is to come."""
        reason: FinishReason | None = None
        if completion is not None:
            reason = "stop" if completion.finish_reason == "stop" else "length"
        return {
            "finish_reason": reason,
            "stop_reason": None if completion is None else completion.stop_reason,
            **({"loops": list(loops)} if self._has_loops else {}),
        }

    def _common(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "created": self.backend.now(),
            "model": self.backend.model_name,
        }
