"""How far do bfloat16 runs part under different policies, and does deterministic mode stop it?

Question: in bfloat16 a row's arithmetic depends on the bucket it runs in. Where do tokens and exits
of one request first differ between policies, and was it a near tie?
Method: 24 requests (fixed depth and adaptive, greedy) on the ouro-tiny fixture in bfloat16, all at
once, under separate and atomic, compared with mixed: the first token that differs, the top-1 margin
there (float32 reference on the mixed run's own history), and the first exit depth that differs. The
same again with --deterministic.

    python experiments/bfloat16_divergence.py

Result (2026-12-01, 2 shared cores with AVX-512 and AMX bfloat16 instructions, no GPU): 1 of 24
requests parts.

| mode | policy | request | first token that differs | its margin | first exit |
|---|---|---|---|---|---|
| default | separate | 13 | 24 | 0.196 | - |
| default | separate | 23 of 24 equal | | | |
| default | atomic | 13 | 24 | 0.196 | - |
| default | atomic | 23 of 24 equal | | | |
| deterministic | separate | 24 of 24 equal | | | |
| deterministic | atomic | 24 of 24 equal | | | |

Result (2026-11-29, another machine of 2 shared cores, CPU only, no GPU): 3 of 24 part.

| mode | policy | request | first token that differs | its margin | first exit |
|---|---|---|---|---|---|
| default | separate | 5 | 45 | 0.011 | - |
| default | separate | 11 | 36 | 0.094 | - |
| default | separate | 21 | 25 | 0.326 | - |
| default | separate | 21 of 24 equal | | | |
| default | atomic | 5 | 45 | 0.011 | - |
| default | atomic | 11 | 36 | 0.094 | - |
| default | atomic | 21 | 25 | 0.326 | - |
| default | atomic | 21 of 24 equal | | | |
| deterministic | separate | 24 of 24 equal | | | |
| deterministic | atomic | 24 of 24 equal | | | |

Near ties, all of them, on both machines: bfloat16 logits are off by up to 1.0
(tests/models/test_models.py). No exit differed before a token did.
"""

import logging
import random
from pathlib import Path

from looped.engine.llm_engine import LLMEngine
from looped.engine.options import EngineConfig
from looped.engine.outputs import Completion
from looped.loading import load_folder
from looped.measure.divergence import first_divergence
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "ouro-tiny"
NUM_REQUESTS, NUM_TOKENS = 24, 48


def complete(policy: str, *, deterministic: bool) -> list[Completion]:
    """All requests at once under one policy."""
    config = EngineConfig(
        policy=policy,
        deterministic=deterministic,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=160,
        num_blocks=4 * 8 * 10,
        prefix_caching=False,
    )
    engine = LLMEngine(load_folder(FIXTURE, dtype="bfloat16"), config)
    rng = random.Random(1)
    for index in range(NUM_REQUESTS):
        prompt = [rng.randrange(3, 512) for _ in range(rng.randint(1, 90))]
        threshold = 1.0 if index % 2 else 0.5
        params = SamplingParams(
            max_tokens=NUM_TOKENS, exit=ExitOptions(threshold=threshold, min_loops=1)
        )
        engine.add_request(str(index), prompt, params)
    completions: dict[str, Completion] = {}
    while engine.has_unfinished_requests():
        completions |= {done.request_id: done for done in engine.step().completions}
    return [completions[str(index)] for index in range(NUM_REQUESTS)]


def main() -> None:
    logging.disable(logging.WARNING)
    reference = load_folder(FIXTURE, dtype="float32").model
    print("| mode | policy | request | first token that differs | its margin | first exit |")
    print("|---|---|---|---|---|---|")
    for deterministic in (False, True):
        mode = "deterministic" if deterministic else "default"
        expected = complete("mixed", deterministic=deterministic)
        for policy in ("separate", "atomic"):
            num_equal = 0
            for one, other in zip(
                expected, complete(policy, deterministic=deterministic), strict=True
            ):
                divergence = first_divergence(reference, one, other)
                num_equal += divergence.is_none
                if not divergence.is_none:
                    margin = "-" if divergence.margin is None else f"{divergence.margin:.3f}"
                    exit_index = "-" if divergence.exit_index is None else divergence.exit_index
                    print(
                        f"| {mode} | {policy} | {one.request_id} | {divergence.token_index} | "
                        f"{margin} | {exit_index} |"
                    )
            print(f"| {mode} | {policy} | {num_equal} of {NUM_REQUESTS} equal | | | |")


if __name__ == "__main__":
    main()
