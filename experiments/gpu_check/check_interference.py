"""Atomic, separate and mixed with prompts arriving under decoders, by the benchmark's instrument.

One run of an arm after one that compiles what it needs: a first look and no benchmark, which takes
pairs in several processes (`looped bench interference`). The rules for single runs are held.
"""

from engines_here import random_model
from report import Outcome, Recorder

from looped.bench.arms import ARMS, BASELINE
from looped.bench.engine_point import Point
from looped.bench.engines import counting_compilations
from looped.bench.interference.arm_metrics import METRICS, measure
from looped.bench.interference.validity import check_run
from looped.bench.interference.worker import Bench
from looped.bench.runs import Place, Run
from looped.measure.cells import NOTHING
from looped.measure.statistics import Latencies
from looped.pallas_kernels import resolve_backend

NAMES = {BASELINE: "decoders alone", "A2": "mixed", "A0": "atomic", "A1": "separate"}
"""Names of the checks by arm, in the order in which they run."""
SHOWN = (
    "stall_factor",
    "interference_per_prompt",
    "ttft_prompt",
    "launches_per_token",
    "host_wait_per_token",
    "host_gap",
)
"""Metrics that stand in the report beside the plain ones."""


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    loaded = random_model(is_rehearsal=is_rehearsal, layers="unrolled")
    num_decoders, prompt_tokens, budget, num_prompts = (
        (2, 20, 32, 2) if is_rehearsal else (8, 512, 256, 14)
    )
    point = Point.derive(
        model=loaded.folder.name,
        dtype=loaded.dtype,
        kv_cache_dtype="float32" if is_rehearsal else "bfloat16",
        attention_backend=resolve_backend("auto", "cpu" if is_rehearsal else "gpu"),
        layers=loaded.layers,
        num_planes=loaded.config.num_loops,
        num_decoders=num_decoders,
        prompt_tokens=prompt_tokens,
        budget=budget,
        chunk_size=None,
        block_size=16,
        exit_threshold=1.0,
        exits="replay",
        num_pairs=1,
        num_prompts=num_prompts,
        decoder_prompt_tokens=8,
        workload={"vocab_size": loaded.config.vocab_size},
    )
    recorder.plan(list(NAMES.values()))
    runs: dict[str, Run] = {}
    with counting_compilations() as compilations:
        bench = Bench(point, loaded, compilations, compiles_ahead=False)
        for arm, name in NAMES.items():
            recorder.check(name, play, bench, arm, runs)


def play(bench: Bench, name: str, runs: dict[str, Run]) -> Outcome:
    """An arm twice: the first time compiles what it needs, the second one counts.

    `runs` gets it if it is valid.
    """
    arm, workload = ARMS[name], bench.point.workload
    for position in range(2):
        place = Place(process=0, round=0, position=position)
        run = bench.play(arm, workload, place)
    violations = check_run(run)
    values = {
        "prompts": len(run.windows),
        "compilations": run.num_backend_compilations,
        "broken rules": "; ".join(map(str, violations)) or "none",
    }
    if violations:
        return False, values
    runs[name] = run
    if BASELINE not in runs:
        return False, values | {"not compared": f"{NAMES[BASELINE]}: no valid run"}
    numbers, gaps = measure(run, runs[BASELINE]), Latencies.of([gap.seconds for gap in run.gaps])
    assert gaps is not None
    values |= {
        "gap median, ms": round(gaps.p50 * 1e3, 2),
        "gap p99, ms": NOTHING if gaps.p99 is None else round(gaps.p99 * 1e3, 2),
        "gap max, ms": round(gaps.largest * 1e3, 2),
        "tokens/s": round(numbers["output_tokens_per_second"] or 0.0, 1),
        "launches": len(run.timeline.launches),
        "mixed launches": int(numbers["mixed_launches"] or 0),
    }
    for metric in SHOWN:
        if (value := numbers[metric]) is not None:
            scale, unit = (1e3, "ms") if METRICS[metric].unit == "s" else (1, METRICS[metric].unit)
            values[f"{metric}, {unit}"] = round(scale * value, 3)
    return True, values
