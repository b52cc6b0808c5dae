"""Launches that fail, an engine that dies, one that comes back, and a server that stops."""

import asyncio
import json
import threading
import time

import httpx
import pytest
from live_servers import live_server, tiny_llm

LONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "seed": 1}
NUM_SLOTS = 8
ALL_SLOTS = {**LONG, "n": NUM_SLOTS}
HALF_THE_SLOTS = {**LONG, "n": NUM_SLOTS // 2}


def in_background(function, *arguments, **options):
    """Starts a call; what it returns is in the list once the thread is joined."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments, **options)))
    thread.start()
    return thread, results


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def metric(live, name):
    lines = live.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"looped_{name}"))


def last_event(text):
    events = [event for event in text.split("\n\n") if event]
    assert events[-1] == "data: [DONE]"
    return json.loads(events[-2].removeprefix("data: "))


@pytest.mark.parametrize("is_on_device", [False, True])
def test_a_failed_launch_ends_active_requests_and_nothing_else(tiny_folder, is_on_device):
    llm = tiny_llm(tiny_folder)
    with live_server(llm) as live:
        runner = llm.engine.runner
        name = "collect" if is_on_device else "pack"
        right, is_armed = getattr(runner, name), threading.Event()

        def fail_once(argument):
            if is_armed.is_set():
                is_armed.clear()
                raise RuntimeError("out of luck")
            return right(argument)

        setattr(runner, name, fail_once)
        stream = in_background(live.post, "/v1/completions", {**HALF_THE_SLOTS, "stream": True})
        whole = in_background(live.post, "/v1/completions", HALF_THE_SLOTS)
        wait_for(lambda: live.service.stats.num_active == NUM_SLOTS)
        waiting = in_background(live.post, "/v1/completions", {**LONG, "max_tokens": 3})
        wait_for(lambda: live.service.stats.num_waiting == 1)
        is_armed.set()
        for thread, _ in (stream, whole, waiting):
            thread.join()
        assert stream[1][0].status_code == 200
        errors = [last_event(stream[1][0].text).get("error"), whole[1][0].json().get("error")]
        assert (whole[1][0].status_code == 500) is (errors[1] is not None)
        # Before the device has it, only the requests of the launch itself are lost.
        assert all(errors) if is_on_device else any(errors)
        for error in filter(None, errors):
            assert error["type"] == "server_error"
            assert "out of luck" in error["message"]
        assert waiting[1][0].status_code == 200
        assert live.get("/health").status_code == 200
        assert metric(live, "failed_launches_total") == 1
        live.wait_until_idle()


def kill(llm, live):
    """Makes the engine's next step raise; returns once the service knows."""

    def die():
        raise RuntimeError("the end")

    llm.engine.step = die


def test_a_dead_engine_turns_health_red_and_fails_everything(tiny_folder):
    llm = tiny_llm(tiny_folder)
    with live_server(llm) as live:
        stream = in_background(live.post, "/v1/completions", {**ALL_SLOTS, "stream": True})
        wait_for(lambda: live.service.stats.num_active == NUM_SLOTS)
        waiting = in_background(live.post, "/v1/completions", LONG)
        wait_for(lambda: live.service.stats.num_waiting == 1)
        kill(llm, live)
        for thread, _ in (stream, waiting):
            thread.join()
        error = last_event(stream[1][0].text)["error"]
        assert error["type"] == "server_error"
        assert "the end" in error["message"]
        assert waiting[1][0].status_code == 503
        assert "the end" in waiting[1][0].json()["error"]["message"]
        health = live.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "failed"
        assert "the end" in health.json()["reason"]
        response = live.post("/v1/completions", LONG)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_failed"
        # What needs no engine still answers.
        assert live.post("/tokenize", {"prompt": "x"}).status_code == 200


def test_a_state_that_cannot_be_built_is_the_end_of_the_engine(tiny_folder, monkeypatch):
    llm = tiny_llm(tiny_folder)
    with live_server(llm) as live:
        running = in_background(live.post, "/v1/completions", ALL_SLOTS)
        wait_for(lambda: live.service.stats.num_active == NUM_SLOTS)
        waiting = in_background(live.post, "/v1/completions", LONG)
        wait_for(lambda: live.service.stats.num_waiting == 1)

        def fail(*arguments):
            raise RuntimeError("no memory left")

        llm.engine.runner.reset = fail
        llm.engine.runner.collect = fail
        for thread, results in (running, waiting):
            thread.join()
            assert results[0].status_code in (500, 503)
            assert "no memory left" in results[0].json()["error"]["message"]
        wait_for(lambda: live.get("/health").status_code == 503)
        assert live.get("/health").json()["status"] == "failed"


def test_a_dead_engine_is_built_anew_once_if_that_is_wanted(tiny_folder):
    llm = tiny_llm(tiny_folder)
    with live_server(llm, restart_engine=True) as live:
        before = live.complete("hello", max_tokens=8, temperature=0)["choices"]
        num_compilations = metric(live, "compilations_total")
        launches = metric(live, "launches_total")
        running = in_background(live.post, "/v1/completions", LONG)
        wait_for(lambda: live.service.stats.num_active == 1)
        kill(llm, live)
        running[0].join()
        assert running[1][0].status_code == 503
        wait_for(lambda: live.get("/health").status_code == 200)
        after = live.complete("hello", max_tokens=8, temperature=0)["choices"]
        assert after == before
        assert metric(live, "compilations_total") == num_compilations
        assert metric(live, "launches_total") > launches
        assert metric(live, "engine_restarts_total") == 1
        live.wait_until_idle()
        # The second time is the last.
        live.service._thread._engine.step = llm.engine.step
        assert live.post("/v1/completions", LONG).status_code == 503
        assert live.get("/health").json()["status"] == "failed"


def test_a_warm_up_that_fails_is_said(tiny_folder):
    llm = tiny_llm(tiny_folder)

    def fail(**options):
        raise RuntimeError("no compiler")

    llm.engine.warm_up = fail
    with live_server(llm, is_ready=False) as live:
        wait_for(lambda: live.get("/health").json()["status"] == "failed")
        assert "no compiler" in live.get("/health").json()["reason"]


def test_health_is_red_until_the_warm_up_is_over(tiny_folder):
    llm = tiny_llm(tiny_folder)
    warm_up, may_go_on = llm.engine.warm_up, threading.Event()
    llm.engine.warm_up = lambda **options: (may_go_on.wait(), warm_up(**options))
    with live_server(llm, is_ready=False) as live:
        try:
            assert live.get("/health").status_code == 503
            assert live.get("/health").json()["status"] == "starting"
            response = live.post("/v1/completions", LONG)
            assert response.status_code == 503
            assert "Retry-After" in response.headers
        finally:
            may_go_on.set()
        wait_for(lambda: live.get("/health").status_code == 200)
        live.complete("x", max_tokens=1)


def test_draining_finishes_what_runs_and_refuses_the_rest(tiny_folder):
    llm = tiny_llm(tiny_folder)
    with live_server(llm) as live:
        running = in_background(live.post, "/v1/completions", {**LONG, "stream": True})
        wait_for(lambda: live.service.stats.num_active == 1)
        with httpx.Client(base_url=live.url) as kept:
            kept.get("/health")
            live.service._loop.call_soon_threadsafe(live.uvicorn.start_draining)
            wait_for(lambda: live.service.state == "draining")
            assert kept.get("/health").json()["status"] == "draining"
            response = kept.post("/v1/completions", json=LONG)
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "draining"
        running[0].join()
        assert running[1][0].text.count("data: {") == 201
        assert running[1][0].text.endswith("data: [DONE]\n\n")
        live.thread.join(10)
        assert not live.thread.is_alive()


def test_what_outlasts_the_drain_ends_with_an_error_event(tiny_folder):
    llm = tiny_llm(tiny_folder)
    step = llm.engine.step
    llm.engine.step = lambda: (time.sleep(0.02), step())[1]
    with live_server(llm, drain_timeout=0.3) as live:
        running = in_background(live.post, "/v1/completions", {**LONG, "stream": True})
        whole = in_background(live.post, "/v1/completions", LONG)
        wait_for(lambda: live.service.stats.num_active == 2)
        live.service._loop.call_soon_threadsafe(live.uvicorn.start_draining)
        running[0].join()
        whole[0].join()
        assert "stopping" in last_event(running[1][0].text)["error"]["message"]
        assert whole[1][0].status_code == 503
        live.thread.join(10)
        assert not live.thread.is_alive()


def test_requests_that_the_engine_has_not_seen_fail_with_it(tiny_folder):
    """Commands that wait in the queue when the engine dies are answered, and leave no trace."""
    llm = tiny_llm(tiny_folder)
    with live_server(llm, restart_engine=True) as live:
        step, may_go_on = llm.engine.step, threading.Event()

        def stuck():
            may_go_on.wait()
            raise RuntimeError("stuck")

        llm.engine.step = stuck
        first = in_background(live.post, "/v1/completions", LONG)
        wait_for(lambda: live.service.num_choices == 1)
        second = in_background(live.post, "/v1/completions", LONG)
        wait_for(lambda: live.service.num_choices == 2)
        time.sleep(0.1)  # for its command to be in the queue
        may_go_on.set()
        for thread, results in (first, second):
            thread.join()
            assert results[0].status_code == 503, results[0].text
        llm.engine.step = step
        wait_for(lambda: live.get("/health").status_code == 200)
        live.wait_until_idle()


def test_a_fault_in_a_route_is_a_500_in_openais_form(tiny_folder, monkeypatch):
    with live_server(tiny_llm(tiny_folder)) as live:
        monkeypatch.setattr(
            "looped.server.api.backend.Backend.check_model",
            lambda *arguments: asyncio.no_such_thing,
        )
        response = live.post("/v1/completions", LONG)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "no_such_thing" not in response.text
