"""JAX options of the environment, or of the program around: none changes a token."""

import json
import os
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from looped.cli import refused_environment
from looped.llm import LLM
from looped.process.jax_options import CONTEXTS, own_jax_options
from looped.programs.lookahead import random_head
from looped.sampling_params import SamplingParams

OTHERS = {
    "jax_enable_x64": True,
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_default_matmul_precision": "bfloat16",
    "jax_allow_f16_reductions": False,
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_disable_jit": True,
    "jax_debug_nans": True,
    "jax_debug_infs": True,
    "jax_transfer_guard_host_to_device": "disallow",
    "jax_transfer_guard_device_to_host": "disallow",
    "jax_transfer_guard_device_to_device": "disallow",
}
SIZES = {
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "max_model_len": 64,
    "num_blocks": 64,
}
PROMPT = list(range(260, 284))
REQUESTS = [
    {"max_tokens": 6, "ignore_eos": True, "temperature": temperature, "seed": 5, "logprobs": 2}
    for temperature in (0.0, 0.9)
]


@pytest.fixture
def others():
    """All options otherwise, as a program sets them."""
    before = {name: getattr(jax.config, name) for name in OTHERS}
    try:
        for name, value in OTHERS.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def tokens_of(folder):
    llm = LLM(str(folder), **SIZES)
    params = [SamplingParams(**request) for request in REQUESTS]
    done = llm.generate([PROMPT, PROMPT], params, show_progress=False)
    return [(one.token_ids, one.logprobs, one.exit_depths) for one in done]


@pytest.fixture(scope="module")
def expected(tiny_folder):
    return tokens_of(tiny_folder)


@pytest.mark.long
def test_no_option_of_the_program_changes_a_token(tiny_folder, expected, others):
    assert tokens_of(tiny_folder) == expected
    # The program's own arithmetic stays as it wanted it.
    assert {name: getattr(jax.config, name) for name in OTHERS} == OTHERS


def test_a_block_has_the_defaults_in_its_thread_alone(others):
    assert OTHERS.keys() == CONTEXTS.keys()
    seen = []
    with own_jax_options():
        assert jnp.asarray([1.0, 2.0]).sum().dtype == jnp.float32
        for name, (_, default) in CONTEXTS.items():
            assert getattr(jax.config, name) == default, name
        look = threading.Thread(target=lambda: seen.append(jax.config.jax_enable_x64))
        look.start()
        look.join()
    assert seen == [True]


def test_a_random_head_is_that_of_its_seed_alone():
    seeds = (0, 7, 2**31, 2**32 - 1)
    keys = [jax.random.key(seed) for seed in seeds]
    before = jax.config.jax_random_seed_offset
    jax.config.update("jax_random_seed_offset", 3)
    try:
        heads = [random_head(16, seed) for seed in seeds]
    finally:
        jax.config.update("jax_random_seed_offset", before)
    for key, head in zip(keys, heads, strict=True):
        np.testing.assert_array_equal(head, jax.random.normal(key, (16,)) * 16**-0.5)


@pytest.mark.long
@pytest.mark.parametrize(
    "variables",
    [
        {"jax_enable_x64": 1},
        {**OTHERS, "jax_high_dynamic_range_gumbel": 1, "jax_enable_custom_prng": 1},
    ],
    ids=["x64", "all"],
)
def test_no_variable_of_the_environment_changes_a_token(tiny_folder, tmp_path, expected, variables):
    requests = tmp_path / "requests.jsonl"
    requests.write_text(
        "".join(json.dumps({"prompt_token_ids": PROMPT, **r}) + "\n" for r in REQUESTS)
    )
    files = ["--model", tiny_folder, "--requests", requests]
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SIZES.items()]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "looped", "generate", *files, "--json", *options],
        env=os.environ | {name.upper(): str(value) for name, value in variables.items()},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [tuple(one["token_ids"]) for one in found] == [tuple(ids) for ids, _, _ in expected]
    assert "JAX_ENABLE_X64 is True here, and has no effect on looped" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "value", "fragment"),
    [
        ("JAX_ENABLE_X64", "maybe", "option of JAX in the environment is refused: .*'maybe'"),
        ("JAX_DEFAULT_PRNG_IMPL", "dice", "option of JAX in the environment is refused: .*dice"),
        ("JAX_PLATFORMS", "abacus", "no device .*'abacus'.*; set it to cpu, or leave it out"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "convert"])
def test_what_jax_refuses_in_the_environment_is_one_line(
    tiny_folder, tmp_path, command, name, value, fragment
):
    arguments = {
        "generate": ["x", "--model", tiny_folder],
        "convert": [tiny_folder, tmp_path / "converted"],
    }
    done = subprocess.run(
        [sys.executable, "-m", "looped", "--quiet", command, *arguments[command]],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(fragment, done.stderr)
    assert len(done.stderr) <= 300
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "statement", "fragment"),
    [
        ("jax._src.config", "raise ValueError('bad')", "refused: bad$"),
        ("jax._src.xla_bridge", "assert False", "no device .*'abacus'\\); set"),
        ("jax._src.xla_bridge", "raise RuntimeError('why. (set it)')", "'abacus'\\): why; set"),
        ("looped.engine", "raise ValueError('bad')", None),
        ("jax._src.core", "assert False", None),
    ],
)
def test_only_what_jax_says_of_the_environment_is_a_users_mistake(
    monkeypatch, module, statement, fragment
):
    monkeypatch.setenv("JAX_PLATFORMS", "abacus")
    with pytest.raises((ValueError, RuntimeError, AssertionError)) as caught:
        exec(compile(statement, module, "exec"), {"__name__": module})
    reason = refused_environment(caught.value)
    assert reason is None if fragment is None else re.search(fragment, reason)
