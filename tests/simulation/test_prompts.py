"""Made-up token ids: prompts begin alike where they are said to, and nowhere else."""

from dataclasses import replace

import pytest
from simulations import simulated_events

from looped.engine.events import RequestEvent
from looped.sched.memory.prefix import PrefixCache
from looped.simulation.loads.prompts import LoggedPrompts, prompt_of

FIRST = next(event for event in simulated_events() if isinstance(event, RequestEvent))


def request(request_id, num_tokens, keys="", earlier=0):
    """A logged request; every letter is the key of a block."""
    return replace(
        FIRST,
        request_id=request_id,
        num_prompt_tokens=num_tokens,
        prefix_keys=tuple(keys),
        num_earlier_samples=earlier,
    )


def num_shared(one, other, block_size):
    """Tokens of the full blocks that a prefix cache would find again."""
    cache = PrefixCache("", block_size)
    return block_size * len(set(cache.keys(one)) & set(cache.keys(other)))


def test_prompts_of_thousands_of_requests_differ():
    prompts = {prompt_of(index, 2) for index in range(0, 200_000, 1_000)}
    assert len(prompts) == 200
    assert prompt_of(9, 1) == (10,)


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_made_up_prompts_share_their_beginning_alone(block_size):
    prompts = [prompt_of(index, 70, num_shared=37) for index in range(20)]
    shared = 37 // block_size * block_size
    for index, one in enumerate(prompts):
        assert {num_shared(one, other, block_size) for other in prompts[:index]} <= {shared}


@pytest.mark.parametrize("block_size", [1, 4, 8, 12, 16, 32])
def test_logged_prompts_share_the_logs_blocks_whatever_the_size_of_others(block_size):
    prompts = LoggedPrompts(1000, 8)
    requests = [
        request("a", 40, "rstuv"),
        request("b", 43, "rstuw"),  # parts in the last block
        request("c", 39, "rstu"),  # ends before it
        request("d", 36, "rstu"),
        request("e", 40, "xyzuv"),  # other blocks under other keys
    ]
    a, b, c, d, e = (prompts.token_ids(one) for one in requests)
    assert [len(one) for one in (a, b, c, d, e)] == [40, 43, 39, 36, 40]
    for other in (b, c, d):
        assert num_shared(a, other, block_size) == 32 // block_size * block_size
        assert num_shared(a, e, block_size) == 0
    assert num_shared(c, d, block_size) == 32 // block_size * block_size


def test_what_no_key_tells_is_shared_with_samples_of_the_prompt_alone():
    prompts = LoggedPrompts(1000, 8)
    first = prompts.token_ids(request("a", 30))
    sample = prompts.token_ids(request("a", 30, earlier=1))
    other = prompts.token_ids(request("b", 30))
    again = prompts.token_ids(request("a", 30))
    assert first == sample
    assert len({first[0], other[0], again[0]}) == 3
