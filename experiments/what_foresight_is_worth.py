"""What is it worth to know ahead how many loops a token will run?

Question: foresight could help twice. Where a launch has room for fewer decode rows than are ready,
an order could let those go first that need the least: how much sooner are answers complete if it
knows every exit ahead (`shortest-oracle`), one loop ahead (`shortest-lookahead`) or nothing of it
(`shortest-blind`), or goes by depth alone? And where exits are known, the host need not wait for
signals: how much sooner are tokens then?
Method: simulated. Prompts of 16 to 64 tokens, 16 to 64 tokens out, depths of three families (P = 4)
known ahead; 60 requests a run, 16 at a time at most, budget 256, chunk 128. Orders: 4 decode rows a
launch at most, Poisson arrivals at 80 % of the rate that `mixed` makes so in a closed loop of 16;
once with LM-head launches of four tokens where others are still in the loops. Waits: no limit on
rows, the same share of that rate; exits known ahead against the same exits read after every loop
(exit mode `ouro`). Every seed gives all the same requests, arrivals and depths. Changes in percent,
the geometric mean over 10 seeds [95 % confidence interval of the pairs]. ITL is the gap between
tokens of a request, latency the time from arrival to last token.

    python -P experiments/what_foresight_is_worth.py

Result (2026-11-30; simulated, so any machine; three minutes of one core):

ouro-1.4b-h200, 4 decode rows a launch, against mixed

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| easy | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +10.7 [-19.8, +53.0] | -5.4 [-10.9, +0.5] | +10.3 [+4.5, +16.6] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +20.7 [-12.3, +66.2] | -4.2 [-9.3, +1.3] | +11.9 [+5.0, +19.3] |
| mixed without limit | -75.3 [-89.1, -44.1] | -22.2 [-30.8, -12.4] | -20.1 [-28.2, -11.1] |

| typical | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +18.2 [-17.8, +70.1] | -3.7 [-7.7, +0.4] | +6.9 [+2.0, +12.1] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +17.2 [-18.9, +69.5] | -3.6 [-8.1, +1.2] | +7.4 [+3.2, +11.7] |
| mixed without limit | -77.6 [-90.4, -47.7] | -22.3 [-30.4, -13.3] | -20.4 [-28.8, -10.9] |

| hard | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +22.6 [-8.7, +64.6] | -1.4 [-4.8, +2.1] | +4.3 [+1.0, +7.6] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +26.2 [-6.0, +69.5] | +0.4 [-2.7, +3.6] | +4.4 [+1.5, +7.4] |
| mixed without limit | -77.7 [-90.6, -47.0] | -22.6 [-30.3, -14.1] | -20.5 [-29.3, -10.6] |

| typical, LM head by four | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +4.7 [-3.9, +14.2] | -1.3 [-4.2, +1.8] | +11.0 [+3.9, +18.6] |
| shortest-lookahead | -19.2 [-29.3, -7.7] | +1.2 [+0.0, +2.4] | +0.2 [-1.1, +1.5] |
| shortest-blind | -19.2 [-29.3, -7.7] | +1.2 [+0.0, +2.4] | +0.2 [-1.1, +1.5] |
| deepest-first | -19.2 [-29.3, -7.7] | +1.2 [+0.0, +2.4] | +0.2 [-1.1, +1.5] |
| shallowest-first | -0.4 [-11.1, +11.7] | -1.3 [-4.2, +1.7] | +7.4 [+1.7, +13.4] |
| mixed without limit | -65.6 [-76.4, -49.7] | -21.1 [-29.3, -12.1] | -17.8 [-24.9, -10.0] |

ouro-1.4b-h200, exits known against exits read

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| exits | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| easy | -13.8 [-14.1, -13.6] | -14.7 [-16.3, -13.0] | -13.8 [-14.1, -13.4] |
| typical | -13.8 [-14.2, -13.4] | -14.1 [-14.8, -13.3] | -13.6 [-13.9, -13.2] |
| hard | -13.6 [-13.9, -13.3] | -14.0 [-14.9, -13.1] | -13.5 [-13.9, -13.0] |

demo-cpu, 4 decode rows a launch, against mixed

| easy | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +16.5 [-10.0, +50.8] | -5.3 [-11.4, +1.1] | +11.5 [+4.6, +18.9] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +12.0 [-14.0, +45.7] | -4.5 [-10.2, +1.6] | +13.6 [+6.9, +20.8] |
| mixed without limit | -73.2 [-87.0, -44.8] | -21.4 [-31.0, -10.6] | -17.1 [-24.7, -8.7] |

| typical | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +15.2 [-13.6, +53.6] | -3.2 [-7.0, +0.7] | +7.9 [+3.4, +12.6] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +24.0 [-8.1, +67.4] | -2.9 [-6.6, +0.9] | +9.2 [+4.5, +14.1] |
| mixed without limit | -72.9 [-87.3, -42.1] | -21.3 [-31.5, -9.6] | -17.3 [-24.5, -9.3] |

| hard | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +20.4 [-7.0, +55.8] | -1.5 [-4.1, +1.3] | +7.5 [+2.8, +12.4] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +26.6 [-3.9, +67.0] | -1.5 [-4.1, +1.1] | +7.8 [+3.1, +12.8] |
| mixed without limit | -73.3 [-87.4, -43.0] | -21.9 [-31.9, -10.5] | -17.2 [-25.1, -8.5] |

| typical, LM head by four | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +20.4 [+8.1, +34.2] | +2.6 [-0.2, +5.4] | +18.8 [+9.1, +29.4] |
| shortest-lookahead | -15.6 [-26.9, -2.6] | +0.4 [-1.2, +2.1] | +1.7 [-1.2, +4.7] |
| shortest-blind | -15.6 [-26.9, -2.6] | +0.4 [-1.2, +2.1] | +1.7 [-1.2, +4.7] |
| deepest-first | -15.6 [-26.9, -2.6] | +0.4 [-1.2, +2.1] | +1.7 [-1.2, +4.7] |
| shallowest-first | -0.2 [-11.4, +12.4] | -3.9 [-6.8, -0.9] | +8.9 [+2.4, +15.8] |
| mixed without limit | -58.0 [-72.3, -36.5] | -17.1 [-24.8, -8.6] | -10.9 [-15.5, -6.0] |

demo-cpu, exits known against exits read

| exits | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| easy | -17.6 [-19.5, -15.6] | -21.6 [-22.7, -20.3] | -22.9 [-25.4, -20.4] |
| typical | -17.7 [-20.0, -15.4] | -22.7 [-23.8, -21.7] | -22.9 [-25.4, -20.3] |
| hard | -17.3 [-19.3, -15.3] | -22.8 [-23.8, -21.9] | -22.6 [-25.3, -19.8] |

By this estimate foresight is worth nothing to an order. Where the LM head goes at once, `mixed`
under a limit serves its oldest four, and with a look one loop ahead, with none, or by depth, the
same four go first. The oracle takes up to 5 % off the median latency, all within chance, and adds 4
to 11 % to the 95th percentile; turns by depth, which know nothing, do as much. With LM heads by
four, deepest first takes a fifth off the longest gaps, and a look ahead adds nothing to it. The
limit itself costs far more than any order brings back, and without it (the default) every ready row
is in every launch, so orders do not differ. Not to wait for signals is worth 14 %, whatever the
order. The demo model's table on a CPU says the same of every order; there the waits are worth 17 to
23 %, since the host has more to do between two launches.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from looped.bench.page import table_head, table_row
from looped.bench.statistics import Numbers
from looped.sched import CostModel, ExitMode
from looped.simulation.capacity import full_house_rate
from looped.simulation.grid import Grid, Point, run_grid
from looped.simulation.paired import paired_numbers
from looped.simulation.report import caution, interval_cell
from looped.simulation.runs import WorkloadPlan, cost_table
from looped.simulation.workload import Lengths

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
    parser.add_argument("--seeds", type=int, default=10)
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
