"""How well does a simulator that was fitted on one run predict other runs of the same engine?

Question: with a cost table fitted to the launch log of one run, how far off are the simulated
makespan, median time to first token and median gap between tokens of runs that differ in policy,
load and lengths?
Method: one engine process, executables shared. A run under policy `mixed` with mixed lengths, in
bursts so that the house is now full and now nearly empty, is logged with a wait for every launch
and fitted (`fit_costs`). Then every case below is played three
times in real time, without waits, and simulated once with the same arrivals, on the engine's own
scheduler configuration, with the loops that the tokens of the first of the three had. Errors are
against the median of the three; p99 of the gaps is shown beside their spread. Times to first token
count from when a request was due, gaps and makespan to when the host could see the token.

    python experiments/simulator_prediction.py --model DIR [--threshold 0.5] [--table FILE]

Without --threshold tokens leave at the depths of the family `typical`, known ahead (exit mode
`trace`); with one the gate decides and is read. `--table FILE` keeps the fitted cost table.

Result: to be filled in with the trained demo model.
"""

import argparse
import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from looped.bench.engines import collector_frozen
from looped.bench.page import table_head, table_row
from looped.engine import LLMEngine
from looped.engine_config import EngineConfig
from looped.errors import LoopedError
from looped.launch_log import LaunchLog
from looped.launch_observer import LaunchObserver
from looped.loading import LoadedModel, load_folder
from looped.sched import CostModel, ExitOptions
from looped.simulation.fit import Fit, fit_costs
from looped.simulation.play import play
from looped.simulation.runs import WorkloadPlan, simulate
from looped.simulation.summary import Summary
from looped.simulation.workload import Lengths

logger = logging.getLogger("simulator_prediction")

NUM_RUNS = 3
PREDICTED = ("makespan", "ttft_p50", "itl_p50")
SPREAD = "itl_p99"


@dataclass(frozen=True)
class Case:
    """One way to load the engine."""

    title: str
    policy: str
    prompt_tokens: str
    output_tokens: str
    num_requests: int
    load: float
    """Share of the engine's requests per second in the fit run's closed loop; 0: a closed loop."""
    concurrency: int = 8
    seed: int = 0


FIT = Case("fit", "mixed", "8:300", "4:60", 200, 0.5, seed=100)
FULL_HOUSE = Case("full house", "mixed", "8:300", "4:60", 100, 0, concurrency=16, seed=101)
BURSTINESS = 2.0
"""Coefficient of variation of the gaps between the fit run's arrivals."""
CASES = (
    Case("mixed, 60 % load", "mixed", "64:256", "40:60", 60, 0.6, seed=1),
    Case("mixed, 90 % load, long prompts", "mixed", "300:440", "30:40", 60, 0.9, seed=2),
    Case("mixed, closed loop of 8", "mixed", "100", "50", 48, 0, seed=3),
    Case("separate, 60 % load", "separate", "64:256", "40:60", 60, 0.6, seed=1),
    Case("atomic, 60 % load", "atomic", "64:256", "40:60", 60, 0.6, seed=1),
    Case("separate, closed loop of 4", "separate", "200", "40", 40, 0, concurrency=4, seed=4),
)


