"""`looped serve` as a process: what a supervisor sees."""

import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import fields

import httpx
import pytest
from command_line import looped
from live_servers import tiny_llm

from looped.engine.events import EndEvent, LaunchEvent
from looped.engine.options import EngineConfig, option_flag
from looped.record.launch_log import read_launch_log
from looped.sampling_params import SamplingParams
from looped.server.config import ServerConfig
from looped.text.request_file import read_exit_trace

COMMAND = [sys.executable, "-c", "from looped.cli import main; main()"]
SIZES = {
    "--max-num-seqs": 8,
    "--max-num-batched-tokens": 32,
    "--prefill-chunk-size": 16,
    "--max-model-len": 256,
}
OPTIONS = ["--port", "0", *(str(word) for option in SIZES.items() for word in option)]


@contextlib.contextmanager
def process(*arguments, env=None, cwd=None, command=COMMAND):
    with subprocess.Popen(
        [*command, "serve", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def url_of(running):
    """Waits for the line that says where the server listens; the rest is read in a thread."""
    for line in running.stderr:
        if found := re.search(r"http://[\d.]+:\d+", line):
            running.said = []
            running.reader = threading.Thread(
                target=lambda: running.said.extend(running.stderr), daemon=True
            )
            running.reader.start()
            return found[0]
    raise AssertionError("the server did not start")


def rest_of(running):
    """What the process said after that line, once it has ended."""
    running.reader.join(10)
    return "".join(running.said)


def wait_ready(url, **options):
    deadline = time.monotonic() + 120
    while httpx.get(url + "/health", **options).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def expected(tiny_folder):
    """What the streams below say, from the library."""
    llm = tiny_llm(tiny_folder)
    params = [
        SamplingParams(max_tokens=150, temperature=1.0, seed=seed, ignore_eos=True)
        for seed in range(12)
    ]
    return [done.text for done in llm.generate(["kill me"] * 12, params, show_progress=False)]


@pytest.mark.long
def test_sigterm_loses_nothing_that_was_promised(tiny_folder, tmp_path, expected):
    with process("--model", tiny_folder, *OPTIONS, cwd=tmp_path) as running:
        url = url_of(running)
        wait_ready(url)
        texts, started = {}, threading.Semaphore(0)

        def read(seed):
            body = {
                "prompt": "kill me",
                "max_tokens": 150,
                "seed": seed,
                "ignore_eos": True,
                "stream": True,
            }
            with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response:
                assert response.status_code == 200
                started.release()
                lines = [line for line in response.iter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
            texts[seed] = "".join(chunk["choices"][0]["text"] for chunk in chunks)

        readers = [threading.Thread(target=read, args=(seed,)) for seed in range(12)]
        for reader in readers:
            reader.start()
        for _ in readers:  # 8 run, and 4 wait: they were promised, too
            started.acquire()
        running.send_signal(signal.SIGTERM)
        for reader in readers:
            reader.join()
        assert running.wait(30) == 0
        assert [texts[seed] for seed in range(12)] == expected
        assert running.stdout.read() == ""


@pytest.mark.slow
def test_a_second_signal_leaves_at_once(tiny_folder, tmp_path):
    with process("--model", tiny_folder, *OPTIONS, cwd=tmp_path) as running:
        url = url_of(running)
        wait_ready(url)
        body = {"prompt": "x", "max_tokens": 240, "n": 100, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            running.send_signal(signal.SIGINT)
            time.sleep(0.3)
            assert httpx.get(url + "/health").json()["status"] == "draining"
            running.send_signal(signal.SIGINT)
            assert running.wait(10) == 0


def test_a_signal_during_the_warm_up_is_no_failure(tiny_folder, tmp_path):
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla")}  # nothing is compiled yet
    with process("--model", tiny_folder, *OPTIONS, env=environment, cwd=tmp_path) as running:
        url = url_of(running)
        assert httpx.get(url + "/health").status_code == 503
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0


ENDLESS_WARM_UP = """
import time
from looped.engine.llm_engine import LLMEngine
from looped.server import service
service.SECONDS_TO_JOIN = 60.0
LLMEngine.warm_up = lambda engine, **options: time.sleep(60)
"""


def test_a_second_signal_leaves_the_warm_up_at_once(tiny_folder, tmp_path):
    command = [COMMAND[0], "-c", ENDLESS_WARM_UP + COMMAND[2]]
    with process("--model", tiny_folder, *OPTIONS, cwd=tmp_path, command=command) as running:
        url = url_of(running)
        assert httpx.get(url + "/health").json()["status"] == "starting"
        running.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(2)
        running.send_signal(signal.SIGTERM)
        assert running.wait(5) == 0
        assert "still compiling" in rest_of(running)


@pytest.mark.long
def test_a_second_signal_leaves_the_compiler_at_once(tiny_folder, tmp_path):
    """Python must not be taken down under the compiler, which would crash."""
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla")}
    with process("--model", tiny_folder, *OPTIONS, env=environment, cwd=tmp_path) as running:
        url_of(running)
        time.sleep(1.0)  # into the first compilations
        running.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0


@pytest.mark.parametrize("drain_timeout", [0, 1])
@pytest.mark.long
def test_the_drain_timeout_is_the_end_of_it(tiny_folder, tmp_path, drain_timeout):
    """Whatever is under way, and though one client reads nothing."""
    options = (*OPTIONS, "--drain-timeout", drain_timeout)
    body = {"prompt": "x", "max_tokens": 240, "n": 100, "ignore_eos": True, "stream": True}
    with process("--model", tiny_folder, *options, cwd=tmp_path) as running:
        url = url_of(running)
        wait_ready(url)
        port = int(url.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port)) as silent,
            httpx.stream("POST", url + "/v1/completions", json=body, timeout=60) as response,
        ):
            content = json.dumps(body | {"logprobs": 20}).encode()
            silent.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
            )
            lines = (line for line in response.iter_lines() if line)
            for _ in range(200):
                next(lines)
            running.send_signal(signal.SIGTERM)
            started = time.monotonic()
            said = list(lines)
            assert running.wait(30) == 0
            assert time.monotonic() - started < drain_timeout + 5
        assert said[-1] == "data: [DONE]"
        assert json.loads(said[-2].removeprefix("data: "))["error"]["code"] is None
        assert "leaving without it" not in rest_of(running)


FEW_FILES = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *COMMAND]


