"""mixed == separate == atomic, greedy: must hold in float32 and deterministic, else reported."""

import random

from engines_here import drain, fixture_engine
from report import Outcome, Recorder

from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

POLICIES = ("mixed", "separate", "atomic")


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    plan = {
        "float32": {"dtype": "float32"},
        "bfloat16": {"dtype": "bfloat16"},
        "bfloat16 deterministic": {"dtype": "bfloat16", "deterministic": True},
    }
    if is_rehearsal:
        plan = {"float32": plan["float32"]}
    recorder.plan(list(plan))
    for name, options in plan.items():
        must_agree = name != "bfloat16"
        recorder.check(name, compare, options, must_agree)


def compare(options: dict, must_agree: bool) -> Outcome:
    """The same 24 requests under the three policies; where two part first."""
    rng = random.Random(5)
    prompts = [[rng.randrange(3, 512) for _ in range(rng.randint(1, 60))] for _ in range(24)]
    outputs = {}
    for policy in POLICIES:
        engine = fixture_engine("ouro-tiny", policy=policy, **options)
        for index, prompt in enumerate(prompts):
            threshold = (1.0, 0.5)[index % 2]
            params = SamplingParams(
                max_tokens=24, ignore_eos=True, exit=ExitOptions(threshold=threshold)
            )
            engine.add_request(str(index), prompt, params)
        outputs[policy] = drain(engine)
    parted = []
    for index in range(len(prompts)):
        first = outputs["mixed"][str(index)]
        for policy in POLICIES[1:]:
            other = outputs[policy][str(index)]
            pairs = zip(first.token_ids, other.token_ids, strict=True)
            places = [place for place, (one, two) in enumerate(pairs) if one != two]
            if places or first.exit_depths != other.exit_depths:
                parted.append(f"request {index}, {policy}, token {(places or ['-'])[0]}")
    values = {"requests": len(prompts), "parted": len(parted), "first": parted[:3]}
    return not parted or not must_agree, values
