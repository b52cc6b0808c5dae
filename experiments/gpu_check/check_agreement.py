"""mixed == separate == atomic, greedy: must hold in float32 and deterministic, else reported."""

import random

from engines_here import FIXTURES, drain, fixture_engine
from report import Outcome, Recorder

from looped.loading import load_folder
from looped.measure.divergence import first_divergence
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

POLICIES = ("mixed", "separate", "atomic")


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    plan = {
        "float32": {"dtype": "float32"},
        "bfloat16": {"dtype": "bfloat16"},
        "bfloat16, deterministic": {"dtype": "bfloat16", "deterministic": True},
        "bfloat16, xla": {"dtype": "bfloat16", "attention_backend": "xla"},
    }
    if is_rehearsal:
        plan = {"float32": plan["float32"]}
    recorder.plan(list(plan))
    for name, options in plan.items():
        must_agree = "float32" in name or "deterministic" in name
        recorder.check(name, compare, options, must_agree)


def compare(options: dict, must_agree: bool) -> Outcome:
    """The same 24 requests under the three policies, and where two part first."""
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 512) for _ in range(rng.randint(1, 60))] for _ in range(24)]
    outputs = {}
    for policy in POLICIES:
        engine = fixture_engine("ouro-tiny", policy=policy, **options)
        for index, prompt in enumerate(prompts):
            params = SamplingParams(
                max_tokens=24, ignore_eos=True, exit=ExitOptions(threshold=(1.0, 0.5)[index % 2])
            )
            engine.add_request(str(index), prompt, params)
        outputs[policy] = drain(engine)
    model, parted = None, []
    for index in map(str, range(len(prompts))):
        for policy in POLICIES[1:]:
            expected, got = outputs["mixed"][index], outputs[policy][index]
            if (expected.token_ids, expected.exit_depths) == (got.token_ids, got.exit_depths):
                continue
            if model is None:
                model = load_folder(FIXTURES / "ouro-tiny", dtype="float32").model
            found = first_divergence(model, expected, got)
            parted.append(
                f"request {index}, {policy}: token {found.token_index} (margin {found.margin}), "
                f"exit {found.exit_index}"
            )
    values = {"requests": len(prompts), "parted": len(parted), "first": parted[:3]}
    return not parted or not must_agree, values