class Engines:
    """Engines of one model on shared executables, warmed up by policy."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self._first = LLMEngine(loaded, config)
        self._first.warm_up()
        for policy in ("separate", "atomic"):
            self._first.with_options(policy=policy).warm_up()

    def build(self, policy: str, observer: LaunchObserver) -> LLMEngine:
        """A fresh engine that tells the observer."""
        first = self._first
        return LLMEngine(
            first.loaded,
            first.with_options(policy=policy).config,
            executables=first.runner.executables,
            observer=observer,
        )


def plan_of(case: Case, loaded: LoadedModel, rate: float | None) -> WorkloadPlan:
    return WorkloadPlan(
        num_planes=loaded.config.num_loops,
        num_requests=case.num_requests,
        prompt_tokens=Lengths.parse(case.prompt_tokens),
        output_tokens=Lengths.parse(case.output_tokens),
        rate=None if rate is None else case.load * rate,
        concurrency=case.concurrency if rate is None else None,
        vocab_size=loaded.config.vocab_size,
    )


def fit_on(engines: Engines, loaded: LoadedModel, exits: ExitOptions | None, source: str) -> Fit:
    """A cost table from one run; a full house before it warms up, and says what a load is."""
    full = plan_of(FULL_HOUSE, loaded, None).workload(FULL_HOUSE.seed)
    warm = play(lambda observer: engines.build(FIT.policy, observer), full, exits=exits)
    rate = Summary.of(warm.timeline, warm.arrivals).numbers["requests_per_second"]
    assert rate is not None
    plan = replace(plan_of(FIT, loaded, rate), burstiness=BURSTINESS)
    played = play(
        lambda observer: engines.build(FIT.policy, observer),
        plan.workload(FIT.seed),
        exits=exits,
        waits_for_device=True,
    )
    log = LaunchLog(Path("fit"), {"waits_for_device": True}, played.events)
    return fit_costs(log, name="demo-cpu", source=source)


def run_case(
    engines: Engines,
    loaded: LoadedModel,
    case: Case,
    costs: CostModel,
    exits: ExitOptions | None,
) -> tuple[list[Summary], Summary]:
    """Three measured runs, and the simulated one."""
    rate = _capacity(engines, loaded, case, costs) if case.load else None
    workload = plan_of(case, loaded, rate).workload(case.seed)
    measured = []
    for index in range(NUM_RUNS):
        logger.info("%s: run %d", case.title, index + 1)
        played = play(lambda observer: engines.build(case.policy, observer), workload, exits=exits)
        measured.append(Summary.of(played.timeline, played.arrivals))
        if index == 0:
            recorded = played.recorded(workload)
    config = engines.build(case.policy, LaunchObserver()).scheduler_config
    return measured, Summary.of(simulate(recorded, config, costs))


def _capacity(engines: Engines, loaded: LoadedModel, case: Case, costs: CostModel) -> float:
    """Requests per second of a full house under `mixed`, simulated: only the load hangs on it."""
    closed = Case(**{**vars(case), "concurrency": 16, "load": 0.0})
    workload = plan_of(closed, loaded, None).workload(case.seed)
    config = engines.build("mixed", LaunchObserver()).scheduler_config
    rate = Summary.of(simulate(workload, config, costs)).numbers["requests_per_second"]
    assert rate is not None
    return rate


def case_rows(case: Case, measured: Sequence[Summary], predicted: Summary) -> list[str]:
    rows = []
    for name in (*PREDICTED, SPREAD):
        values = [value for one in measured if (value := one.numbers[name]) is not None]
        guess = predicted.numbers[name]
        if len(values) < NUM_RUNS or guess is None:
            rows.append(table_row(f"{case.title}: {name}", ["-"] * 4))
            continue
        middle = median(values)
        rows.append(
            table_row(
                f"{case.title}: {name}",
                [
                    f"{1e3 * middle:.2f}",
                    f"{1e3 * min(values):.2f} to {1e3 * max(values):.2f}",
                    f"{1e3 * guess:.2f}",
                    f"{100 * (guess / middle - 1):+.1f} %",
                ],
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--table", type=Path, help="write the fitted cost table here")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    if arguments.table is not None and arguments.table.exists():
        raise LoopedError(f"{arguments.table} exists; choose another name")
    exits = None
    if arguments.threshold is not None:
        exits = ExitOptions(threshold=arguments.threshold, min_loops=1)
    loaded = load_folder(arguments.model)
    config = EngineConfig(max_model_len=512)
    engines = Engines(loaded, config)
    machine = f"{os.cpu_count()} {platform.machine()} cores, {datetime.now(UTC).date()}"
    threshold = "" if arguments.threshold is None else f" --threshold {arguments.threshold:g}"
    source = (
        f"experiments/simulator_prediction.py --model {arguments.model.name}{threshold}, {machine}"
    )
    with collector_frozen():
        fitted = fit_on(engines, loaded, exits, source)
        quality = {
            name: value for name, value in fitted.to_json().items() if name != "num_launches"
        }
        print(f"{machine}; fit: {json.dumps(quality)}")
        if arguments.table is not None:
            text = json.dumps(fitted.costs.to_json(), indent=2)
            arguments.table.write_text(text + "\n", encoding="utf-8")
        for line in table_head("", ["measured, ms", "three runs", "predicted, ms", "error"]):
            print(line)
        for case in CASES:
            measured, predicted = run_case(engines, loaded, case, fitted.costs, exits)
            print("\n".join(case_rows(case, measured, predicted)), flush=True)


if __name__ == "__main__":
    main()
