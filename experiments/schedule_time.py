"""How long do schedule() and apply() take on the host, without any device?

Method: the executor does nothing, so that only the scheduler runs (policy `separate`, P = 4,
adaptive exits, every launch read before the next). N requests are brought to the steady state, then
400 launches of whatever kind comes are timed one by one; medians in microseconds. "decode": every
request is in the loops. "prompts": half of them work on a prompt of 4,000 tokens.

    .venv/bin/python experiments/schedule_time.py

Result, 2026-12-01, two shared cores of an AMD EPYC (no device; load average 1):

    sequences  load      schedule us  apply us
            1  decode           16.2       4.7
            1  prompts          16.2       4.7
           16  decode           43.4      27.6
           16  prompts          42.5      19.1
           64  decode          129.4      99.2
           64  prompts         113.9      55.0
          256  decode          466.0     378.1
          256  prompts         393.0     194.3

So schedule() stays under 150 microseconds at 64 sequences and grows linearly: about 14 microseconds
and 1.8 for each decode row, most of it for building the frozen items. apply() takes 1.5 for each
row that could leave in the launch: its status is checked against its exit rule, and what it can
become in launches under way is worked out anew.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from looped.sched import (
    Batch,
    ExitMode,
    ExitRule,
    HeadResult,
    LaunchResult,
    Request,
    RowStatus,
    Scheduler,
    SchedulerConfig,
)

NUM_PLANES = 4
NUM_LAUNCHES = 400
RULE = ExitRule(mode=ExitMode.OURO, threshold=0.5, min_loops=1, max_loops=NUM_PLANES)


class NoStates:
    """Prompt state that holds nothing."""

    def acquire(self, request: Request) -> object:
        """Return a handle."""
        return object()

    def release(self, handle: object) -> None:
        """Take it back."""


def result_of(batch: Batch) -> LaunchResult:
    """Return results of tokens that run every loop."""
    loops = [item.request.loops_done + 1 for item in batch.head_items]
    if not loops:
        return LaunchResult()
    is_first = [not item.request.output_token_ids for item in batch.head_items]
    left, stayed = RowStatus.LEFT, RowStatus.STAYED
    return LaunchResult(
        HeadResult(
            statuses=[
                left if first or loop == NUM_PLANES else stayed
                for loop, first in zip(loops, is_first, strict=True)
            ],
            loops=loops,
            token_ids=[1] * len(loops),
            logprobs=[0.0] * len(loops),
            is_finite=[True] * len(loops),
        )
    )


def time_launches(num_seqs: int, has_prompts: bool) -> tuple[float, float]:
    """Return the median microseconds of schedule() and of apply()."""
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=100,
        num_blocks=NUM_PLANES * 300 * num_seqs,
        max_model_len=4096,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + 127,
    )
    scheduler = Scheduler(config, NoStates())
    num_decoding = (num_seqs + 1) // 2 if has_prompts else num_seqs
    for index in range(num_seqs):
        is_long = index >= num_decoding
        scheduler.add(
            Request(
                request_id=str(index),
                prompt_token_ids=(index % 100,) * (4000 if is_long else 8),
                max_tokens=90 if is_long else 1000,
                exit_rule=RULE,
            )
        )
    schedule_times: list[float] = []
    apply_times: list[float] = []
    is_steady = False
    while len(schedule_times) < NUM_LAUNCHES:
        start = perf_counter()
        batch = scheduler.schedule()
        middle = perf_counter()
        assert batch is not None
        result = result_of(batch)
        resumed = perf_counter()
        scheduler.apply(batch, result)
        end = perf_counter()
        is_steady = is_steady or batch.num_decode == num_decoding
        if is_steady:
            schedule_times.append(1e6 * (middle - start))
            apply_times.append(1e6 * (end - resumed))
    return median(schedule_times), median(apply_times)


def main() -> None:
    """Print the table."""
    print(f"{'sequences':>9}  {'load':<8} {'schedule us':>12} {'apply us':>9}")
    for num_seqs in (1, 16, 64, 256):
        for has_prompts in (False, True):
            schedule_time, apply_time = time_launches(num_seqs, has_prompts)
            load = "prompts" if has_prompts else "decode"
            print(f"{num_seqs:>9}  {load:<8} {schedule_time:>12.1f} {apply_time:>9.1f}")


if __name__ == "__main__":
    main()
