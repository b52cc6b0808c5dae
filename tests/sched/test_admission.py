"""Who is admitted, in which order, and what it costs those who wait."""

import pytest
from stub_executor import StubExecutor, StubPayload

from looped.sched import ExitOptions, Request, SchedulerConfig, Stage, resolve_exit
from looped.sched.memory.admission import AdmissionQueue
from looped.sched.memory.resources import Resources

NUM_PLANES = 2
RULE = resolve_exit(ExitOptions(), ExitOptions(), NUM_PLANES)


class Hall:
    """An admission queue with room for `num_blocks`, of two positions and two planes."""

    def __init__(self, num_blocks: int, **options: object) -> None:
        sizes = {"max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": 2}
        config = SchedulerConfig(
            num_planes=NUM_PLANES,
            vocab_size=100,
            num_blocks=num_blocks,
            max_model_len=64,
            **(sizes | options),  # type: ignore[arg-type]
        )
        self.resources = Resources(config, StubExecutor(config))
        self.queue = AdmissionQueue(config, self.resources)
        self.num_added = 0

    def add(self, num_tokens: int, *, first: int = 0, priority: int = 0) -> Request:
        """Queue a request that needs num_tokens positions, i.e. as many blocks if even."""
        prompt = tuple(range(first, first + num_tokens))
        request = Request(
            request_id=str(self.num_added),
            prompt_token_ids=prompt,
            max_tokens=1,
            exit_rule=RULE,
            priority=priority,
            payload=StubPayload(0),
        )
        request.prefix_keys = self.resources.blocks.cache.keys(prompt)
        request.arrival_index = self.num_added
        self.num_added += 1
        self.queue.add(request)
        return request

    def publish(self, request: Request) -> None:
        """Complete the prompt of a request."""
        self.resources.blocks.grow_tables(request, request.num_prompt_tokens)
        request.num_written_tokens = request.num_prompt_tokens
        self.resources.blocks.publish(request)


def test_requests_enter_in_order_of_arrival_while_there_is_room() -> None:
    hall = Hall(10)
    requests = [hall.add(4, first=10 * index) for index in range(3)]
    assert hall.queue.admit() == requests[:2]
    assert [request.admission_index for request in requests] == [0, 1, -1]
    assert len(hall.queue) == 1
    hall.resources.release(requests[0])
    assert hall.queue.admit() == requests[2:]


def test_capacity_is_counted_to_the_last_block() -> None:
    assert Hall(8).queue.admit() == []
    exact, one_short = Hall(8), Hall(7)
    exact.add(8)
    one_short.add(8)
    assert len(exact.queue.admit()) == 1
    assert len(one_short.queue.admit()) == 0


def test_lower_priority_values_go_first_and_equals_keep_their_order() -> None:
    hall = Hall(100, scheduling_policy="priority")
    requests = [hall.add(2, priority=priority) for priority in (1, 0, 1, 2)]
    assert hall.queue.admit() == [requests[1], requests[0], requests[2], requests[3]]


def test_without_a_free_slot_nobody_enters() -> None:
    hall = Hall(100, max_num_seqs=1)
    first, second = hall.add(2), hall.add(2, first=9)
    assert hall.queue.admit() == [first]
    assert hall.queue.admit() == []
    assert second.num_bypasses == 0
    hall.resources.release(first)
    assert hall.queue.admit() == [second]
    assert second.slot == 0


def test_a_blocked_request_is_bypassed_only_up_to_its_limit() -> None:
    hall = Hall(12, admission_bypass_limit=2)
    holder = hall.add(6)
    assert hall.queue.admit() == [holder]
    large = hall.add(10, first=20)
    small = [hall.add(2, first=40 + 10 * index) for index in range(4)]
    assert hall.queue.admit() == small[:2]
    assert large.num_bypasses == 2
    hall.resources.release(small[0])
    assert hall.queue.admit() == [], "two more would fit, but the large one has waited enough"
    hall.resources.release(holder)
    assert hall.queue.admit() == [large]
    hall.resources.release(small[1])
    assert hall.queue.admit() == [small[2]]


