"""The oracle against the goldens: every token, every exit depth, every cached key and value."""

import jax.numpy as jnp
import numpy as np
import pytest

from looped.errors import UsageError
from looped.loading import load_folder
from looped.reference import DenseCache, generate, run_loop


def run_golden(model, golden, run):
    return list(
        generate(
            model,
            golden.prompts[run["prompt"]],
            max_tokens=len(run["token_ids"]),
            mode=run["mode"],
            threshold=run["threshold"],
            min_loops=run["min_loops"],
            max_loops=run.get("max_loops"),
            trace=run.get("trace"),
        )
    )


@pytest.mark.parametrize(
    ("golden", "every"),
    [
        ("ouro-tiny", 3),
        ("ouro-tiny-gqa", 5),
        pytest.param("ouro-tiny", 1, marks=pytest.mark.long),
        pytest.param("ouro-tiny-gqa", 1, marks=pytest.mark.long),
    ],
    indirect=["golden"],
)
def test_every_golden_run_is_matched_token_for_token(golden, every):
    model = load_folder(golden.folder).model
    wrong = []
    for run in golden.runs[::every]:
        tokens = run_golden(model, golden, run)
        if [token.token_id for token in tokens] != run["token_ids"]:
            wrong.append((run, "token_ids"))
        if [token.exit_depth for token in tokens] != run["exit_depths"]:
            wrong.append((run, "exit_depths"))
    assert not wrong
    assert len(golden.runs) > 90


@pytest.mark.long
def test_prefilling_n_tokens_equals_prefilling_one_and_decoding_the_rest(tiny_folder):
    model = load_folder(tiny_folder).model
    token_ids = jnp.arange(100, 116)
    for length in (1, 2, 7, 16):  # each a program to compile
        cache = DenseCache.zeros(model, 64)
        rows = model.embed(token_ids[:length])
        for depth in range(4):
            rows, _, cache = run_loop(model, rows, jnp.arange(length), depth, cache)
        stepwise = DenseCache.zeros(model, 64)
        for position in range(length):
            row = model.embed(token_ids[position : position + 1])
            for depth in range(4):
                row, _, stepwise = run_loop(model, row, jnp.asarray([position]), depth, stepwise)
        np.testing.assert_allclose(rows[-1], row[0], atol=2e-5)
        np.testing.assert_allclose(cache.keys, stepwise.keys, atol=2e-5)


def test_an_exit_fills_the_deeper_planes_from_the_last_loop_run():
    planes = np.arange(4 * 2 * 3, dtype=np.float32).reshape(4, 2, 3, 1, 1)
    cache = DenseCache(jnp.asarray(planes), jnp.asarray(-planes))
    filled = cache.fill_deeper_planes(position=1, exit_loop=2)
    expected = planes.copy()
    expected[2:, :, 1] = planes[1, :, 1]
    np.testing.assert_array_equal(filled.keys, expected)
    np.testing.assert_array_equal(filled.values, -expected)


def test_threshold_one_never_exits_early_even_if_the_gate_saturates(tiny_folder):
    model = load_folder(tiny_folder).model
    model.exit_gate.bias[...] = jnp.full((1,), 1e4)
    depths = [token.exit_depth for token in generate(model, [5, 6], max_tokens=4, threshold=1.0)]
    assert depths == [4, 4, 4, 4]
    depths = [token.exit_depth for token in generate(model, [5, 6], max_tokens=4, threshold=0.999)]
    assert depths == [4, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_loops": 3, "max_loops": 2}, "1 <= min_loops <= max_loops <= 4"),
        ({"max_loops": 5}, "max_loops 5"),
        ({"mode": "trace"}, "trace option"),
        ({"trace": [4]}, "for that mode alone"),
        ({"mode": "random_lookahead"}, "lookahead option"),
    ],
)
def test_contradicting_options_are_refused(tiny_folder, options, message):
    model = load_folder(tiny_folder).model
    with pytest.raises(UsageError, match=message):
        next(generate(model, [1], max_tokens=2, **options))


def test_the_goldens_hold_runs_of_every_mode_this_file_claims(golden):
    modes = {run["mode"] for run in golden.runs}
    assert modes == {"ouro", "ouro_delayed", "trace"}
