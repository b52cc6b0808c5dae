"""What is it worth to know ahead how many loops a token will run?

Question: where a launch has room for fewer decode rows than are ready, an order could let those go
first whose current token needs the fewest more loops (how long an answer will be, none knows). How
much sooner are answers complete if it knows that token's exit (`shortest-oracle`), looks one loop
ahead (`shortest-lookahead`), or goes by the depth alone (`shortest-blind`, `deepest-first`,
`shallowest-first`)? And where exits are known, the host need not wait for signals: how much sooner
are tokens then?
Method: simulated. Prompts of 16 to 64 tokens, 16 to 64 tokens out, depths of three families (P = 4)
known ahead; 60 requests a run, 16 at a time at most, budget 256, chunk 128. Orders: 4 decode rows a
launch at most, Poisson arrivals at 80 % of the rate that `mixed` makes so in a closed loop of 16;
once with LM-head launches of four tokens where others are still in the loops. Waits: `mixed`
without a limit on rows; exits known ahead against the same exits read after every loop (exit mode
`ouro`), at 80 % of the rate of a full house that reads them. Every seed gives all the same
requests, arrivals and depths. Changes in percent, the geometric mean over 40 seeds [95 %
confidence interval of the pairs]. ITL is the gap between tokens of a request, latency the time from
arrival to last token.

    python -P experiments/what_foresight_is_worth.py

Result (2026-11-30; simulated, so any machine; 19 minutes of a shared core):

ouro-1.4b-h200, 4 decode rows a launch, against mixed

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| easy | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +21.1 [+5.3, +39.3] | -2.1 [-3.9, -0.3] | +12.6 [+9.4, +15.9] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +23.8 [+7.2, +43.0] | -1.3 [-3.3, +0.9] | +14.0 [+10.3, +17.9] |
| mixed without limit | -75.2 [-82.6, -64.4] | -22.0 [-26.1, -17.6] | -22.2 [-26.4, -17.9] |

| typical | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +27.5 [+12.2, +44.9] | -0.5 [-2.5, +1.5] | +9.2 [+6.8, +11.6] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +33.7 [+16.6, +53.4] | -0.0 [-2.0, +2.0] | +10.4 [+8.0, +12.8] |
| mixed without limit | -76.0 [-83.3, -65.4] | -21.3 [-25.4, -17.0] | -22.4 [-26.5, -18.0] |

| hard | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +28.7 [+13.7, +45.7] | +0.8 [-1.1, +2.7] | +6.9 [+5.1, +8.6] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +32.7 [+17.5, +49.9] | +1.8 [-0.1, +3.8] | +8.7 [+6.8, +10.7] |
| mixed without limit | -77.0 [-84.1, -66.7] | -21.4 [-25.5, -17.1] | -22.4 [-26.6, -18.0] |

| typical, LM head by four | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +15.6 [+10.7, +20.8] | +0.8 [-0.6, +2.2] | +12.2 [+9.3, +15.2] |
| shortest-lookahead | -20.1 [-23.6, -16.5] | +1.6 [+0.9, +2.4] | +1.7 [+0.9, +2.5] |
| shortest-blind | -20.1 [-23.6, -16.5] | +1.6 [+0.9, +2.4] | +1.7 [+0.9, +2.5] |
| deepest-first | -20.1 [-23.6, -16.5] | +1.6 [+0.9, +2.4] | +1.7 [+0.9, +2.5] |
| shallowest-first | +3.8 [-0.4, +8.1] | -1.0 [-2.4, +0.4] | +7.0 [+4.7, +9.3] |
| mixed without limit | -65.7 [-71.7, -58.4] | -20.2 [-23.8, -16.5] | -19.6 [-23.1, -16.1] |

ouro-1.4b-h200, exits known against exits read

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| exits | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| easy | -14.1 [-14.3, -13.9] | -14.6 [-15.1, -14.0] | -14.2 [-14.8, -13.7] |
| typical | -13.8 [-14.0, -13.6] | -14.3 [-14.7, -13.8] | -14.1 [-14.6, -13.6] |
| hard | -13.6 [-13.8, -13.5] | -14.2 [-14.7, -13.7] | -14.0 [-14.5, -13.5] |

demo-cpu, 4 decode rows a launch, against mixed

| easy | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +11.4 [-0.9, +25.2] | -2.3 [-4.1, -0.4] | +14.2 [+10.5, +18.0] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +17.1 [+4.5, +31.2] | -1.2 [-3.3, +1.0] | +14.9 [+11.3, +18.7] |
| mixed without limit | -73.3 [-80.5, -63.4] | -20.3 [-24.9, -15.4] | -19.1 [-23.1, -14.9] |

| typical | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +18.5 [+8.5, +29.4] | +0.7 [-1.0, +2.3] | +9.2 [+6.9, +11.6] |
| shortest-lookahead | -0.0 [-0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [-0.0, +0.0] |
| shortest-blind | -0.0 [-0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [-0.0, +0.0] |
| deepest-first | -0.0 [-0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [-0.0, +0.0] |
| shallowest-first | +22.9 [+12.6, +34.0] | +0.9 [-0.9, +2.7] | +9.5 [+7.3, +11.7] |
| mixed without limit | -72.9 [-80.3, -62.7] | -20.2 [-24.9, -15.3] | -19.1 [-23.1, -14.9] |

| hard | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +16.8 [+7.0, +27.5] | +0.9 [-1.0, +2.8] | +6.2 [+4.1, +8.3] |
| shortest-lookahead | +0.0 [-0.0, +0.0] | +0.0 [-0.1, +0.1] | -0.0 [-0.1, +0.0] |
| shortest-blind | +0.0 [-0.0, +0.0] | +0.0 [-0.1, +0.1] | -0.0 [-0.1, +0.0] |
| deepest-first | +0.0 [-0.0, +0.0] | +0.0 [-0.1, +0.1] | -0.0 [-0.1, +0.0] |
| shallowest-first | +21.3 [+10.8, +32.9] | +0.6 [-1.3, +2.6] | +6.7 [+4.6, +8.9] |
| mixed without limit | -73.1 [-80.6, -62.8] | -20.1 [-24.9, -15.0] | -19.1 [-23.1, -14.8] |

| typical, LM head by four | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +26.3 [+20.1, +32.8] | +3.9 [+1.9, +5.9] | +16.4 [+13.2, +19.8] |
| shortest-lookahead | -14.3 [-18.5, -9.9] | +2.4 [+1.6, +3.2] | +3.1 [+2.2, +3.9] |
| shortest-blind | -14.3 [-18.5, -9.9] | +2.4 [+1.6, +3.2] | +3.1 [+2.2, +3.9] |
| deepest-first | -14.3 [-18.5, -9.9] | +2.4 [+1.6, +3.2] | +3.1 [+2.2, +3.9] |
| shallowest-first | +5.5 [+0.9, +10.4] | -1.9 [-3.0, -0.8] | +8.0 [+5.9, +10.1] |
| mixed without limit | -58.6 [-66.4, -49.0] | -14.8 [-18.2, -11.2] | -12.2 [-15.2, -9.1] |

demo-cpu, exits known against exits read

| exits | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| easy | -17.7 [-18.6, -16.7] | -22.8 [-23.8, -21.8] | -22.7 [-23.5, -21.8] |
| typical | -16.9 [-17.9, -15.9] | -23.4 [-24.1, -22.7] | -22.5 [-23.4, -21.6] |
| hard | -16.6 [-17.6, -15.7] | -23.4 [-24.2, -22.7] | -22.5 [-23.4, -21.7] |

By this estimate, to know the exit of the current token is worth next to nothing to such an order.
Where the LM head goes at once, `shortest-lookahead`, `shortest-blind` and `deepest-first` change
nothing against `mixed`. `shortest-oracle` takes 2 % off the median latency with `easy` exits and
nothing beyond chance with the others; it adds 7 to 13 % to the 95th percentile of latency and 21 to
29 % to the 99th of gaps. `shallowest-first`, which knows nothing, adds about as much to both, with
the median within chance. With LM heads by four, the first three take 20 % off the 99th percentile
of gaps for 2 % more latency, all alike: the look ahead adds nothing. The oracle makes those gaps
16 % longer. Without the limit (the default) the 99th percentile of gaps is 66 to 77 % shorter and
latency 20 to 22 %, far more than any order brings back. Not to wait for signals takes 14 to 15 %
off gaps and latency under `mixed` without the limit.

By the demo model's table on a CPU the three orders change nothing either where the LM head goes at
once, and the oracle takes 2 % off the median with `easy` exits alone, for 6 to 14 % at the 95th
percentile and gaps 17 to 19 % longer with the other exits. With LM heads by four the three take
14 % off the 99th percentile of gaps for 2 to 3 % more latency, all alike; the oracle is worse in
all three columns; and `shallowest-first` takes 2 % off the median latency, for 8 % more at the 95th
percentile and gaps 6 % longer. Without the limit gaps are 59 to 73 % shorter and latency 12 to
20 %. Not to wait for signals takes 17 to 18 % off the gaps and 22 to 23 % off latency.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from looped.measure.page import table_head, table_row
from looped.measure.statistics import Numbers
from looped.sched import CostModel, ExitMode
from looped.simulation.loads.workload import Lengths
from looped.simulation.report import caution, interval_cell
from looped.simulation.runs import WorkloadPlan, cost_table
from looped.simulation.sweeps.capacity import full_house_rate
from looped.simulation.sweeps.grid import Grid, Point, run_grid
from looped.simulation.sweeps.paired import paired_numbers

TABLES = ("ouro-1.4b-h200", "demo-cpu")
FAMILIES = ("easy", "typical", "hard")
ORDERS = (
    "shortest-oracle",
    "shortest-lookahead",
    "shortest-blind",
    "deepest-first",
    "shallowest-first",
)
SIZES = {"max_num_seqs": 16, "max_num_batched_tokens": 256, "prefill_chunk_size": 128}
LIMITED = SIZES | {"max_decode_rows": 4}
LOAD = 0.8
PLAN = WorkloadPlan(
    num_planes=4, num_requests=60, prompt_tokens=Lengths(16, 64), output_tokens=Lengths(16, 64)
)
SHOWN = ("itl_p99", "latency_p50", "latency_p95")
COLUMNS = ("ITL p99", "latency p50", "latency p95")


def change_row(title: str, runs: Sequence[Numbers], baseline: Sequence[Numbers]) -> str:
    paired = paired_numbers(runs, baseline)
    return table_row(title, [interval_cell(paired.get(key)) for key in SHOWN])


def order_rows(grid: Grid, sizes: dict[str, Any]) -> Iterator[str]:
    """Every order under the limit, and `mixed` without it, against `mixed` under it."""
    rate = LOAD * full_house_rate(grid, Point("mixed", sizes))
    points = [Point(policy, sizes, rate) for policy in ("mixed", *ORDERS)]
    free = sizes | {"max_decode_rows": None}
    mixed, *others = run_grid(grid, [*points, Point("mixed", free, rate)])
    for title, runs in zip((*ORDERS, "mixed without limit"), others, strict=True):
        yield change_row(title, runs, mixed)


def wait_row(family: str, costs: CostModel, seeds: Sequence[int]) -> str:
    """Exits known against exits read, under `mixed` without a limit."""
    known, read = (
        Grid(replace(PLAN, exits=family, exit_mode=mode), costs, seeds)
        for mode in (ExitMode.TRACE, ExitMode.OURO)
    )
    point = Point("mixed", SIZES, LOAD * full_house_rate(read, Point("mixed", SIZES)))
    ((with_foresight,), (without,)) = (run_grid(grid, [point]) for grid in (known, read))
    return change_row(family, with_foresight, without)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", nargs="+", default=TABLES, help="cost tables")
    parser.add_argument("--seeds", type=int, default=40)
    arguments = parser.parse_args()
    seeds = range(arguments.seeds)
    for name in arguments.costs:
        costs = cost_table(name)
        print(f"\n{name}, 4 decode rows a launch, against mixed\n", *caution(costs), sep="\n")
        cases = [(family, family, LIMITED) for family in FAMILIES]
        batched = LIMITED | {"min_coda_batch_size": 4}
        for title, family, sizes in [*cases, ("typical, LM head by four", "typical", batched)]:
            print(*table_head(title, COLUMNS), sep="\n")
            grid = Grid(replace(PLAN, exits=family), costs, seeds)
            print(*order_rows(grid, sizes), "", sep="\n", flush=True)
        print(f"{name}, exits known against exits read\n", *caution(costs), sep="\n")
        print(*table_head("exits", COLUMNS), sep="\n")
        for family in FAMILIES:
            print(wait_row(family, costs, seeds), flush=True)


if __name__ == "__main__":
    main()
