"""Profiles: a trace appears, its parts have names, and names change nothing in a compiled step."""

import contextlib
import gzip
import json
import logging
import re

import jax
import pytest
from command_line import looped
from engines import SMALL_FLAGS, drain, make_engine

from looped.engine.observer import LaunchObserver
from looped.models.scopes import layer_scope
from looped.programs.executables import Executables, stage_scope
from looped.record.profiling import check_profile_folder, profiling
from looped.sampling_params import SamplingParams
from looped.sched import LaunchKind


@pytest.fixture
def profiler(monkeypatch):
    """A profiler that only writes down what it is told."""
    calls = []
    monkeypatch.setattr(
        jax.profiler, "start_trace", lambda folder, profiler_options: calls.append(folder)
    )
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    return calls


def serve(engine, observer, num_tokens=2):
    engine._observer = observer
    engine.add_request("a", [3, 4, 5], SamplingParams(max_tokens=num_tokens, ignore_eos=True))
    drain(engine)


@pytest.mark.long
def test_a_profile_of_a_run_names_what_the_host_does(tiny_folder, tmp_path):
    folder = tmp_path / "profile"
    options = ("--model", tiny_folder, "--max-tokens", 2, "--ignore-eos", "--profile", folder)
    options += SMALL_FLAGS
    done = looped("generate", "hello", *options)
    assert "2 tokens\n" in done.stderr, "a profiled run has no rate"
    (trace,) = folder.rglob("*.trace.json.gz")
    assert list(folder.rglob("*.xplane.pb"))
    with gzip.open(trace) as file:
        names = [event.get("name") for event in json.load(file)["traceEvents"]]
    # One chunk of the prompt, and the loops of the second token.
    num_launches = names.count("dispatch")
    assert num_launches >= 4
    for part in ("pack", "collect", "apply"):
        assert names.count(part) == num_launches
    # One step more, in which nothing is left to dispatch and the last launch is read.
    assert names.count("step") == names.count("schedule") == num_launches + 1
    again = looped("generate", "hello", *options, check=False)
    assert again.returncode == 2
    assert "exists and is not an empty folder" in again.stderr


def test_a_taken_folder_is_refused_before_a_model_is_looked_for(tmp_path):
    profile = tmp_path / "profile"
    profile.mkdir()
    (profile / "file").touch()
    for command in (
        ("serve", "--model", "none"),
        ("bench", "throughput", "--model", "none"),
        ("bench", "interference", "--model", "none", "--out", tmp_path / "new", "--no-plots"),
    ):
        done = looped(*command, "--profile", profile, check=False)
        assert (done.returncode, "is not an empty folder" in done.stderr) == (2, True)
    check_profile_folder(tmp_path / "new")
    check_profile_folder(None)


def test_what_is_profiled_is_not_logged(tmp_path):
    for command in (("generate", "hello"), ("serve",)):
        done = looped(
            *command, "--model", "none", "--profile", tmp_path / "profile",
            "--launch-log", tmp_path / "log.jsonl", check=False,
        )  # fmt: skip
        assert (done.returncode, "leave one of the two" in done.stderr) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_profile_begins_with_a_request_and_ends_after_its_launches(
    tiny_folder, tmp_path, profiler
):
    engine = make_engine(tiny_folder)
    with profiling(tmp_path, LaunchObserver(), max_launches=3) as observer:
        engine._observer = observer
        engine.step()
        assert profiler == []
        serve(engine, observer)
        assert profiler == [str(tmp_path), "stop"]
        serve(engine, observer)
    assert profiler == [str(tmp_path), "stop"]


def test_a_profile_ends_with_the_block_and_without_a_launch_there_is_none(
    tiny_folder, tmp_path, profiler, caplog
):
    with profiling(tmp_path, LaunchObserver()) as observer:
        serve(make_engine(tiny_folder), observer)
        assert profiler == [str(tmp_path)]
    assert profiler == [str(tmp_path), "stop"]
    with caplog.at_level(logging.WARNING, "looped"), profiling(tmp_path, LaunchObserver()):
        pass
    assert "no launch was made" in caplog.text
    deaf = LaunchObserver()
    with profiling(None, deaf) as observer:
        assert observer is deaf


def test_a_profiler_that_fails_does_not_fail_the_requests(
    tiny_folder, tmp_path, monkeypatch, caplog
):
    def fail(*_, **__):
        raise RuntimeError("only one profile at a time")

    monkeypatch.setattr(jax.profiler, "start_trace", fail)
    with profiling(tmp_path, LaunchObserver()) as observer:
        serve(make_engine(tiny_folder), observer)
    assert caplog.text.count("no profile: only one profile at a time") == 1


def first_step(engine, kind):
    """The smallest step of a kind."""
    return engine.runner.executables.steps([(kind, engine._ladders[kind][0])])[0]


def scopes_of(engine, kind):
    """Paths of the operations of a compiled step.

    The cache finds steps by what they compute: one that was compiled before has the names of then.
    """
    step = first_step(engine, kind)
    name = "jax_compilation_cache_include_metadata_in_key"
    before = getattr(jax.config, name)
    jax.config.update(name, True)
    try:
        text = engine.runner.executables.lower(step).compile().as_text()
    finally:
        jax.config.update(name, before)
    return {tuple(path.split("/")) for path in re.findall(r'op_name="([^"]*)"', text)}


@pytest.mark.parametrize("layers", ["unrolled", pytest.param("scanned", marks=pytest.mark.long)])
def test_operations_of_a_compiled_step_name_stage_layer_and_part(tiny_folder, layers):
    engine = make_engine(tiny_folder, layers=layers)
    paths = scopes_of(engine, LaunchKind.RECURRENT)
    stage = stage_scope(LaunchKind.RECURRENT)
    for part in ("embed", "gate", "attention", "kv_write", "mlp"):
        # Reducers in a scan's body have names from the body on; all other paths begin outside.
        assert any(stage in path and part in path for path in paths), part
    for index in range(engine.model_config.num_layers):
        found = [path for path in paths if layer_scope(index) in path]
        assert bool(found) is (layers == "unrolled")
        assert all("layers" in path for path in found)
        for part in ("attention", "kv_write", "mlp") if found else ():
            assert any(part in path for path in found)


@pytest.mark.long
def test_operations_of_the_lm_head_name_it_and_the_sampler(tiny_folder):
    paths = scopes_of(make_engine(tiny_folder), LaunchKind.HEAD)
    stage = stage_scope(LaunchKind.HEAD)
    for part in ("lm_head", "sampler"):
        assert any(stage in path and part in path for path in paths)


class NoScope(contextlib.ContextDecorator, contextlib.nullcontext):
    """Stands where a named scope stands."""


@pytest.mark.parametrize("kind", [LaunchKind.RECURRENT, LaunchKind.SCORE, LaunchKind.HEAD])
def test_names_change_nothing_in_a_step(tiny_folder, kind, monkeypatch):
    engine = make_engine(tiny_folder)
    step = first_step(engine, kind)
    with_names = engine.runner.executables.lower(step).as_text()
    monkeypatch.setattr(jax, "named_scope", NoScope)
    shape, parameters = engine.runner.executables.shape, engine._parameters
    plain = Executables(shape, parameters, backend=engine.runner.executables.backend)
    assert plain.lower(step).as_text() == with_names
