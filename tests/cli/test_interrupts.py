"""Ctrl-C while something runs that Python cannot interrupt, such as XLA's compiler."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from looped.cli.interrupts import SECONDS_TO_END, ended_by_second_interrupt, interruptible

COMPILES = """
import jax, jax.numpy as jnp
from looped.engine.llm_engine import LLMEngine

def compile_for_minutes(engine, *arguments, **options):
    def many_products(x):
        for index in range(1000):
            x = jnp.sin(x) @ jnp.cos(x + index)
        return x
    lowered = jax.jit(many_products).lower(jnp.ones((8, 8)))
    print("compiling", flush=True)
    lowered.compile()
    print("compiled", flush=True)

LLMEngine.warm_up = compile_for_minutes
"""
MAIN = "from looped.cli import main; main()"


@pytest.mark.long
@pytest.mark.parametrize("command", ["generate", "score"])
def test_the_second_interrupt_of_a_compilation_is_the_end(tiny_folder, tmp_path, command):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"prompt": "hello"}\n')
    with subprocess.Popen(
        [
            *(sys.executable, "-c", COMPILES + MAIN, "-q", command, "--model", tiny_folder),
            *("--requests", texts, "--max-num-seqs", "1", "--max-model-len", "128"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0"},
    ) as running:
        try:
            assert running.stdout.readline() == "compiling\n"
            time.sleep(0.5)
            running.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(1)  # the compiler goes on
            running.send_signal(signal.SIGINT)
            started = time.monotonic()
            assert running.wait(30) == 130
            assert time.monotonic() - started < 2.0
            assert running.stdout.read() == ""
            assert "Traceback" not in running.stderr.read()
        finally:
            running.kill()


STUBBORN = """
import signal, time
from looped.cli.interrupts import ended_by_second_interrupt

interrupts = []
signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: None)
with ended_by_second_interrupt():
    print("ready", flush=True)
    while len(interrupts) < MOST:
        time.sleep(0.05)
signal.signal(signal.SIGINT, signal.SIG_IGN)
time.sleep(SECONDS)
"""


def end_of(code, *numbers):
    """The exit code of a process that gets these signals, and seconds since the last."""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout.readline() == "ready\n"
            for number in numbers:
                time.sleep(0.2)
                running.send_signal(number)
            started = time.monotonic()
            return running.wait(30), time.monotonic() - started
        finally:
            running.kill()


def test_whatever_holds_on_is_gone_in_two_seconds_and_what_ends_by_itself_does():
    code = STUBBORN.replace("SECONDS", str(SECONDS_TO_END + 0.5))
    status, seconds = end_of(
        code.replace("MOST", "99"), signal.SIGINT, signal.SIGTERM, signal.SIGINT
    )
    assert status == 130
    assert seconds < 2.0
    status, seconds = end_of(code.replace("MOST", "2"), signal.SIGINT, signal.SIGINT)
    assert status == 0
    assert seconds > SECONDS_TO_END


def test_all_is_as_before_when_nothing_was_interrupted():
    def states():
        descriptor = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(descriptor)
        return descriptor, signal.getsignal(signal.SIGINT), threading.active_count()

    before = states()
    with ended_by_second_interrupt():
        assert states() != before
    assert states() == before


def test_threads_beside_the_main_one_are_left_alone():
    counts = []

    def work():
        counts.append(threading.active_count())
        with ended_by_second_interrupt():
            counts.append(threading.active_count())

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert counts[0] == counts[1]


def test_an_interrupt_is_acted_on_between_two_compilations_and_between_two_steps():
    asked = []

    def run(*, should_stop):
        for step in range(3):
            asked.append(should_stop())
            if should_stop():
                return
            yield step
            if step == 1:
                signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(interruptible(run))
    assert asked == [False, False, True]
    assert signal.getsignal(signal.SIGINT) is handler