def test_only_the_first_waiting_requests_are_looked_at() -> None:
    hall = Hall(6, admission_scan_limit=2)
    hall.add(4)
    hall.queue.admit()
    blocked = [hall.add(4, first=20), hall.add(4, first=30)]
    fitting = hall.add(2, first=40)
    assert hall.queue.admit() == []
    hall.queue.remove(blocked[0])
    assert hall.queue.admit() == [fitting]


def test_the_watermark_holds_only_while_something_is_active() -> None:
    hall = Hall(10, kv_watermark=2)
    whole = hall.add(10)
    assert hall.queue.admit() == [whole]
    hall.resources.release(whole)
    first, second = hall.add(6, first=20), hall.add(4, first=40)
    assert hall.queue.admit() == [first]
    hall.queue.remove(second)
    third = hall.add(2, first=60)
    assert hall.queue.admit() == [third], "4 are free and 2 stay so"


@pytest.mark.parametrize("incremental_kv", [False, True])
def test_admission_counts_the_whole_capacity_of_the_active(incremental_kv: bool) -> None:
    """Two prompts of 60 % of the pool: claimed later or not, only one may enter."""
    hall = Hall(10, incremental_kv=incremental_kv)
    first, second = hall.add(6), hall.add(6, first=30)
    assert hall.queue.admit() == [first]
    used = hall.resources.blocks.num_used_blocks
    assert used == (0 if incremental_kv else 6)
    assert second.stage is Stage.WAITING


def hall_with_cached_block(num_blocks: int, incremental_kv: bool) -> Hall:
    """Return a hall where the block of tokens 0 and 1 is cached and nobody holds it."""
    hall = Hall(num_blocks, incremental_kv=incremental_kv)
    publisher = hall.add(2)
    hall.queue.admit()
    hall.publish(publisher)
    hall.resources.release(publisher)
    assert hall.resources.blocks.num_free_blocks == num_blocks
    return hall


@pytest.mark.parametrize("incremental_kv", [False, True])
def test_two_candidates_with_the_same_hit_pay_for_it_once(incremental_kv: bool) -> None:
    hall = hall_with_cached_block(6, incremental_kv)
    sharers = [hall.add(3), hall.add(4)]
    assert hall.queue.admit() == sharers
    assert [request.num_cached_tokens for request in sharers] == [2, 2]


@pytest.mark.parametrize("incremental_kv", [False, True])
def test_a_hit_that_nobody_holds_is_not_free_twice(incremental_kv: bool) -> None:
    """Two blocks are free because they are cached; a sharer needs these and two more."""
    hall = hall_with_cached_block(4, incremental_kv)
    occupant = hall.add(2, first=50)
    assert hall.queue.admit() == [occupant]
    sharer = hall.add(3)
    assert hall.queue.admit() == []
    hall.resources.release(occupant)
    assert hall.queue.admit() == [sharer]


def test_a_hit_on_blocks_in_use_costs_nothing() -> None:
    hall = Hall(6)
    publisher = hall.add(4)
    hall.queue.admit()
    hall.publish(publisher)
    sharer = hall.add(5)
    assert hall.queue.admit() == [sharer]
    assert sharer.num_cached_tokens == 4
    assert hall.resources.blocks.num_free_blocks == 0


def test_a_publication_can_let_a_blocked_request_in() -> None:
    hall = Hall(6)
    publisher = hall.add(4)
    hall.queue.admit()
    sharer = hall.add(5)
    assert hall.queue.admit() == []
    hall.publish(publisher)
    assert hall.queue.admit() == [sharer]


def test_requests_behind_the_scan_window_are_seen_once_it_has_moved() -> None:
    hall = Hall(100, admission_scan_limit=1)
    first, second = hall.add(2), hall.add(2, first=9)
    assert hall.queue.admit() == [first]
    assert hall.queue.admit() == [second]
