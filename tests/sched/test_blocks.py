"""The block manager and its prefix cache."""

import random

import pytest

from looped.sched import ExitOptions, InterfaceError, Request, SchedulerConfig, resolve_exit
from looped.sched.memory.blocks import BlockManager
from looped.sched.memory.prefix import PrefixCache

NUM_PLANES = 2
RULE = resolve_exit(ExitOptions(), ExitOptions(), NUM_PLANES)


def manager_of(num_blocks: int, block_size: int = 2, cache_salt: str = "") -> BlockManager:
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=100,
        num_blocks=num_blocks,
        max_model_len=100,
        block_size=block_size,
        cache_salt=cache_salt,
    )
    return BlockManager(config)


def open_request(blocks: BlockManager, *prompt: int, max_tokens: int = 1) -> Request:
    """Open the tables of a request with its cache hits, and claim its capacity."""
    request = Request(
        request_id="any", prompt_token_ids=prompt, max_tokens=max_tokens, exit_rule=RULE
    )
    request.prefix_keys = blocks.cache.keys(prompt)
    blocks.open_tables(request, blocks.match(request))
    blocks.grow_tables(request, request.capacity)
    return request


def publish_all(blocks: BlockManager, request: Request) -> None:
    request.num_written_tokens = request.num_prompt_tokens
    blocks.publish(request)


def num_hits(blocks: BlockManager, *prompt: int) -> int:
    request = Request(request_id="probe", prompt_token_ids=prompt, max_tokens=1, exit_rule=RULE)
    request.prefix_keys = blocks.cache.keys(prompt)
    return len(blocks.match(request))


def test_a_request_holds_one_table_per_plane_and_gives_all_back() -> None:
    blocks = manager_of(12)
    request = open_request(blocks, 1, 2, 3, max_tokens=3)
    assert [len(table) for table in request.block_tables] == [3, 3]
    assert len({block for table in request.block_tables for block in table}) == 6
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (6, 6)
    blocks.close_tables(request)
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (0, 12)
    assert blocks.num_reserved_blocks == 0


def test_growth_claims_every_plane_or_nothing() -> None:
    blocks = manager_of(5)
    request = Request(request_id="any", prompt_token_ids=(1, 2, 3, 4), max_tokens=3, exit_rule=RULE)
    blocks.open_tables(request, [])
    assert blocks.num_reserved_blocks == 6
    blocks.grow_tables(request, 3)
    assert blocks.num_reserved_blocks == 2
    blocks.grow_tables(request, 4)
    assert blocks.num_used_blocks == 4, "what is there already is not claimed again"
    with pytest.raises(InterfaceError, match=r"expected 2 free blocks .*, got 1"):
        blocks.grow_tables(request, 5)
    assert [len(table) for table in request.block_tables] == [2, 2]
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (4, 1)


def test_nothing_is_cached_before_every_plane_is_written() -> None:
    blocks = manager_of(20)
    request = open_request(blocks, 1, 2, 3, 4, 5)
    request.num_written_tokens = 3
    blocks.publish(request)
    assert num_hits(blocks, 1, 2, 3, 4, 5) == 1
    publish_all(blocks, request)
    assert num_hits(blocks, 1, 2, 3, 4, 5) == 2


def test_the_last_prompt_token_is_always_recomputed() -> None:
    blocks = manager_of(20)
    publish_all(blocks, open_request(blocks, 1, 2, 3, 4))
    assert num_hits(blocks, 1, 2, 3, 4) == 1
    assert num_hits(blocks, 1, 2, 3, 4, 5) == 2


def test_a_hit_needs_the_whole_prefix_and_the_same_salt() -> None:
    blocks = manager_of(20)
    publish_all(blocks, open_request(blocks, 1, 2, 3, 4))
    assert num_hits(blocks, 9, 2, 3, 4, 5) == 0
    assert num_hits(blocks, 3, 4, 5) == 0
    other = manager_of(20, cache_salt="float16")
    assert set(other.cache.keys((1, 2))).isdisjoint(blocks.cache.keys((1, 2)))


def test_shared_blocks_count_once_and_outlive_their_publisher() -> None:
    blocks = manager_of(20)
    first = open_request(blocks, 1, 2, 3)
    publish_all(blocks, first)
    second = open_request(blocks, 1, 2, 4)
    assert second.block_tables[0][0] == first.block_tables[0][0]
    assert blocks.num_used_blocks == 6
    blocks.close_tables(first)
    assert blocks.num_used_blocks == 4
    blocks.close_tables(second)
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (0, 20)
    assert num_hits(blocks, 1, 2, 3) == 1


def test_the_same_prompt_computed_twice_stays_private_and_its_rest_is_published() -> None:
    blocks = manager_of(20)
    first, second = open_request(blocks, 1, 2, 3), open_request(blocks, 1, 2, 5, 6, 7)
    publish_all(blocks, first)
    publish_all(blocks, second)
    assert second.block_tables[0][0] != first.block_tables[0][0]
    assert num_hits(blocks, 1, 2, 5, 6, 7) == 2
    third = open_request(blocks, 1, 2, 5, 6, 7)
    assert third.block_tables[0][:2] == [first.block_tables[0][0], second.block_tables[0][1]]


