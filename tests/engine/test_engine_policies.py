"""Every policy on the engine: the same tokens, within max_decode_rows, by name or as an object."""

from dataclasses import replace
from itertools import product

import pytest
from command_line import looped
from engines import (
    NUM_SLOTS,
    SMALL,
    complete,
    loaded_model,
    logged_engine,
    make_engine,
    make_llm,
    run_params,
)
from known_policies import NEWEST, known_policies
from plug_ins import install_plug_in

from looped.engine.events import LaunchEvent
from looped.engine.llm_engine import LLMEngine
from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.sampling_params import SamplingParams
from looped.sched import POLICIES, ExitMode, ExitOptions, ItemKind, LaunchKind, Policy
from looped.sched.policies import registry

ONE_ITEM_A_PROMPT = {
    name: policy for name, policy in known_policies().items() if policy.max_window == 1
}
"""Others need device state of another size, and are tested where that is."""


def known_runs(golden):
    """A fifth of the golden runs, and all with traces."""
    return [
        run for index, run in enumerate(golden.runs) if index % 5 == 1 or run["mode"] == "trace"
    ]


def live_and_recorded(golden):
    """Prompts with options: golden runs, whose answers are known, and live look-aheads."""
    runs = known_runs(golden)
    prompts = [golden.prompts[run["prompt"]] for run in runs]
    params = [run_params(run) for run in runs]
    for index, prompt in enumerate(golden.prompts[:4]):
        prompts.append(prompt)
        mode = (ExitMode.RANDOM_LOOKAHEAD, ExitMode.LOOKAHEAD)[index % 2]
        exit_options = ExitOptions(mode=mode, threshold=0.5, min_loops=1)
        params.append(SamplingParams(max_tokens=10, ignore_eos=True, exit=exit_options))
    return prompts, params


def answers(golden, **options):
    """Tokens and exit depths, and the most decode rows of a pass."""
    engine = make_engine(golden.folder, **options)
    completions = complete(engine, *live_and_recorded(golden))
    crowds = [
        sum(item.kind is ItemKind.DECODE for item in record.items)
        for record in engine.runner.records
        if record.kind is LaunchKind.RECURRENT
    ]
    return [(list(c.token_ids), list(c.exit_depths)) for c in completions], max(crowds)


@pytest.fixture(scope="module")
def mixed_answers(square_golden):
    found, crowd = answers(square_golden)
    known = [(run["token_ids"], run["exit_depths"]) for run in known_runs(square_golden)]
    assert found[: len(known)] == known
    assert {depth for _, depths in found[len(known) :] for depth in depths} == {2, 3, 4}
    assert crowd == NUM_SLOTS
    return found


@pytest.mark.parametrize(
    ("name", "max_decode_rows"), [*product(ONE_ITEM_A_PROMPT, (None, 5)), (NEWEST.name, 5)]
)
def test_every_policy_says_the_same(square_golden, mixed_answers, name, max_decode_rows):
    policy = ONE_ITEM_A_PROMPT.get(name, NEWEST)
    found, crowd = answers(square_golden, policy=policy, max_decode_rows=max_decode_rows)
    assert found == mixed_answers
    assert crowd <= (max_decode_rows or NUM_SLOTS)
    assert crowd > 2 or policy is NEWEST


def test_a_policy_is_an_object_of_llm_and_of_engines_that_share_their_steps(tiny_folder):
    llm = make_llm(tiny_folder, policy=NEWEST)
    assert llm.engine.scheduler.policy is NEWEST
    assert llm.engine.config.policy_name == "newest"
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    (found,) = llm.generate([[311, 225, 7]], params, show_progress=False)
    other = llm.with_options(policy="deepest-first", max_decode_rows=2)
    assert other.engine.scheduler.policy is POLICIES["deepest-first"]
    assert other.engine.scheduler_config.decode_row_limit == 2
    (again,) = other.generate([[311, 225, 7]], params, show_progress=False)
    assert found.token_ids == again.token_ids
    assert other.engine.rebuilt().scheduler.policy is POLICIES["deepest-first"]


