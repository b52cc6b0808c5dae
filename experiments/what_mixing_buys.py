"""What does mixing buy at each load?

Question: beside arriving prompts, how much sooner do tokens come under `mixed` than under
`separate` and `atomic`, at loads that all three keep up with, and how many more of them in a full
house?
Method: simulated. Prompts of 64 to 256 tokens, 16 to 64 tokens out at the depths of the family
`typical`, known ahead, P = 4; 200 requests a run, 16 at a time at most, budget 256, chunk 128.
A full house is a closed loop of 16. Poisson arrivals at shares of the rate that the slowest of the
three makes in it: at a large share of the fastest one's the others' queues would grow, and with
them the percentages, the longer a run. A policy whose backlog grows (`keeps_up`) would be named in
its row; none was. Every seed gives all policies the same requests, arrivals and depths. A load's
first line is `mixed` in milliseconds (means over 8 seeds), the others are its change against
another policy in percent: the geometric mean over seeds [95 % confidence interval of the pairs].
ITL is the gap between tokens of a request, TTFT the time from arrival to first token.

    python -P experiments/what_mixing_buys.py

Result (2026-11-30; simulated, so any machine; four minutes of a shared core):

ouro-1.4b-h200

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

Full house, requests/s: mixed 86.1, separate 65.6, atomic 66.8. Output tokens/s of mixed: 3,432;
+31.2 [+30.3, +32.2] % against separate; +28.8 [+27.9, +29.7] % against atomic.

| load | ITL p50 | ITL p99 | TTFT p50 |
|---|---|---|---|
| 20 %: mixed | 2.59 | 5.21 | 8.81 |
| against separate | -5.7 [-9.3, -2.0] | -35.7 [-36.5, -34.9] | -38.6 [-42.5, -34.5] |
| against atomic | -1.6 [-2.4, -0.8] | -49.1 [-49.6, -48.6] | +11.9 [+6.3, +17.7] |
| 40 %: mixed | 2.72 | 5.58 | 10.3 |
| against separate | -23.3 [-24.6, -22.0] | -39.9 [-41.3, -38.5] | -39.5 [-39.9, -39.2] |
| against atomic | -6.9 [-11.3, -2.3] | -53.2 [-53.8, -52.6] | +23.3 [+21.5, +25.1] |
| 60 %: mixed | 2.86 | 6.03 | 11.1 |
| against separate | -30.0 [-30.9, -29.0] | -43.6 [-44.9, -42.4] | -38.4 [-38.9, -37.8] |
| against atomic | -20.4 [-22.7, -18.1] | -58.5 [-59.2, -57.8] | +29.2 [+27.7, +30.8] |
| 80 %: mixed | 3.08 | 6.94 | 11.9 |
| against separate | -32.1 [-34.7, -29.4] | -40.0 [-41.6, -38.3] | -40.8 [-42.1, -39.5] |
| against atomic | -26.0 [-28.0, -23.9] | -57.2 [-58.5, -55.8] | +29.9 [+24.0, +36.0] |

demo-cpu

Full house, requests/s: mixed 38.1, separate 33.2, atomic 37.9. Output tokens/s of mixed: 1,519;
+14.6 [+14.2, +15.1] % against separate; +0.6 [-0.1, +1.2] % against atomic.

| load | ITL p50 | ITL p99 | TTFT p50 |
|---|---|---|---|
| 20 %: mixed | 2.80 | 9.57 | 14.7 |
| against separate | -0.0 [-0.0, +0.0] | -17.8 [-19.1, -16.6] | -28.2 [-28.5, -28.0] |
| against atomic | +0.0 [-0.0, +0.1] | -23.4 [-25.7, -21.1] | +16.0 [+13.4, +18.6] |
| 40 %: mixed | 3.51 | 13.2 | 21.8 |
| against separate | -2.6 [-3.0, -2.2] | -20.5 [-22.9, -17.9] | -16.1 [-17.5, -14.7] |
| against atomic | +4.3 [+1.4, +7.2] | -30.3 [-32.1, -28.4] | +52.7 [+47.4, +58.2] |
| 60 %: mixed | 4.35 | 16.4 | 26.0 |
| against separate | -8.6 [-12.0, -5.2] | -22.9 [-24.8, -20.9] | -19.0 [-20.7, -17.3] |
| against atomic | +11.6 [+7.4, +16.0] | -35.8 [-37.9, -33.6] | +68.9 [+65.1, +72.8] |
| 80 %: mixed | 5.69 | 19.9 | 31.6 |
| against separate | -17.9 [-18.9, -16.8] | -21.6 [-23.9, -19.3] | -24.9 [-27.4, -22.3] |
| against atomic | +17.5 [+15.2, +19.9] | -38.2 [-39.6, -36.8] | +86.2 [+79.6, +93.0] |

By this estimate mixing takes 36 to 44 % off the 99th percentile of gaps under `separate`, and 49 to
59 % off that under `atomic`. The median gap is 6 % shorter than under `separate` at 20 % load and
32 % at 80 %; than under `atomic` 2 % and 26 %. The median first token is 38 to 41 % sooner than
under `separate`, but 12 to 30 % later than under `atomic`. A full house makes 31 and 29 % more
tokens.

By the demo model's table, fitted on two CPU cores, mixing buys less. Against `separate` the 99th
percentile of gaps is 18 to 23 % shorter, the median gap the same at 20 % load and 3 to 18 % shorter
above, the median first token 16 to 28 % sooner, and a full house makes 15 % more tokens. Against
`atomic` it is a trade: the 99th percentile is 23 to 38 % shorter, but the median gap, the same at
20 % load, is 4 to 18 % longer above, the median first token 16 to 86 % later, and a full house
makes no more tokens beyond chance.
"""

