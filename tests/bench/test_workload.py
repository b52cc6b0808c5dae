"""What every arm is given follows from numbers and a seed; contradictions are refused with them."""

from dataclasses import replace

import pytest
from stub_target import WORKLOAD, play

from looped.bench.engine_point import Point
from looped.bench.workload import Workload
from looped.engine.events import RequestEvent
from looped.errors import UsageError


def derive(**changes):
    values = {
        "model": "folder",
        "dtype": None,
        "kv_cache_dtype": None,
        "attention_backend": "xla",
        "num_planes": 4,
        "num_decoders": 8,
        "prompt_tokens": 512,
        "budget": 256,
        "chunk_size": None,
        "block_size": 16,
        "exit_threshold": 1.0,
        "exits": "replay",
        "num_pairs": 6,
        "workload": {"vocab_size": 4096},
    }
    return Point.derive(**values | changes)


def test_what_is_left_out_follows_from_the_rest():
    point = derive()
    workload = point.workload
    assert (point.max_num_seqs, point.chunk_size) == (10, 128)
    assert (workload.decoder_prompt_tokens, workload.first_injection) == (32, 64)
    assert workload.injection_interval == (4 + 5) * 8
    assert workload.num_prompts * 8 * 6 >= 1000
    last = workload.injection_point(workload.num_prompts - 1)
    assert workload.output_tokens * 8 > last + 2 * 4 * 8
    assert derive(budget=128).chunk_size == 119
    many = derive(budget=None, num_decoders=200, decoder_prompt_tokens=2)
    assert (many.budget, many.max_num_seqs, many.chunk_size) == (512, 202, 128)
    assert derive(budget=None) == derive(budget=256)
    assert derive(bystander_tokens=16).max_num_seqs == 12


def test_a_chunk_that_comes_out_small_is_warned_of(caplog):
    with caplog.at_level("WARNING", logger="looped"):
        derive(budget=137)
        derive(budget=20, prompt_tokens=8, decoder_prompt_tokens=2)
        derive(budget=20, chunk_size=2, decoder_prompt_tokens=2)
        assert caplog.text == ""
        derive(budget=136)
    assert "the chunk is 127, all that budget 136 has room for beside 10 requests" in caplog.text
    assert "try --budget 137" in caplog.text


def test_all_requests_fit_the_pool_at_once():
    point = derive(prompt_tokens=2048)
    assert point.max_model_len == 2049
    assert point.num_blocks == 4 * 129 * 10


def test_the_same_seed_gives_the_same_distinct_prompts():
    items = WORKLOAD.items(has_decoders=True, has_prompts=True)
    assert items == WORKLOAD.items(has_decoders=True, has_prompts=True)
    prompts = {item.prompt_token_ids[:8] for item in items}
    assert len(prompts) == len(items)
    assert replace(WORKLOAD, seed=1).decoders != WORKLOAD.decoders


def test_a_point_survives_json():
    point = derive().with_traces(((4, 1, 2),) * 8)
    assert Point.from_json(point.to_json()) == point


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk_size": 250}, "250 \\+ 10 - 1 > 256; try --budget 259"),
        ({"budget": 8}, "chunk"),
        ({"decoder_prompt_tokens": 33}, "budget // B = 32\\), got 33"),
        ({"exits": "other"}, "exits must be one of replay, live"),
        ({"exit_threshold": 1.5}, "exit_threshold must be in 0 to 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        derive(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_tokens": 16}, "comes at 32 committed tokens, and the decoders emit 2 x 16 = 32"),
        ({"first_injection": 1}, "first_injection must be at least the number of decoders"),
        ({"num_prompts": 0}, "num_prompts must be at least 1, got 0"),
        ({"traces": ((4,),)}, "an exit trace for each of 2 decoders, got 1"),
    ],
)
def test_a_workload_that_cannot_be_played_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        replace(WORKLOAD, **changes)


def test_a_shortened_workload_still_has_its_prompt():
    short = WORKLOAD.shortened()
    assert isinstance(short, Workload)
    assert short.num_prompts == 1
    assert short.output_tokens < WORKLOAD.output_tokens
    run = play("A2", workload=short)
    assert len(run.windows) == 1


@pytest.mark.parametrize("slowness", [0.01, 1.0, 100.0])
def test_prompts_come_by_progress_whatever_the_clock_says(slowness):
    def tokens_at_arrival(seconds):
        run = play("A1", seconds=seconds)
        counts, count = [], 0
        for event in run.events:
            count += len(getattr(event, "tokens", ()))
            if isinstance(event, RequestEvent) and event.request_id.startswith("prompt"):
                counts.append(count)
        return counts

    assert tokens_at_arrival(lambda batch: slowness * len(batch.items)) == [8, 33]
