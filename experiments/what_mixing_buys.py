"""What does mixing buy at each load?

Question: beside arriving prompts, how much sooner do tokens come under `mixed` than under
`separate` and `atomic`, from a quiet machine to a full one, and how many more of them?
Method: simulated. Prompts of 64 to 256 tokens, 16 to 64 tokens out at the depths of the family
`typical`, known ahead, P = 4; 100 requests a run, 16 at a time at most, budget 256, chunk 128.
Poisson arrivals at shares of the rate that `mixed` makes in a full house, a closed loop of 16.
Every seed gives all policies the same requests, arrivals and depths. A load's first line is `mixed`
in milliseconds (means over 8 seeds), the others are its change against another policy in percent:
the geometric mean over seeds [95 % confidence interval of the pairs]. ITL is the gap between tokens
of a request, TTFT the time from arrival to first token.

    python -P experiments/what_mixing_buys.py

Result (2026-11-30; simulated, so any machine; two minutes of one core):

ouro-1.4b-h200: 80.7 requests/s in a full house

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| load | ITL p50 | ITL p99 | TTFT p50 |
|---|---|---|---|
| 20 %: mixed | 2.62 | 5.30 | 9.27 |
| against separate | -14.6 [-17.8, -11.3] | -37.4 [-38.8, -35.9] | -41.3 [-42.1, -40.5] |
| against atomic | -2.3 [-3.0, -1.5] | -50.3 [-51.8, -48.8] | +15.7 [+11.8, +19.6] |
| 40 %: mixed | 2.79 | 5.74 | 10.7 |
| against separate | -27.8 [-29.5, -26.1] | -43.0 [-44.1, -41.9] | -38.6 [-39.8, -37.4] |
| against atomic | -14.3 [-18.8, -9.6] | -56.3 [-57.3, -55.2] | +27.7 [+25.3, +30.1] |
| 60 %: mixed | 2.99 | 6.73 | 11.7 |
| against separate | -31.8 [-33.9, -29.6] | -40.6 [-42.6, -38.5] | -40.1 [-41.6, -38.5] |
| against atomic | -25.7 [-27.8, -23.5] | -56.8 [-58.4, -55.2] | +32.8 [+29.8, +35.8] |
| 80 %: mixed | 3.39 | 7.58 | 13.1 |
| against separate | -27.8 [-31.2, -24.2] | -36.1 [-37.5, -34.7] | -65.0 [-77.7, -45.2] |
| against atomic | -24.3 [-27.3, -21.2] | -56.1 [-57.8, -54.2] | -36.6 [-65.8, +17.3] |
| 95 %: mixed | 3.77 | 7.98 | 18.2 |
| against separate | -22.0 [-23.8, -20.2] | -32.9 [-34.2, -31.6] | -81.1 [-87.1, -72.4] |
| against atomic | -19.0 [-21.5, -16.4] | -54.7 [-56.8, -52.5] | -73.7 [-84.3, -56.0] |

Full house: 3,188 output tokens/s; +28.4 [+26.9, +29.9] % against separate; +25.3 [+24.2, +26.5] %
against atomic.

demo-cpu: 37.0 requests/s in a full house

| load | ITL p50 | ITL p99 | TTFT p50 |
|---|---|---|---|
| 20 %: mixed | 2.84 | 10.2 | 14.7 |
| against separate | -1.6 [-3.4, +0.4] | -16.6 [-18.7, -14.4] | -28.2 [-28.4, -28.0] |
| against atomic | +0.3 [-0.5, +1.2] | -25.0 [-27.7, -22.2] | +14.5 [+9.9, +19.4] |
| 40 %: mixed | 3.62 | 13.9 | 22.9 |
| against separate | -3.8 [-5.7, -1.8] | -21.7 [-23.0, -20.4] | -16.4 [-17.9, -15.0] |
| against atomic | +2.9 [+0.7, +5.1] | -30.8 [-33.6, -27.8] | +59.0 [+56.0, +62.0] |
| 60 %: mixed | 4.82 | 17.9 | 27.8 |
| against separate | -12.0 [-15.1, -8.7] | -22.0 [-25.0, -18.7] | -20.6 [-23.1, -18.1] |
| against atomic | +11.4 [+7.2, +15.8] | -35.8 [-38.2, -33.3] | +74.4 [+69.8, +79.2] |
| 80 %: mixed | 6.42 | 20.6 | 35.5 |
| against separate | -16.0 [-19.9, -11.8] | -21.7 [-25.3, -18.0] | -37.9 [-48.4, -25.3] |
| against atomic | +21.2 [+16.2, +26.5] | -38.9 [-40.3, -37.5] | +86.7 [+74.7, +99.5] |
| 95 %: mixed | 7.47 | 21.9 | 67.3 |
| against separate | -18.6 [-21.0, -16.2] | -18.8 [-19.9, -17.7] | -51.8 [-62.6, -37.9] |
| against atomic | +14.1 [+8.0, +20.5] | -40.0 [-41.3, -38.7] | +59.3 [+38.0, +83.9] |

Full house: 1,461 output tokens/s; +13.7 [+13.1, +14.3] % against separate; +0.1 [-0.7, +0.9] %
against atomic.

By this estimate, mixing takes a third to two fifths off the longest gaps of `separate`, and half or
more off those of `atomic`, at every load; the median gap of `atomic` gains 2 % on a quiet machine.
The first token pays for it against `atomic`, by up to a third, as long as that keeps up: a prompt's
loops are launches of their own. At 95 % the others queue, and mixing wins there too.

The demo model on two CPU cores has no weights to wait for, and a launch costs the host as much as
the device: mixing buys less there. The longest gaps are 17 to 22 % shorter than those of `separate`
and 25 to 40 % than those of `atomic`. But a full house has no more tokens than under `atomic`, and
from 60 % of the load on the median gap is 11 to 21 % longer than its. So against `atomic` mixing is
a trade on such a machine, shorter longest gaps for all the rest; against `separate` it is a gain at
every load.
"""

