"""What the launch log costs beside the host's own work.

Question: how much longer is the host busy per launch with a log on, at 1 to 256 sequences?
Method: the set-up of host_time.py, where every executable is a stub that returns prepared arrays at
once, so a step is host time alone. Whole steps of `LLMEngine.step` are timed without a log and with
one that writes to a temporary file, the two alternating step by step, 400 steps each after 50 of
warm-up; medians in microseconds. (Means say nothing here: Python's collector goes through JAX's
heap now and then, 120 ms a time, with a log or without.) Writes of 256 lines at once are not in the
medians; they come to 35 us a launch of 256 sequences.

    python experiments/launch_log_cost.py

Result (2026-11-30, 2 shared cores under load, CPU only):

| sequences | off | on | ratio | log, bytes a launch |
|---|---|---|---|---|
| 1 | 166 | 181 | 1.09 | 417 |
| 16 | 262 | 288 | 1.10 | 872 |
| 64 | 540 | 598 | 1.11 | 2373 |
| 256 | 1657 | 1956 | 1.18 | 8673 |

That was schema 1. With schema 2 (same day, the machine so busy that only ratios say something) the
ratios are 1.09, 1.12, 1.20 and 1.20, and the lines 24 to 120 bytes longer. Schema 3
(2026-12-01, load 1):

| sequences | off | on | ratio | log, bytes a launch |
|---|---|---|---|---|
| 1 | 166 | 187 | 1.13 | 469 |
| 16 | 253 | 288 | 1.14 | 1027 |
| 64 | 542 | 611 | 1.13 | 2828 |
| 256 | 1964 | 2444 | 1.24 | 10369 |
"""

import argparse
import logging
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from host_time import NUM_WARM, decoding_engine

from looped.engine.observer import LaunchObserver
from looped.record.launch_log import recording

NUM_TIMED = 400


def time_steps(num_seqs: int, path: Path) -> tuple[list[float], list[float], int]:
    """Microseconds of steps without a log and with one, and the log's bytes."""
    with recording(path) as observer:
        engines = [decoding_engine(num_seqs, each) for each in (LaunchObserver(), observer)]
        times: list[list[float]] = [[], []]
        for step in range(NUM_WARM + NUM_TIMED):
            for engine, values in zip(engines, times, strict=True):
                start = perf_counter()
                engine.step()
                if step >= NUM_WARM:
                    values.append(1e6 * (perf_counter() - start))
    return times[0], times[1], path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16, 64, 256])
    logging.disable(logging.WARNING)
    print("| sequences | off | on | ratio | log, bytes a launch |")
    print("|---|---|---|---|---|")
    for num_seqs in parser.parse_args().sequences:
        with tempfile.TemporaryDirectory() as folder:
            off, on, size = time_steps(num_seqs, Path(folder) / "log.jsonl")
        print(
            f"| {num_seqs} | {median(off):.0f} | {median(on):.0f} | {median(on) / median(off):.2f} "
            f"| {size // (NUM_WARM + NUM_TIMED)} |"
        )


if __name__ == "__main__":
    main()
