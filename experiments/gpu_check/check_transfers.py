"""No hidden transfer: mixed steps of fixed depth under `jax.transfer_guard("disallow")`."""

import jax
from engines_here import backends_here, drain, fixture_engine
from report import Outcome, Recorder

from looped.sampling_params import SamplingParams


def run(recorder: Recorder, is_rehearsal: bool) -> None:
    backends = backends_here(is_rehearsal=is_rehearsal)[: 1 if is_rehearsal else None]
    recorder.plan(backends)
    for backend in backends:
        recorder.check(backend, check, backend)


def check(backend: str) -> Outcome:
    """Uploads are explicit, and only launches with a head are read, explicitly; anything else
    raises."""
    engine = fixture_engine("ouro-tiny", attention_backend=backend)
    engine.warm_up()
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    engine.add_request("first", [5, 6, 7], params)
    drain(engine)
    before = engine.stats()
    with jax.transfer_guard("disallow"):
        engine.add_request("decoder", [5, 6, 7], SamplingParams(max_tokens=40, ignore_eos=True))
        for _ in range(10):
            engine.step()
        for index in range(4):
            engine.add_request(f"prompt-{index}", list(range(3 + index, 53 + index)), params)
        drain(engine)
    stats = engine.stats()
    num_heads = stats.num_heads - before.num_heads
    values = {
        "mixed launches": stats.num_mixed_launches - before.num_mixed_launches,
        "readbacks": stats.num_readbacks - before.num_readbacks,
        "heads": num_heads,
        "writes of the request table": stats.num_writes - before.num_writes,
        "compilations": stats.num_compilations - before.num_compilations,
    }
    ok = values["mixed launches"] > 0 and values["readbacks"] == num_heads
    return ok and values["compilations"] == 0, values