def test_the_key_may_come_from_the_environment_and_files_are_as_many_as_they_may_be(
    tiny_folder, tmp_path
):
    options = {"env": {"LOOPED_API_KEY": "secret"}, "cwd": tmp_path, "command": FEW_FILES}
    with process("--model", tiny_folder, *OPTIONS, **options) as running:
        url = url_of(running)
        soft, hard = resource.prlimit(running.pid, resource.RLIMIT_NOFILE)
        assert 256 < soft == hard
        assert httpx.get(url + "/v1/models").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        models = httpx.get(url + "/v1/models", headers=headers).json()["data"]
        assert [model["id"] for model in models] == [str(tiny_folder)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--port", "70000"), "port must be in 0 to 65535, got 70000"),
        (("--max-body-bytes", "0"), "max_body_bytes must be at least 1, got 0"),
        (("--request-timeout", "nan"), "request_timeout must be above 0"),
        (("--drain-timeout", "-1"), "drain_timeout must be at least 0"),
        (("--keep-alive-seconds", "-1"), "keep_alive_seconds must be at least 0"),
        (("--keep-alive-seconds", "inf"), "keep_alive_seconds must be at least 0"),
        (("--allowed-origins", "example.org"), "allowed_origins takes origins"),
        (("--api-key", ""), "api_key must not be empty"),
        (("--exit-mode", "trace"), "exit_mode trace"),
        (("--max-num-seqs", "0"), "max_num_seqs"),
        (("--launch-log-waits",), "add --launch-log FILE"),
    ],
)
def test_options_that_cannot_be_are_one_line_and_exit_code_2(tiny_folder, arguments, said):
    port = () if "--port" in arguments else OPTIONS[:2]
    done = looped("serve", "--model", tiny_folder, *arguments, *port, check=False)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


PER_REQUEST = """
    --chat --exit-trace --frequency-penalty --ignore-eos --include-stop-str-in-output --json
    --logit-bias --logprobs --max-tokens --min-p --min-tokens --n --presence-penalty --prompt-ids
    --prompt-logprobs --prompt-logprobs-every-loop --repetition-penalty --requests --seed --stop
    --temperature --top-k --top-p
"""
"""Flags of `looped generate` that are about its requests or its output."""


def test_every_engine_option_of_generate_is_one_of_serve():
    def flags(command):
        text = looped(command, "--help").stdout
        return set(re.findall(r"^ +(--[a-z-]+)", text, re.MULTILINE))

    generate, serve = flags("generate"), flags("serve")
    assert generate - serve == set(PER_REQUEST.split())
    found = [field for config in (EngineConfig, ServerConfig) for field in fields(config)]
    names = {"--" + option_flag(field.name, field.metadata) for field in found}
    assert names | {"--launch-log"} <= serve


@pytest.mark.long
def test_the_launch_log_has_what_was_served(tiny_folder, tmp_path):
    log = tmp_path / "log.jsonl"
    options = (*OPTIONS, "--launch-log", log, "--launch-log-waits")
    with process("--model", tiny_folder, *options, cwd=tmp_path) as running:
        url = url_of(running)
        wait_ready(url)
        body = {"prompt": "x", "max_tokens": 7, "ignore_eos": True}
        assert httpx.post(url + "/v1/completions", json=body, timeout=60).status_code == 200
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    events = read_launch_log(log).events
    launches = [event for event in events if isinstance(event, LaunchEvent)]
    assert sum(len(launch.tokens) for launch in launches) == 7
    assert isinstance(events[-1], EndEvent)


@pytest.mark.long
def test_the_exit_trace_of_a_killed_server_is_whole_and_a_taken_name_is_refused(
    tiny_folder, tmp_path
):
    trace = tmp_path / "trace.json"
    options = ("--model", tiny_folder, *OPTIONS, "--record-trace", trace)
    with process(*options, "--exit-threshold", "0.4", cwd=tmp_path) as running:
        url = url_of(running)
        wait_ready(url)
        loops = []
        for num_tokens in (7, 5):
            body = {"prompt": "x", "max_tokens": num_tokens, "ignore_eos": True}
            body["return_loops"] = True
            answer = httpx.post(url + "/v1/completions", json=body, timeout=60).json()
            loops.append(tuple(answer["choices"][0]["loops"]))
        running.send_signal(signal.SIGKILL)
        running.wait(30)
    assert read_exit_trace(trace, 2) == loops
    with process(*options, cwd=tmp_path) as running:
        assert running.wait(60) == 2
        assert "exists; choose another name" in running.stderr.read()
