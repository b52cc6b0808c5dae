"""What a server records of the exits and gates of its requests."""

import numpy as np
from live_servers import live_server, tiny_llm

from looped.engine.observer import LaunchObserver
from looped.record.exit_trace import recording_exits
from looped.record.gate_record import read_gate_record, recording_gates
from looped.text.request_file import read_exit_trace


def test_gates_and_exits_are_recorded_in_order_of_arrival_and_early_exits_refused(
    tiny_folder, tmp_path
):
    trace, gates = tmp_path / "trace.json", tmp_path / "gates.npz"
    with (
        recording_exits(trace, LaunchObserver()) as exits,
        recording_gates(gates, exits, model="tiny") as observer,
    ):
        llm = tiny_llm(tiny_folder, observer=observer)
        with live_server(llm) as live:
            live.complete([3, 4], max_tokens=3, ignore_eos=True)
            live.complete([5], max_tokens=2, ignore_eos=True, n=2, temperature=1.0, seed=1)
            refused = live.post(
                "/v1/completions", {"prompt": [3], "max_tokens": 3, "exit_threshold": 0.5}
            )
            assert refused.status_code == 400
            assert "gates are recorded at full depth" in refused.text
    assert read_exit_trace(trace, 3) == [(4,) * 3, (4,) * 2, (4,) * 2]
    record = read_gate_record(gates)
    assert record.offsets.tolist() == [0, 3, 5, 7]
    assert np.isnan(record.probabilities).sum() == 3 * 4


def test_prompts_that_are_refused_with_a_later_one_are_not_recorded(tiny_folder, tmp_path):
    trace = tmp_path / "trace.json"
    with recording_exits(trace, LaunchObserver()) as observer:
        llm = tiny_llm(tiny_folder, observer=observer)
        with live_server(llm) as live:
            for prompts in ([[3], [4] * 254], [[4] * 254, [3]]):
                refused = live.post("/v1/completions", {"prompt": prompts, "max_tokens": 3})
                assert refused.status_code == 400
                assert "a prompt of 254 tokens leaves (max_model_len is 256), got 3" in refused.text
            live.complete([[3], [4] * 253], max_tokens=3, ignore_eos=True)
            live.wait_until_idle()
    assert read_exit_trace(trace, 2) == [(4,) * 3, (4,) * 3]