import argparse
from collections.abc import Iterator

from looped.bench.cells import number_cell
from looped.bench.page import table_head, table_row
from looped.bench.statistics import Numbers
from looped.simulation.capacity import full_house_rate
from looped.simulation.grid import Grid, Point, mean_numbers, run_grid
from looped.simulation.paired import paired_numbers
from looped.simulation.report import caution, interval_cell
from looped.simulation.runs import WorkloadPlan, cost_table
from looped.simulation.workload import Lengths

TABLES = ("ouro-1.4b-h200", "demo-cpu")
POLICIES = ("mixed", "separate", "atomic")
SIZES = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "prefill_chunk_size": 128}
PLAN = WorkloadPlan(
    num_planes=4, num_requests=100, prompt_tokens=Lengths(64, 256), output_tokens=Lengths(16, 64)
)
LOADS = (0.2, 0.4, 0.6, 0.8, 0.95)
SHOWN = ("itl_p50", "itl_p99", "ttft_p50")
THROUGHPUT = "output_tokens_per_second"


def load_rows(title: str, runs: list[list[Numbers]]) -> Iterator[str]:
    """`mixed` itself, and its change against every other policy."""
    mixed, *others = runs
    means = mean_numbers(mixed)
    cells = [number_cell(None if (mean := means[key]) is None else 1e3 * mean) for key in SHOWN]
    yield table_row(f"{title}: mixed", cells)
    for policy, own in zip(POLICIES[1:], others, strict=True):
        paired = paired_numbers(mixed, own)
        yield table_row(f"against {policy}", [interval_cell(paired.get(key)) for key in SHOWN])


def throughput_line(runs: list[list[Numbers]]) -> str:
    """The same of tokens per second, in words."""
    mixed, *others = runs
    changes = [
        f"{interval_cell(paired_numbers(mixed, own)[THROUGHPUT])} % against {policy}"
        for policy, own in zip(POLICIES[1:], others, strict=True)
    ]
    tokens = number_cell(mean_numbers(mixed)[THROUGHPUT])
    return f"Full house: {tokens} output tokens/s; {'; '.join(changes)}."


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", nargs="+", default=TABLES, help="cost tables")
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    for name in arguments.costs:
        costs = cost_table(name)
        grid = Grid(PLAN, costs, range(arguments.seeds))
        capacity = full_house_rate(grid, Point("mixed", SIZES))
        print(f"\n{name}: {capacity:.1f} requests/s in a full house\n", *caution(costs), sep="\n")
        print(*table_head("load", ["ITL p50", "ITL p99", "TTFT p50"]), sep="\n")
        for load in LOADS:
            points = [Point(policy, SIZES, rate=load * capacity) for policy in POLICIES]
            print(*load_rows(f"{100 * load:.0f} %", run_grid(grid, points)), sep="\n", flush=True)
        points = [Point(policy, SIZES, concurrency=16) for policy in POLICIES]
        print(f"\n{throughput_line(run_grid(grid, points))}", flush=True)


if __name__ == "__main__":
    main()
