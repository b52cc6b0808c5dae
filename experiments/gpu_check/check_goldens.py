"""All golden runs of both fixtures through the engine: every backend, both forms of the layers."""

import json

from engines_here import FIXTURES, backends_here, drain, fixture_engine
from report import Outcome, Recorder

from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    backends = backends_here(is_rehearsal=is_rehearsal)
    plan = [
        *(("ouro-tiny", backend, "unrolled") for backend in backends),
        *(("ouro-tiny-gqa", backend, "unrolled") for backend in backends),
        *(("ouro-tiny", backend, "scanned") for backend in backends),
        *(("ouro-tiny-gqa", backend, "scanned") for backend in backends),
    ]
    if is_rehearsal:
        plan = [("ouro-tiny", "xla", "unrolled"), ("ouro-tiny", "xla", "scanned")]
    recorder.plan([", ".join(case) for case in plan])
    for case in plan:
        recorder.check(", ".join(case), check, *case)


def check(fixture: str, backend: str, layers: str) -> Outcome:
    """Token for token and exit for exit, in float32."""
    golden = json.loads((FIXTURES / fixture / "golden.json").read_text())
    # Deterministic: one program a launch kind, so that most of the time is not compilation.
    engine = fixture_engine(fixture, attention_backend=backend, layers=layers, deterministic=True)
    for index, run in enumerate(golden["runs"]):
        if run["mode"] == "trace":
            options = ExitOptions(trace=tuple(run["trace"]))
        else:
            options = ExitOptions(
                mode=ExitMode(run["mode"]), threshold=run["threshold"],
                min_loops=run["min_loops"], max_loops=run.get("max_loops"),
            )  # fmt: skip
        params = SamplingParams(max_tokens=len(run["token_ids"]), exit=options, ignore_eos=True)
        engine.add_request(str(index), golden["prompts"][run["prompt"]], params)
    completions = drain(engine)
    wrong = [
        index
        for index, run in enumerate(golden["runs"])
        if list(completions[str(index)].token_ids) != run["token_ids"]
        or list(completions[str(index)].exit_depths) != run["exit_depths"]
    ]
    values = {"runs": len(golden["runs"]), "wrong": len(wrong), "first wrong": wrong[:3]}
    return not wrong, values