def test_an_object_that_runs_all_depths_gets_the_steps_for_it(tiny_folder):
    whole = replace(POLICIES["atomic"], name="whole")
    engine = make_engine(tiny_folder, policy=whole)
    complete(engine, [[1] * 20], [SamplingParams(max_tokens=1)])
    assert engine.stats().num_launches[LaunchKind.PREFILL] == 2


def test_an_engine_runs_a_policy_that_a_package_brings(tiny_folder, tmp_path, monkeypatch):
    code = """
        from dataclasses import replace
        from looped.sched import policy_named

        def sized(*, tokens):
            size = int(tokens)
            mixed = policy_named("mixed")
            return replace(mixed, name="sized", item_size=lambda view, request: size)
    """
    install_plug_in(monkeypatch, tmp_path, "sized_package", code, sized="sized")
    try:
        engine = make_engine(tiny_folder, policy="sized", policy_options=(("tokens", "7"),))
        complete(engine, [[1] * 20], [SamplingParams(max_tokens=1)])
        sizes = [item.num_rows for record in engine.runner.records for item in record.items]
        assert sizes == [7] * 4 + [7] * 4 + [6] * 4
        with pytest.raises(UsageError, match="policy sized: invalid literal for int"):
            EngineConfig(policy="sized", policy_options=(("tokens", "x"),)).resolved_policy  # noqa: B018
    finally:
        monkeypatch.undo()
        registry.installed.cache_clear()


def test_generate_says_in_a_line_that_a_policy_breaks_the_protocol(
    tiny_folder, tmp_path, monkeypatch
):
    code = """
        from dataclasses import replace
        from looped.sched import Selection, policy_named

        def take(view, stage):
            return Selection(())

        IDLE = replace(policy_named("mixed"), name="idle", take=take)
    """
    install_plug_in(monkeypatch, tmp_path, "idle_package", code, idle="IDLE")
    try:
        done = looped("generate", "hello", "--model", tiny_folder, "--policy", "idle", check=False)
    finally:
        monkeypatch.undo()
        registry.installed.cache_clear()
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "looped: error: expected from policy idle: a launch"
    )


def watching(seen):
    """Mixed, which notes the times that it sees."""

    def choose(view):
        seen.append(view.now)
        return POLICIES["mixed"].choose(view)

    return replace(POLICIES["mixed"], name="watching", choose=choose)


def test_policies_see_the_moment_that_the_log_calls_scheduled(tiny_folder):
    seen, events = [], []
    engine = logged_engine(tiny_folder, events.append, policy=watching(seen))
    complete(engine, [[311, 225, 7], [9]], [SamplingParams(max_tokens=4)] * 2)
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    # It is asked once more at the end, when nothing is left to hand out.
    assert [launch.scheduled for launch in launches] == list(dict.fromkeys(seen))[:-1]
    assert len(launches) > 4


def test_policies_see_real_seconds_where_nobody_listens(tiny_folder):
    seen = []
    engine = make_engine(tiny_folder, policy=watching(seen))
    engine.add_request("a", [311, 225, 7], SamplingParams(max_tokens=4, ignore_eos=True))
    request = engine.scheduler.unfinished_request("a")
    while engine.has_unfinished_requests():
        engine.step()
    assert seen == sorted(seen)
    assert seen[0] == request.arrival_time < request.newest_token_time < seen[-1] + 1e-9
    assert 0 < seen[-1] - seen[0] < 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy_options": (("a", "1"),)}, "policy mixed takes no options, got a=1"),
        ({"policy": "slack"}, "policy slack needs target=VALUE, costs=VALUE"),
        ({"max_decode_rows": 9}, r"9 is not in 1\.\.8"),
        ({"policy": NEWEST, "mixed_prefill_decode": True}, "but policy newest was given"),
        ({"policy": NEWEST, "prompt_shortcut": True}, "with policy newest, which ignores it"),
    ],
)
def test_options_of_a_policy_that_contradict_are_refused(tiny_folder, options, message):
    with pytest.raises(UsageError, match=message):
        LLMEngine(loaded_model(tiny_folder), replace(SMALL, **options))


def test_policies_are_compared_by_what_they_are():
    assert isinstance(NEWEST, Policy)
    assert EngineConfig(policy=NEWEST) == EngineConfig(policy=NEWEST)
