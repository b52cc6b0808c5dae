"""Where does `wavefront` bring first tokens sooner than `mixed`, and what does it cost?

Question: with several chunks of a prompt under way at successive depths, a prompt of n chunks needs
n + 3 launches instead of 4 n (P = 4). At which prompt lengths, chunks, budgets and loads is the
first token sooner for it, and what do decode rows pay? And is there anything in it that a larger
chunk does not give?
Method: simulated. One thing at a time is changed of a base: prompts of 512 tokens, 32 out, depths
`typical` and known ahead, chunk 64, budget 272, 16 requests at most, Poisson arrivals at 50 % of
the rate that `mixed` makes with this chunk in a closed loop of 16; 60 requests a run. `wavefront`
(one chunk a depth) is held against `mixed` with the same chunk, and against `mixed` with the
largest chunk that the budget allows beside a full house of decode rows, which makes launches as
long: budget - 15. Changes in percent, the geometric mean over 6 seeds [95 % confidence interval of
the pairs, which have the same requests and arrivals]. TTFT is the time from arrival to first token,
ITL the gap between tokens.

    python -P experiments/where_wavefront_pays.py

Result (2026-11-30; simulated, so any machine; three minutes of one core):

ouro-1.4b-h200

**ESTIMATE**: cost table ouro-1.4b-h200 was computed, not measured.

| | TTFT p50 | TTFT p95 | ITL p99 |
|---|---|---|---|
| base, against 64 | -60.8 [-61.8, -59.9] | -39.2 [-44.5, -33.3] | +2.8 [+0.2, +5.5] |
| base, against 257 | +31.5 [+27.5, +35.5] | +13.5 [+9.5, +17.7] | +1.1 [-0.4, +2.7] |
| prompt 64, against 64 | -0.8 [-3.4, +1.8] | +2.8 [-3.4, +9.5] | +0.6 [-1.6, +2.8] |
| prompt 64, against 257 | -0.8 [-3.4, +1.8] | +2.8 [-3.4, +9.5] | +0.6 [-1.6, +2.8] |
| prompt 128, against 64 | -24.9 [-28.3, -21.2] | -30.6 [-33.8, -27.2] | +6.5 [-2.2, +15.9] |
| prompt 128, against 257 | +14.1 [+11.7, +16.5] | +15.6 [+10.7, +20.7] | -4.1 [-6.0, -2.3] |
| prompt 2048, against 64 | -65.7 [-68.1, -63.1] | -39.7 [-47.4, -30.9] | +3.7 [-0.8, +8.4] |
| prompt 2048, against 257 | +9.6 [+7.3, +11.8] | +5.3 [+4.2, +6.5] | +1.5 [+0.1, +3.0] |
| prompt 16 to 1024, against 64 | -52.9 [-56.0, -49.5] | -45.6 [-55.9, -32.9] | +4.2 [+2.0, +6.4] |
| prompt 16 to 1024, against 257 | +8.0 [+1.4, +15.0] | -3.3 [-7.1, +0.7] | +2.2 [+0.9, +3.5] |
| chunk 32, against 32 | -61.5 [-64.4, -58.5] | -57.8 [-64.7, -49.7] | +10.7 [-0.9, +23.7] |
| chunk 32, against 257 | +114.1 [+111.1, +117.1] | +48.8 [+41.3, +56.6] | +1.7 [-0.2, +3.5] |
| chunk 128, against 128 | -28.6 [-32.1, -24.9] | -10.0 [-17.7, -1.5] | +10.5 [+0.0, +22.0] |
| chunk 128, against 257 | +6.4 [+4.8, +8.0] | +2.7 [+1.8, +3.7] | -0.3 [-1.6, +1.1] |
| budget 144, against 64 | -43.2 [-44.6, -41.8] | -22.7 [-27.5, -17.6] | -0.1 [-0.8, +0.7] |
| budget 144, against 129 | +7.6 [+5.4, +9.8] | +3.0 [+1.0, +5.0] | +0.3 [-0.1, +0.7] |
| budget 528, against 64 | -45.9 [-47.4, -44.4] | -54.4 [-59.7, -48.3] | +36.8 [+15.5, +61.9] |
| budget 528, against 513 | +115.1 [+105.4, +125.2] | +51.8 [+45.6, +58.3] | +6.0 [-0.1, +12.4] |
| load 25 %, against 64 | -51.5 [-53.9, -49.1] | -47.9 [-50.5, -45.3] | +19.9 [+11.8, +28.6] |
| load 25 %, against 257 | +28.4 [+25.1, +31.7] | +17.2 [+10.5, +24.4] | +1.5 [-0.1, +3.2] |
| load 90 %, against 64 | -39.8 [-50.9, -26.4] | -27.3 [-36.0, -17.6] | +0.7 [-0.4, +1.8] |
| load 90 %, against 257 | +15.4 [+11.4, +19.5] | +10.9 [+6.7, +15.3] | +1.1 [+0.8, +1.4] |
| one at a time, against 64 | -42.8 [-42.8, -42.8] | -42.8 [-42.8, -42.8] | +0.0 [+0.0, +0.0] |
| one at a time, against 257 | +27.2 [+27.2, +27.2] | +27.2 [+27.2, +27.2] | +0.0 [-0.0, +0.0] |

demo-cpu

| | TTFT p50 | TTFT p95 | ITL p99 |
|---|---|---|---|
| base, against 64 | -58.8 [-63.9, -53.1] | -37.1 [-44.7, -28.4] | +3.2 [+0.1, +6.5] |
| base, against 257 | +28.2 [+23.7, +32.9] | +15.0 [+11.2, +18.9] | +1.5 [-1.1, +4.3] |
| prompt 64, against 64 | +0.8 [-1.9, +3.5] | +0.5 [-2.3, +3.4] | -0.5 [-4.7, +3.9] |
| prompt 64, against 257 | -14.6 [-18.0, -11.1] | -1.6 [-5.3, +2.3] | -6.9 [-15.8, +2.9] |
| prompt 128, against 64 | -19.6 [-27.6, -10.6] | -28.1 [-34.0, -21.7] | +7.4 [+1.8, +13.4] |
| prompt 128, against 257 | +7.7 [+4.5, +11.0] | +14.1 [+6.9, +21.7] | -5.9 [-9.5, -2.2] |
| prompt 2048, against 64 | -44.5 [-54.4, -32.5] | -35.1 [-44.1, -24.8] | +28.4 [+16.2, +41.9] |
| prompt 2048, against 257 | +9.9 [+5.2, +14.7] | +5.3 [+3.7, +6.9] | +0.8 [-1.9, +3.6] |
| prompt 16 to 1024, against 64 | -36.6 [-44.7, -27.3] | -45.2 [-54.5, -34.1] | +5.4 [+0.6, +10.5] |
| prompt 16 to 1024, against 257 | +11.3 [+5.9, +17.1] | -2.7 [-7.3, +2.2] | +1.4 [-1.3, +4.2] |
| chunk 32, against 32 | -56.1 [-60.8, -50.9] | -53.8 [-62.5, -43.0] | +18.0 [+0.8, +38.1] |
| chunk 32, against 257 | +114.0 [+105.6, +122.6] | +43.5 [+31.9, +56.2] | +3.0 [-0.7, +6.8] |
| chunk 128, against 128 | -22.0 [-27.1, -16.7] | -8.1 [-13.1, -2.8] | +11.8 [+0.5, +24.3] |
| chunk 128, against 257 | +6.7 [+4.6, +8.9] | +3.9 [+2.4, +5.4] | -0.2 [-1.7, +1.4] |
| budget 144, against 64 | -39.7 [-43.1, -36.1] | -14.3 [-20.7, -7.4] | +4.3 [-0.2, +9.1] |
| budget 144, against 129 | +7.7 [+4.6, +11.0] | +4.7 [+3.0, +6.5] | -0.1 [-1.1, +0.9] |
| budget 528, against 64 | -39.6 [-48.4, -29.3] | -52.5 [-58.5, -45.8] | +31.1 [+13.6, +51.2] |
| budget 528, against 513 | +110.1 [+96.6, +124.6] | +50.3 [+42.3, +58.7] | +10.1 [-1.7, +23.4] |
| load 25 %, against 64 | -18.1 [-33.2, +0.5] | -46.2 [-49.2, -42.9] | +29.1 [+9.6, +52.1] |
| load 25 %, against 257 | +28.1 [+21.8, +34.7] | +18.5 [+15.8, +21.3] | +4.3 [+0.4, +8.3] |
| load 90 %, against 64 | -37.0 [-52.9, -15.8] | -24.5 [-35.5, -11.7] | +0.4 [-0.5, +1.4] |
| load 90 %, against 257 | +13.1 [+7.7, +18.8] | +7.1 [+4.6, +9.7] | -0.3 [-0.8, +0.1] |
| one at a time, against 64 | -5.2 [-5.2, -5.2] | -5.2 [-5.2, -5.2] | +0.0 [+0.0, +0.0] |
| one at a time, against 257 | +25.3 [+25.3, +25.3] | +25.3 [+25.3, +25.3] | -0.0 [-0.0, +0.0] |

By this estimate it takes a quarter to two thirds off the median first token of `mixed` with the
same chunk, as soon as a prompt has several chunks, at every load; the longest gaps between tokens
grow by nothing to 37 %, most where the budget leaves room for many rows. But launches of that
length serve `mixed` better with a larger chunk: ceil(512 / 257) * 4 = 8 launches instead of 8 + 3.
Against that one no first token is sooner beyond chance. The longest gaps are 1 to 2 % longer beyond
chance in three rows (prompts of 2048, prompts of 16 to 1024, 90 % load), 4 % shorter with prompts
of 128, and not told apart in the others. So it pays only where a chunk has to stay small for
another reason.

On the demo model's table, a CPU's, a fifth to three fifths go off the median first token of `mixed`
with the same chunk where prompts have several chunks and the load is half or more. On a quiet
machine that gain nearly disappears: 18 % within chance at 25 % load (of the 95th percentile still
46 %), 5 % one at a time. The longest gaps are up to 31 % longer. Against the largest chunk there
are two exceptions. Prompts of 64 have their median first token 15 % sooner: not for the window, as
they are one chunk; our guess is the bucket of 80 rows of a chunk of 64 beside decode rows, which
the large chunk's ladder lacks. Prompts of 128 have their longest gaps 6 % shorter, for a median
first token 8 % later. Elsewhere it is nothing or worse.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from looped.measure.page import table_head, table_row
from looped.sched import CostModel
from looped.simulation.loads.workload import Lengths
from looped.simulation.report import caution, interval_cell
from looped.simulation.runs import WorkloadPlan, cost_table
from looped.simulation.sweeps.capacity import full_house_rate
from looped.simulation.sweeps.grid import Grid, Point, run_grid
from looped.simulation.sweeps.paired import paired_numbers

TABLES = ("ouro-1.4b-h200", "demo-cpu")
NUM_SEQS = 16
SHOWN = ("ttft_p50", "ttft_p95", "itl_p99")
PLAN = WorkloadPlan(num_planes=4, num_requests=60, output_tokens=Lengths(32, 32))


@dataclass(frozen=True)
class Case:
    """Sizes and a load."""

    title: str = "base"
    prompt_tokens: Lengths = field(default_factory=lambda: Lengths(512, 512))
    chunk: int = 64
    budget: int = 272
    load: float = 0.5
    """Share of the rate of a full house; 0: one request at a time."""

    @property
    def large_chunk(self) -> int:
        """The largest that `mixed` may have in this budget."""
        return self.budget - NUM_SEQS + 1


BASE = Case()
CASES = (
    BASE,
    *(replace(BASE, title=f"prompt {n}", prompt_tokens=Lengths(n, n)) for n in (64, 128, 2048)),
    replace(BASE, title="prompt 16 to 1024", prompt_tokens=Lengths(16, 1024)),
    *(replace(BASE, title=f"chunk {n}", chunk=n) for n in (32, 128)),
    *(replace(BASE, title=f"budget {n}", budget=n) for n in (144, 528)),
    *(replace(BASE, title=f"load {100 * n:.0f} %", load=n) for n in (0.25, 0.9)),
    replace(BASE, title="one at a time", load=0),
)


def case_rows(case: Case, costs: CostModel, num_seeds: int) -> Iterator[str]:
    """Changes of `wavefront` against `mixed` with the same chunk, and with one as large as fits."""
    grid = Grid(replace(PLAN, prompt_tokens=case.prompt_tokens), costs, range(num_seeds))
    sizes = {"max_num_seqs": NUM_SEQS, "max_num_batched_tokens": case.budget}
    same = sizes | {"prefill_chunk_size": case.chunk}
    large = sizes | {"prefill_chunk_size": case.large_chunk}
    load = (
        {"concurrency": 1}
        if not case.load
        else {"rate": case.load * full_house_rate(grid, Point("mixed", same))}
    )
    points = [Point("wavefront", same), Point("mixed", same), Point("mixed", large)]
    wavefront, *others = run_grid(grid, [replace(point, **load) for point in points])
    for chunk, runs in zip((case.chunk, case.large_chunk), others, strict=True):
        paired = paired_numbers(wavefront, runs)
        yield table_row(
            f"{case.title}, against {chunk}", [interval_cell(paired.get(name)) for name in SHOWN]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--costs", nargs="+", default=TABLES, help="cost tables")
    parser.add_argument("--seeds", type=int, default=6)
    arguments = parser.parse_args()
    for name in arguments.costs:
        costs = cost_table(name)
        print(f"\n{name}\n", *caution(costs), sep="\n")
        print(*table_head("", ["TTFT p50", "TTFT p95", "ITL p99"]), sep="\n")
        for case in CASES:
            print(*case_rows(case, costs, arguments.seeds), sep="\n", flush=True)


if __name__ == "__main__":
    main()
