"""What Prometheus reads agrees with what the engine did."""

import pytest
from live_servers import live_server, tiny_llm
from prometheus_client.parser import text_string_to_metric_families


def samples(live):
    """Every sample as {(name, labels): value}."""
    text = live.get("/metrics").text
    return {
        (sample.name.removeprefix("looped_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values, name, **labels):
    return sum(
        value
        for (other, pairs), value in values.items()
        if other == name and labels.items() <= dict(pairs).items()
    )


@pytest.mark.parametrize("policy", ["mixed", "atomic"])
def test_metrics_are_the_engines_own_totals(tiny_folder, policy):
    llm = tiny_llm(tiny_folder, policy=policy)
    with live_server(llm) as live:
        for fields in (
            {"prompt": [[7] * 40, [8] * 3], "max_tokens": 6, "exit_threshold": 0.3, "min_loops": 1},
            {"prompt": "hello", "max_tokens": 2, "n": 3},
            {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1},
        ):
            response = live.post("/v1/completions", {"ignore_eos": True, **fields})
            assert response.status_code == 200, response.text
        live.wait_until_idle()
        values, stats = samples(live), live.service.stats
        records = llm.engine.runner.records
        assert total(values, "launches_total") == len(records)
        for record in records:
            kind, bucket = record.kind.name.lower(), str(record.bucket)
            assert total(values, "launches_total", kind=kind, bucket=bucket) >= 1
        passes = {record.index: max(record.num_passes, 1) for record in records}
        assert total(values, "rows_total", rows="padded") == sum(
            record.num_padded_rows * passes[record.index] for record in records
        )
        assert total(values, "rows_total") == sum(
            record.bucket * passes[record.index] for record in records
        )
        assert total(values, "heads_total") == stats.num_heads > 0
        assert total(values, "heads_total") == sum(record.head is not None for record in records)
        looked_at = ("left", "stayed", "leaves_next", "ended")
        assert stats.num_head_rows == sum(
            total(values, "head_rows_total", status=status) for status in looked_at
        )
        assert total(values, "head_rows_total", status="left") == 18
        assert total(values, "head_rows_total", status="stayed") > 0
        assert total(values, "head_rows_total") == sum(
            record.head.bucket for record in records if record.head is not None
        )
        assert total(values, "request_table_writes_total") == stats.num_writes > 0
        ended = [item for record in records for item in record.items if item.depth is None]
        assert total(values, "rows_total", rows="ended") == len(ended)
        assert total(values, "rows_total", kind="score", rows="prompt") == stats.num_score_rows
        prompt_depths = {
            dict(labels)["depth"]: value
            for (name, labels), value in values.items()
            if name == "rows_total"
            and dict(labels)["rows"] == "prompt"
            and dict(labels)["kind"] in ("recurrent", "prefill")
        }
        assert set(prompt_depths) == {"0", "1", "2", "3"}
        assert len(set(prompt_depths.values())) == 1  # prompts run every loop
        num_mixed = sum(record.is_mixed for record in records)
        assert total(values, "mixed_launches_total") == num_mixed == stats.num_mixed_launches
        assert (num_mixed > 0) == (policy == "mixed")
        assert total(values, "readbacks_total") == stats.num_readbacks
        assert total(values, "compilations_total") == stats.num_compilations > 0
        assert total(values, "output_tokens_total") == stats.num_output_tokens == 18
        assert total(values, "time_to_first_token_seconds_count") == 5
        assert total(values, "inter_token_latency_seconds_count") == 18 - 5
        assert total(values, "queue_seconds_count") == 6
        assert total(values, "queue_seconds_sum") < total(values, "request_seconds_sum")
        assert total(values, "samples_finished_total", reason="length") == 6
        assert total(values, "exit_depth_count") == 18
        assert total(values, "exit_depth_bucket", le="4.0") == 18
        assert total(values, "exit_depth_bucket", le="3.0") == sum(
            count
            for loops, count in live.get("/status").json()["exit_depths"].items()
            if loops < "4"
        )
        for name in ("requests_waiting", "requests_running", "kv_blocks_used"):
            assert total(values, name) == 0
        assert total(values, "kv_blocks") == stats.num_blocks


@pytest.mark.long
def test_the_queue_ends_with_the_first_launch_and_not_with_the_first_token(tiny_folder):
    """Eight samples fit at a time: of sixteen, eight wait for the end of one of the others."""
    with live_server(tiny_llm(tiny_folder)) as live:
        fields = {"max_tokens": 60, "ignore_eos": True}
        live.complete([[token] * 20 for token in range(7, 7 + 16)], **fields)
        live.wait_until_idle()
        values = samples(live)
        assert total(values, "queue_seconds_count") == 16
        queued, served, first_tokens = (
            total(values, f"{name}_seconds_sum")
            for name in ("queue", "request", "time_to_first_token")
        )
        assert 0.1 * served < queued < first_tokens


def test_no_request_causes_a_compilation(live):
    before = total(samples(live), "compilations_total")
    for num_tokens in (1, 2, 15, 16, 17, 33, 100, 200):
        live.complete([7] * num_tokens, max_tokens=3, logprobs=1, echo=True)
    live.complete([[5] * 20] * 9, max_tokens=5, n=2, frequency_penalty=1, logit_bias={"5": 2})
    assert total(samples(live), "compilations_total") == before


def test_cached_prompt_tokens_are_in_the_usage(live):
    prompt = [111, 112, 113, 114] * 12
    first = live.complete(prompt, max_tokens=1)["usage"]
    second = live.complete(prompt, max_tokens=1)["usage"]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] == 32  # not the block of the last token
    assert second["prompt_tokens"] == first["prompt_tokens"] == 48


def test_priorities_and_exit_modes_are_for_servers_that_have_them(tiny_folder):
    with live_server(tiny_llm(tiny_folder, scheduling_policy="priority")) as live:
        assert live.post("/v1/completions", {"prompt": "x", "priority": -3}).status_code == 200
        response = live.post("/v1/completions", {"prompt": "x", "exit_mode": "ouro"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "exit_mode"


def test_the_model_card_says_what_a_load_client_needs(live):
    (card,) = live.get("/v1/models").json()["data"]
    assert card["vocab_size"] == live.llm.engine.model_config.vocab_size
    assert card["max_model_len"] == 256