def test_eviction_takes_children_before_parents_and_oldest_first() -> None:
    blocks = manager_of(8)
    old, new = open_request(blocks, 1, 2, 3, 4), open_request(blocks, 5, 6, 7, 8)
    for request in (old, new):
        publish_all(blocks, request)
        blocks.close_tables(request)
    assert blocks.num_free_blocks == 8
    open_request(blocks, 90)
    assert (num_hits(blocks, 1, 2, 3, 4, 0), num_hits(blocks, 5, 6, 7, 8, 0)) == (1, 2)
    open_request(blocks, 91)
    assert (num_hits(blocks, 1, 2, 3, 4, 0), num_hits(blocks, 5, 6, 7, 8, 0)) == (0, 2)


def test_a_parent_released_before_its_child_is_still_evicted_after_it() -> None:
    blocks = manager_of(8)
    first, second = open_request(blocks, 1, 2), open_request(blocks, 1, 2, 3, 4)
    publish_all(blocks, first)
    publish_all(blocks, second)
    blocks.close_tables(first)
    blocks.close_tables(second)
    filler = [open_request(blocks, 90), open_request(blocks, 91), open_request(blocks, 92)]
    assert num_hits(blocks, 1, 2, 3, 4, 5) == 1, "the child went, the parent stayed"
    assert blocks.num_used_blocks == 2 * len(filler)


def test_eviction_never_frees_a_block_in_use() -> None:
    blocks = manager_of(8)
    first, second = open_request(blocks, 1, 2), open_request(blocks, 1, 2, 3, 4)
    publish_all(blocks, first)
    publish_all(blocks, second)
    blocks.close_tables(first)
    third = open_request(blocks, 90, 91, 92, 93)
    tables = second.block_tables[0] + second.block_tables[1]
    assert set(tables).isdisjoint(third.block_tables[0] + third.block_tables[1])
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (8, 0)
    blocks.close_tables(second)
    blocks.close_tables(third)
    assert blocks.num_free_blocks == 8


def test_withdrawing_forgets_what_a_request_published_and_what_continues_it() -> None:
    blocks = manager_of(30)
    bad = open_request(blocks, 1, 2, 3, 4, 5)
    publish_all(blocks, bad)
    heir = open_request(blocks, 1, 2, 3, 4, 5, 6, 7)
    publish_all(blocks, heir)
    other = open_request(blocks, 8, 9)
    publish_all(blocks, other)
    blocks.withdraw(bad)
    assert num_hits(blocks, 1, 2, 3, 4, 5, 6, 7) == 0
    assert num_hits(blocks, 8, 9, 9) == 1
    for request in (bad, heir, other):
        blocks.close_tables(request)
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (0, 30)


def test_clearing_the_cache_forgets_all_of_it() -> None:
    blocks = manager_of(30)
    held, gone = open_request(blocks, 1, 2, 3, 4), open_request(blocks, 5, 6, 7)
    publish_all(blocks, held)
    publish_all(blocks, gone)
    blocks.close_tables(gone)
    blocks.clear_cache()
    assert blocks.cache.num_entries == blocks.cache.num_unused == 0
    assert (blocks.num_used_blocks, blocks.num_free_blocks) == (4, 26)


def test_keys_are_computed_in_linear_time_without_copies_of_the_prefix() -> None:
    blocks = manager_of(30, block_size=16)
    prompt = tuple(range(100)) * 41
    keys = blocks.cache.keys(prompt)
    assert len(keys) == len(prompt) // 16
    assert keys[:10] == blocks.cache.keys(prompt[:160])
    assert len(set(keys)) == len(keys)


def test_blocks_are_conserved_over_random_use() -> None:
    generator = random.Random(0)
    for _ in range(200):
        blocks = manager_of(generator.randrange(12, 30))
        held: list[Request] = []
        for _ in range(40):
            prompt = tuple(generator.choice((1, 2)) for _ in range(generator.randrange(1, 9)))
            if generator.random() < 0.5 and blocks.num_free_blocks >= 8:
                held.append(open_request(blocks, *prompt))
            elif held:
                request = held.pop(generator.randrange(len(held)))
                if generator.random() < 0.8:
                    publish_all(blocks, request)
                if generator.random() < 0.1:
                    blocks.withdraw(request)
                blocks.close_tables(request)
            owned = {block for request in held for table in request.block_tables for block in table}
            assert blocks.num_used_blocks == len(owned)
            assert blocks.num_used_blocks + blocks.num_free_blocks == blocks._config.num_blocks


def test_what_continues_an_unused_entry_is_given_up_before_it() -> None:
    """Also where the continuation is in use, by a request that computed the shared part itself."""
    cache = PrefixCache("salt", 2)
    keys = cache.keys((1, 2, 3, 4, 5, 6))
    chain = []
    for index, key in enumerate(keys):
        chain.append(cache.insert(key, (index,), chain[-1] if chain else None))
    first, second, held = chain
    for unused in (first, second):  # the first is the least recently used
        cache.mark_unused(unused)
    assert cache.oldest_leaf() is held
    assert cache.remove(held) == [held]
    assert cache.oldest_leaf() is second
    assert cache.remove(second) == [second]
    assert cache.match(keys) == [first]
