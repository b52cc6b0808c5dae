"""One request between two threads, without either of them."""

import asyncio

import pytest

from looped.engine.generation_request import GenerationRequest
from looped.sampling_params import SamplingParams
from looped.server.engine_thread import AbortRequest, AddRequests
from looped.server.errors import ApiError
from looped.server.generation import Generation


def opened(sent, closed, *, num_prompts=2, seconds=5.0):
    return Generation(
        "name",
        num_prompts=num_prompts,
        num_samples=1,
        deadline=asyncio.get_running_loop().time() + seconds,
        send=sent.append,
        on_close=closed.append,
    )


async def submit(generation):
    prompts = ((1,), (2,))
    await generation.submit(
        [GenerationRequest(prompt_token_ids=prompt, params=SamplingParams()) for prompt in prompts]
    )


def test_a_request_that_failed_before_it_was_sent_is_not_sent():
    async def main():
        sent, closed = [], []
        generation = opened(sent, closed)
        generation.fail(ApiError(503, "gone"))
        with pytest.raises(ApiError, match="gone"):
            await submit(generation)
        generation.close()
        generation.close()
        assert sent == []
        assert closed == [generation]

    asyncio.run(main())


def test_prompts_are_sent_together_and_refused_together():
    async def main():
        sent, closed = [], []
        generation = opened(sent, closed)
        submitting = asyncio.create_task(submit(generation))
        await asyncio.sleep(0)
        (command,) = sent
        assert isinstance(command, AddRequests)
        sent_prompts = {name: one.prompt_token_ids for name, one in command.requests.items()}
        assert sent_prompts == {"name/0": (1,), "name/1": (2,)}
        command.added.set_exception(ApiError(400, "too long"))
        with pytest.raises(ApiError, match="too long"):
            await submitting
        generation.close()
        assert sent[1:] == [AbortRequest("name/0"), AbortRequest("name/1")]

    asyncio.run(main())


def test_an_engine_that_never_answers_is_not_waited_for_for_ever():
    async def main():
        generation = opened([], [], seconds=0.05)
        with pytest.raises(ApiError) as caught:
            await submit(generation)
        assert caught.value.status == 408

    asyncio.run(main())


def test_a_failure_reaches_whoever_waits_for_the_engines_answer():
    async def main():
        generation = opened([], [])
        submitting = asyncio.create_task(submit(generation))
        await asyncio.sleep(0)
        generation.fail(ApiError(503, "gone"))
        with pytest.raises(ApiError, match="gone"):
            await submitting

    asyncio.run(main())
