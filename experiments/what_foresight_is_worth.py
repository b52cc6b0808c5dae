"""What is it worth to know ahead how many loops a token will run?

Question: where a launch has room for fewer decode rows than are ready, an order could let those go
first whose current token needs the fewest more loops (how long an answer will be, none knows). How
much sooner are answers complete if it knows that token's exit (`shortest-oracle`), looks one loop
ahead (`shortest-lookahead`), or goes by the depth alone (`shortest-blind`, `deepest-first`,
`shallowest-first`)? Such an order needs every record before the next launch (run_ahead 0): what
does that cost? And where exits are known, no head runs where nobody leaves, and no row rides past
its end: how much sooner are tokens then?
Method: simulated. Prompts of 16 to 64 tokens, 16 to 64 tokens out, depths of three families (P = 4)
known ahead; 60 requests a run, 16 at a time at most, budget 256, chunk 128. Orders: 4 decode rows a
launch at most, every launch read before the next, also under `mixed`; Poisson arrivals at 80 % of
the rate that `mixed` makes so in a closed loop of 16. Beside them `mixed` with one launch ahead
(its default), and without the limit. Exits: `mixed` without a limit on rows and with one launch
ahead; exits known ahead against the same exits decided on the device (exit mode `ouro`), at 80 % of
the rate of a full house that decides them so. Every seed gives all the same requests, arrivals and
depths. Changes in percent, the geometric mean over 40 seeds [95 % confidence interval of the
pairs]. ITL is the gap between tokens of a request, latency the time from arrival to last token.

    python -P experiments/what_foresight_is_worth.py

Result (2026-12-01; simulated, so any machine; 26 minutes of a shared, loaded core):

ouro-1.4b-h200, 4 decode rows a launch, against mixed

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| easy | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +23.1 [+5.6, +43.6] | -2.0 [-3.8, -0.3] | +12.8 [+9.6, +16.2] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +28.3 [+10.0, +49.5] | -0.9 [-2.8, +1.1] | +14.0 [+10.4, +17.8] |
| mixed, one launch ahead | -66.3 [-73.3, -57.4] | -24.5 [-26.9, -22.1] | -23.9 [-25.9, -21.8] |
| mixed without limit | -75.2 [-82.7, -64.4] | -22.2 [-26.2, -17.9] | -21.8 [-25.9, -17.5] |

| typical | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +28.0 [+11.3, +47.1] | -0.8 [-2.6, +1.1] | +8.8 [+6.4, +11.3] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +32.3 [+16.0, +50.9] | -0.1 [-2.1, +1.9] | +10.0 [+7.7, +12.5] |
| mixed, one launch ahead | -67.9 [-74.8, -59.0] | -24.6 [-27.1, -22.1] | -24.1 [-26.1, -22.1] |
| mixed without limit | -76.5 [-83.7, -66.1] | -21.7 [-25.7, -17.4] | -21.9 [-25.9, -17.6] |

| hard | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +30.0 [+14.5, +47.5] | +0.9 [-0.9, +2.7] | +6.2 [+4.3, +8.1] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +31.4 [+16.6, +48.1] | +1.8 [-0.1, +3.7] | +8.3 [+6.3, +10.4] |
| mixed, one launch ahead | -67.4 [-74.3, -58.6] | -24.6 [-27.0, -22.0] | -24.0 [-26.0, -22.0] |
| mixed without limit | -77.4 [-84.4, -67.2] | -21.6 [-25.7, -17.3] | -21.8 [-26.0, -17.4] |

ouro-1.4b-h200, exits known against exits decided

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| exits | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| easy | -0.1 [-0.1, -0.1] | -0.4 [-0.5, -0.2] | -0.4 [-0.5, -0.2] |
| typical | -0.1 [-0.1, -0.1] | -0.4 [-0.5, -0.3] | -0.5 [-0.7, -0.4] |
| hard | -0.1 [-0.1, -0.1] | -0.3 [-0.5, -0.2] | -0.5 [-0.7, -0.4] |

demo-cpu, 4 decode rows a launch, against mixed

| easy | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +6.9 [-4.9, +20.2] | -1.4 [-3.4, +0.7] | +13.4 [+9.9, +17.0] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +11.8 [-0.4, +25.4] | -0.6 [-2.6, +1.5] | +14.1 [+10.6, +17.8] |
| mixed, one launch ahead | -78.6 [-84.0, -71.4] | -44.4 [-47.3, -41.4] | -42.8 [-45.1, -40.5] |
| mixed without limit | -73.8 [-80.9, -64.2] | -20.2 [-24.8, -15.3] | -20.0 [-24.1, -15.7] |

| typical | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +18.4 [+9.1, +28.5] | -0.1 [-2.0, +1.7] | +9.3 [+7.0, +11.6] |
| shortest-lookahead | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shortest-blind | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| deepest-first | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] |
| shallowest-first | +21.3 [+11.0, +32.5] | +0.6 [-1.3, +2.5] | +10.6 [+8.4, +12.9] |
| mixed, one launch ahead | -78.3 [-83.8, -71.0] | -45.1 [-47.8, -42.2] | -43.3 [-45.4, -41.0] |
| mixed without limit | -73.6 [-80.8, -63.8] | -20.6 [-25.2, -15.7] | -20.2 [-24.2, -16.0] |

| hard | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| shortest-oracle | +15.2 [+6.2, +25.0] | +1.3 [-0.4, +3.0] | +7.0 [+5.1, +8.9] |
| shortest-lookahead | +0.0 [-0.0, +0.0] | +0.0 [-0.0, +0.0] | +0.0 [-0.0, +0.0] |
| shortest-blind | +0.0 [-0.0, +0.0] | +0.0 [-0.0, +0.0] | +0.0 [-0.0, +0.0] |
| deepest-first | +0.0 [-0.0, +0.0] | +0.0 [-0.0, +0.0] | +0.0 [-0.0, +0.0] |
| shallowest-first | +21.2 [+12.2, +31.0] | +1.5 [-0.2, +3.3] | +7.9 [+5.9, +9.9] |
| mixed, one launch ahead | -78.9 [-84.3, -71.6] | -45.0 [-47.9, -42.0] | -43.4 [-45.6, -41.1] |
| mixed without limit | -73.9 [-81.1, -63.9] | -20.4 [-25.2, -15.3] | -20.2 [-24.3, -15.9] |

demo-cpu, exits known against exits decided

| exits | ITL p99 | latency p50 | latency p95 |
|---|---|---|---|
| easy | -8.0 [-9.2, -6.8] | -10.5 [-11.1, -10.0] | -10.6 [-11.3, -9.8] |
| typical | -7.8 [-8.7, -6.9] | -11.6 [-12.3, -11.0] | -11.6 [-12.3, -10.9] |
| hard | -7.8 [-8.7, -6.8] | -12.1 [-12.7, -11.5] | -11.7 [-12.4, -10.9] |

By this estimate, to know the exit of the current token is worth next to nothing to such an order.
`shortest-lookahead`, `shortest-blind` and `deepest-first` change nothing against `mixed`.
`shortest-oracle` takes 2 % off the median latency with `easy` exits and nothing beyond chance with
the others; it adds 6 to 13 % to the 95th percentile of latency and 23 to 30 % to the 99th of gaps.
`shallowest-first`, which knows nothing, adds about as much to both, with the median within chance.
One launch ahead, which an order by depth gives up, takes 66 to 68 % off the 99th percentile of gaps
and 24 to 25 % off latency at the same rate of requests, and to have no limit (the default) 75 to
77 % and 22 %: either is far more than any order brings. To know exits ahead takes 0.5 % off latency
at most: the device decides, and what is left are heads that draw for nobody.

By the demo model's table on a CPU the three orders change nothing either; the oracle is within
chance in the median, for 7 to 13 % at the 95th percentile and gaps up to 18 % longer. One launch
ahead takes 78 to 79 % off the gaps and 43 to 45 % off latency, for the host takes about as long
there as the device. Exits known take 8 % off the gaps and 11 to 12 % off latency, which is too
much: every head is priced as one in which a row leaves, and a CPU's does nothing where none has.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

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
LIMITED = SIZES | {"max_decode_rows": 4, "run_ahead": 0}
LOAD = 0.8
PLAN = WorkloadPlan(
    num_planes=4, num_requests=60, prompt_tokens=Lengths(16, 64), output_tokens=Lengths(16, 64)
)
SHOWN = ("itl_p99", "latency_p50", "latency_p95")
COLUMNS = ("ITL p99", "latency p50", "latency p95")


def change_row(title: str, runs: Sequence[Numbers], baseline: Sequence[Numbers]) -> str:
    paired = paired_numbers(runs, baseline)
    return table_row(title, [interval_cell(paired.get(key)) for key in SHOWN])


def order_rows(grid: Grid) -> Iterator[str]:
    """Every order under the limit, and `mixed` in other ways, against `mixed` under it."""
    rate = LOAD * full_house_rate(grid, Point("mixed", LIMITED))
    others = {
        **{policy: Point(policy, LIMITED, rate) for policy in ORDERS},
        "mixed, one launch ahead": Point("mixed", LIMITED | {"run_ahead": 1}, rate),
        "mixed without limit": Point("mixed", LIMITED | {"max_decode_rows": None}, rate),
    }
    mixed, *runs = run_grid(grid, [Point("mixed", LIMITED, rate), *others.values()])
    for title, own in zip(others, runs, strict=True):
        yield change_row(title, own, mixed)


def wait_row(family: str, costs: CostModel, seeds: Sequence[int]) -> str:
    """Exits known against exits decided on the device, under `mixed` without a limit."""
    known, decided = (
        Grid(replace(PLAN, exits=family, exit_mode=mode), costs, seeds)
        for mode in (ExitMode.TRACE, ExitMode.OURO)
    )
    point = Point("mixed", SIZES, LOAD * full_house_rate(decided, Point("mixed", SIZES)))
    ((with_foresight,), (without,)) = (run_grid(grid, [point]) for grid in (known, decided))
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
        for family in FAMILIES:
            print(*table_head(family, COLUMNS), sep="\n")
            grid = Grid(replace(PLAN, exits=family), costs, seeds)
            print(*order_rows(grid), "", sep="\n", flush=True)
        print(f"{name}, exits known against exits decided\n", *caution(costs), sep="\n")
        print(*table_head("exits", COLUMNS), sep="\n")
        for family in FAMILIES:
            print(wait_row(family, costs, seeds), flush=True)


if __name__ == "__main__":
    main()
