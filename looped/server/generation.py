"""One HTTP request's prompts and samples on their way through the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future

from looped.engine.generation_request import GenerationRequest
from looped.engine.outputs import Completion, TokenEvent
from looped.engine.records import ItemRecord
from looped.sched import FinishReason

from .engine_thread import AbortRequest, AddRequests, Command, settle
from .errors import ApiError

Output = TokenEvent | Completion


class Generation:
    """What one HTTP request waits for. Made by `Service.open`; for use on the event loop.

    Outputs wait here, at most max_tokens of each sample, until the client has read what came
    before: nobody else notices a slow one.

    Args:
        name: the id that the client sees; the engine's ids are `name/prompt index`.
        num_prompts: prompts of the request.
        num_samples: n, samples of each.
        deadline: on the event loop's clock, in seconds.
        send: takes commands for the engine.
        on_close: called once, when the request needs nothing any more.
    """

    def __init__(
        self,
        name: str,
        *,
        num_prompts: int,
        num_samples: int,
        deadline: float,
        send: Callable[[Command], None],
        on_close: Callable[["Generation"], None],
    ) -> None:
        self.name = name
        self.num_samples = num_samples
        self.engine_ids = tuple(f"{name}/{index}" for index in range(num_prompts))
        self.opened = asyncio.get_running_loop().time()
        self.deadline = deadline
        self.last_token: dict[int, float] = {}
        """When the newest token of each choice was seen, on the event loop's clock."""
        self.launched: set[int] = set()
        """Choices that have been in a launch."""
        self._send = send
        self._on_close = on_close
        self._prompt_index = {name: index for index, name in enumerate(self.engine_ids)}
        self._unfinished = dict.fromkeys(self.engine_ids, num_samples)
        self._outputs: asyncio.Queue[Output | ApiError] = asyncio.Queue()
        self._added: Future[None] | None = None
        """Done when the engine has the prompts; None until they are sent."""
        self._failure: ApiError | None = None
        self._is_closed = False

    @property
    def num_choices(self) -> int:
        """Samples in all; choice i is sample i % n of prompt i // n."""
        return len(self.engine_ids) * self.num_samples

    async def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Gives the prompts to the engine, each with its options; returns when it has them all.

        Raises:
            UsageError: the engine refuses one of them, and so has none.
            ApiError: the time is over, or the engine has died or is not there any more.
        """
        if self._failure is not None:  # while the prompts were being tokenised
            raise self._failure
        command = AddRequests(dict(zip(self.engine_ids, requests, strict=True)))
        self._added = command.added
        self._send(command)
        try:
            async with asyncio.timeout_at(self.deadline):
                await asyncio.wrap_future(command.added)
        except TimeoutError:
            raise self._timed_out() from None

    async def outputs(self) -> AsyncIterator[tuple[int, Output]]:
        """Tokens and completions with their choice's index, until every choice is complete.

        Raises:
            ApiError: a choice failed, or the time is over.
        """
        num_left = self.num_choices
        while num_left:
            try:
                async with asyncio.timeout_at(self.deadline):
                    output = await self._outputs.get()
            except TimeoutError:
                raise self._timed_out() from None
            if isinstance(output, ApiError):
                raise output
            if isinstance(output, Completion):
                if output.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
                    raise ApiError(500, f"the request failed: {output.error or 'it was aborted'}")
                num_left -= 1
            yield self.choice_index(output), output

    def choice_index(self, output: Output | ItemRecord) -> int:
        """Which choice an output, or an item of a launch, belongs to."""
        return self._prompt_index[output.request_id] * self.num_samples + output.sample_index

    def put(self, output: Output) -> None:
        """The engine's next output; never waits."""
        if isinstance(output, Completion):
            self._unfinished[output.request_id] -= 1
        self._outputs.put_nowait(output)

    def fail(self, error: ApiError) -> None:
        """Ends the request with an error, wherever it stands."""
        self._failure = error
        if self._added is not None:
            settle(self._added, error)
        self._outputs.put_nowait(error)

    def close(self) -> None:
        """Takes back what the engine has not finished; may be called more than once."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._added is not None:
            for name in self.engine_ids:
                if self._unfinished[name]:
                    self._send(AbortRequest(name))
        self._on_close(self)

    def _timed_out(self) -> ApiError:
        seconds = self.deadline - self.opened
        return ApiError(
            408,
            f"the request was not done after {seconds:g} seconds; ask for fewer tokens, or raise "
            "--request-timeout",
        )