import argparse
from collections.abc import Iterator, Sequence

from looped.measure.cells import number_cell
from looped.measure.page import table_head, table_row
from looped.measure.statistics import Numbers
from looped.record.timeline import Timeline
from looped.simulation.loads.workload import Lengths
from looped.simulation.report import caution, interval_cell
from looped.simulation.runs import WorkloadPlan, cost_table
from looped.simulation.summary import Summary
from looped.simulation.sweeps.capacity import keeps_up
from looped.simulation.sweeps.grid import Grid, Point, mean_numbers, run_grid
from looped.simulation.sweeps.paired import paired_numbers

TABLES = ("ouro-1.4b-h200", "demo-cpu")
POLICIES = ("mixed", "separate", "atomic")
SIZES = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "prefill_chunk_size": 128}
PLAN = WorkloadPlan(
    num_planes=4, num_requests=200, prompt_tokens=Lengths(64, 256), output_tokens=Lengths(16, 64)
)
LOADS = (0.2, 0.4, 0.6, 0.8)
"""Shares of the rate of the slowest policy's full house."""
SHOWN = ("itl_p50", "itl_p99", "ttft_p50")


def load_rows(title: str, timelines: Sequence[Sequence[Timeline]]) -> Iterator[str]:
    """`mixed` itself, and its change against every other policy; says who does not keep up."""
    mixed, *others = ([Summary.of(one).numbers for one in own] for own in timelines)
    means = mean_numbers(mixed)
    cells = [number_cell(None if (mean := means[key]) is None else 1e3 * mean) for key in SHOWN]
    names = [
        policy if keeps_up(own) else f"{policy} (does not keep up)"
        for policy, own in zip(POLICIES, timelines, strict=True)
    ]
    yield table_row(f"{title}: {names[0]}", cells)
    for name, own in zip(names[1:], others, strict=True):
        paired = paired_numbers(mixed, own)
        yield table_row(f"against {name}", [interval_cell(paired.get(key)) for key in SHOWN])


def full_house_line(runs: Sequence[Sequence[Numbers]]) -> str:
    """Requests and tokens per second in closed loops, in words."""
    rates = [
        f"{policy} {number_cell(mean_numbers(own)['requests_per_second'])}"
        for policy, own in zip(POLICIES, runs, strict=True)
    ]
    mixed, *others = runs
    changes = []
    for policy, own in zip(POLICIES[1:], others, strict=True):
        change = paired_numbers(mixed, own)["output_tokens_per_second"]
        changes.append(f"{interval_cell(change)} % against {policy}")
    tokens = number_cell(mean_numbers(mixed)["output_tokens_per_second"])
    return (
        f"Full house, requests/s: {', '.join(rates)}. "
        f"Output tokens/s of mixed: {tokens}; {'; '.join(changes)}."
    )


def slowest_rate(runs: Sequence[Sequence[Numbers]]) -> float:
    """Requests per second of the policy that makes fewest."""
    rates = [mean_numbers(own)["requests_per_second"] for own in runs]
    return min(rate for rate in rates if rate is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", nargs="+", default=TABLES, help="cost tables")
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    for name in arguments.costs:
        costs = cost_table(name)
        grid = Grid(PLAN, costs, range(arguments.seeds))
        full = run_grid(grid, [Point(policy, SIZES, concurrency=16) for policy in POLICIES])
        print(f"\n{name}\n", *caution(costs), full_house_line(full), "", sep="\n")
        print(*table_head("load", ["ITL p50", "ITL p99", "TTFT p50"]), sep="\n")
        for load in LOADS:
            points = [Point(policy, SIZES, load * slowest_rate(full)) for policy in POLICIES]
            timelines = [[grid.timeline(point, seed) for seed in grid.seeds] for point in points]
            print(*load_rows(f"{100 * load:.0f} %", timelines), sep="\n", flush=True)


if __name__ == "__main__":
    main()
