"""How long do schedule() and apply() take on the host, without any device?

Method: the executor does nothing, so that only the scheduler runs (policy `separate`, P = 4,
adaptive exits, every launch read). N requests are brought to the steady state, then 400 launches
of whatever kind comes are timed one by one; medians in microseconds. "decode": every request is
in the loops. "prompts": half of them work on a prompt of 4,000 tokens.

    .venv/bin/python experiments/schedule_time.py

Result, 2026-11-29, two shared cores of an AMD EPYC (no device; load average 4):

    sequences  load      schedule us  apply us
            1  decode           13.5       1.9
            1  prompts          13.3       1.9
           16  decode           49.8      12.1
           16  prompts          44.9       6.8
           64  decode          166.7      44.8
           64  prompts         142.6      21.6
          256  decode          676.0     175.7
          256  prompts         542.4      76.5

So schedule() stays under 300 microseconds at 64 sequences and grows linearly: about 10
microseconds and 2.6 for each decode row, most of it for building the frozen items. Measured beside
each other on 2026-11-30 (load average 3), aging, times and the choice of policies have added 5 % to
schedule() and 2 microseconds to apply() at 16 sequences.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

from looped.sched import (
    Batch,
    CodaResult,
    ExitMode,
    ExitRule,
    LaunchKind,
    LaunchResult,
    RecurrentResult,
    Request,
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
    """Return results that never end anything early."""
    num_items = len(batch.items)
    if batch.launch is LaunchKind.CODA:
        return CodaResult([1] * num_items, [0.0] * num_items, [True] * num_items)
    return RecurrentResult([0.0] * batch.num_decode)


def time_launches(num_seqs: int, has_prompts: bool) -> tuple[float, float]:
    """Return the median microseconds of schedule() and of apply()."""
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=100,
        num_blocks=NUM_PLANES * 300 * num_seqs,
        max_model_len=4096,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=num_seqs + 127,
        min_coda_batch_size=max(1, num_seqs // 4),
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
