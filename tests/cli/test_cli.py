"""`looped` as a user types it: results on stdout, logs on stderr, mistakes in one line."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import looped
from engines import SMALL_FLAGS

from looped.cli.prompts import read_standard_input
from looped.engine.options import EngineConfig
from looped.errors import UsageError

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_installed_command_is_this_one(tiny_folder):
    command = [str(Path(sys.executable).with_name("looped")), "-q", "generate", "hello"]
    command += ["--model", str(tiny_folder), "--max-tokens", "5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == looped(*command[1:]).stdout


def test_generate_prints_the_goldens_as_json(square_golden):
    run = next(run for run in square_golden.runs if run["threshold"] == 0.5)
    prompt = ",".join(map(str, square_golden.prompts[run["prompt"]]))
    done = looped(
        "generate", "--model", square_golden.folder, "--prompt-ids", prompt, "--json",
        "--max-tokens", len(run["token_ids"]), "--ignore-eos",
        "--exit-threshold", 0.5, "--min-loops", run["min_loops"], *SMALL_FLAGS,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["prompt_token_ids"] == square_golden.prompts[run["prompt"]]
    assert result["token_ids"] == run["token_ids"]
    assert result["exit_depths"] == run["exit_depths"]
    assert result["finish_reason"] == "length"
    assert isinstance(result["text"], str)


@pytest.mark.long
def test_a_converted_and_a_hugging_face_folder_generate_the_same(tiny_folder, tmp_path):
    looped("convert", tiny_folder, tmp_path / "model")
    options = ("--max-tokens", 8, *SMALL_FLAGS)
    outputs = {
        looped("generate", "hello", "--model", folder, *options).stdout
        for folder in (tiny_folder, tmp_path / "model")
    }
    assert len(outputs) == 1


@pytest.mark.long
def test_streamed_text_is_the_text_of_the_json_result(tiny_folder):
    options = ("generate", "hello", "--model", tiny_folder, "--max-tokens", 24, *SMALL_FLAGS)
    streamed = looped(*options).stdout
    assert streamed.removesuffix("\n") == json.loads(looped(*options, "--json").stdout)["text"]


@pytest.mark.long
def test_standard_input_is_a_prompt_like_an_argument(tiny_folder):
    options = ("--model", tiny_folder, "--max-tokens", 4, "--json", "--seed", 1, *SMALL_FLAGS)
    assert (
        looped("generate", *options, stdin="hello\n").stdout
        == looped("generate", "hello", *options).stdout
    )


@pytest.mark.parametrize(
    ("text", "prompt"),
    [
        ("one\ntwo\n", "one\ntwo"),
        ("one\r\ntwo\r\n", "one\r\ntwo"),
        ("one\n\n", "one\n"),
        ("one\n\r\n", "one\n"),
        ("one\r", "one\r"),
        ("one", "one"),
    ],
)
def test_standard_input_loses_its_final_newline_and_nothing_else(monkeypatch, text, prompt):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert read_standard_input() == prompt


def test_standard_input_without_anything_is_no_prompt(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(UsageError, match=r"no prompt: give .* standard input, which is empty"):
        read_standard_input()


@pytest.mark.long
def test_raw_prompts_are_encoded_as_they_are_and_chat_prompts_by_the_template(tiny_folder):
    options = ("generate", "hi", "--model", tiny_folder, "--max-tokens", 1, "--json")
    options += SMALL_FLAGS
    raw = json.loads(looped(*options).stdout)["prompt_token_ids"]
    chat = json.loads(looped(*options, "--chat").stdout)["prompt_token_ids"]
    assert 1 not in raw
    assert chat[0] == 1
    assert set(raw) < set(chat)


@pytest.mark.long
def test_num_loops_loads_the_whole_model_at_that_depth(tiny_folder):
    options = ("generate", "--model", tiny_folder, "--prompt-ids", "5,6", "--max-tokens", 3)
    options += SMALL_FLAGS
    result = json.loads(looped(*options, "--num-loops", 2, "--json").stdout)
    assert result["exit_depths"] == [2, 2, 2]


def test_generation_stops_at_any_of_the_named_ends_unless_told_otherwise(square_golden):
    run = square_golden.runs[0]
    prompt = ",".join(map(str, square_golden.prompts[run["prompt"]]))
    options = (
        "generate", "--model", square_golden.folder, "--prompt-ids", prompt, "--json",
        "--max-loops", 1, "--max-tokens", 24, *SMALL_FLAGS,
    )  # fmt: skip
    wanted = run["token_ids"][5]
    stopped = json.loads(looped(*options, "--eos-token-id", wanted).stdout)
    cut = run["token_ids"].index(wanted) + 1
    assert stopped["token_ids"] == run["token_ids"][:cut]
    assert stopped["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt-ids", "1,x"), "takes whole numbers"),
        (("--prompt-ids", "1,512"), "token ids in 0..511, got 512"),
        (("--prompt-ids", "1", "--chat"), "cannot be used with --prompt-ids"),
        (("--prompt-ids", "1", "--max-loops", "5"), "max_loops"),
        (("--prompt-ids", "1", "--max-loops", "2", "--min-loops", "3"), "min_loops"),
        (("--prompt-ids", "1", "--max-tokens", "5000"), "4096"),
        (("",), "at least one prompt token"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(tiny_folder, arguments, message):
    done = looped("generate", "--model", tiny_folder, *arguments, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_model_that_is_not_there_is_one_clear_line():
    done = looped("generate", "hi", "--model", "nobody/nothing", check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "hub" in done.stderr


def test_inspect_shows_counts_and_sizes(tiny_folder):
    values = json.loads(looped("inspect", tiny_folder, "--json").stdout)
    assert values["num_parameters"] == 207_745
    assert values["num_tensors"] == 38
    assert values["bytes"] == 4 * 207_745
    assert values["kv_bytes_per_token"]["float32"] == 4 * 3 * 2 * 4 * 16 * 4
    assert "207,745" in looped("inspect", tiny_folder).stdout


def test_convert_then_export_gives_the_tensors_back(tiny_folder, tmp_path):
    from safetensors.numpy import load_file

    looped("convert", tiny_folder, tmp_path / "flax")
    looped("export", tmp_path / "flax", tmp_path / "back")
    before = load_file(tiny_folder / "model.safetensors")
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


@pytest.mark.long
def test_the_jitted_example_prints_what_generate_prints(tiny_folder):
    example = ROOT / "examples" / "jitted_inference.py"
    assert len(example.read_text().splitlines()) < 80
    done = subprocess.run(
        [sys.executable, example, tiny_folder, "hello", "--max-tokens", "12"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    expected = looped("generate", "hello", "--model", tiny_folder, "--max-tokens", 12, *SMALL_FLAGS)
    assert done.stdout == expected.stdout


def commands_of(page):
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_the_readme_begins_with_two_commands():
    assert commands_of("README.md")[:2] == ["make demo", "make test"]


@pytest.mark.long
@pytest.mark.parametrize("page", ["README.md", "docs/cli.md", "docs/policies.md"])
def test_the_pages_commands_run(tmp_path, page):
    ran = [command for command in commands_of(page) if command.startswith("looped ")]
    assert ran
    for command in ran:
        looped_path = Path(sys.executable).parent
        done = subprocess.run(
            re.sub(r"\b(tests/fixtures|examples)/", rf"{ROOT}/\1/", command),
            shell=True, capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | {"PATH": f"{looped_path}:{os.environ['PATH']}"},
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.long
def test_the_readmes_python_runs(capsys):
    text = (ROOT / "README.md").read_text()
    (sample,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(sample, {})
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.long
def test_requests_from_a_file_a_trace_and_the_statistics_line(square_golden, tmp_path):
    runs = [run for run in square_golden.runs if run["mode"] == "trace"][:2]
    lines = [
        {"prompt_token_ids": square_golden.prompts[run["prompt"]], "priority": index}
        for index, run in enumerate(runs)
    ]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "trace.json").write_text(json.dumps([run["trace"] for run in runs]))
    done = looped(
        "generate", "--model", square_golden.folder, "--requests", tmp_path / "requests.jsonl",
        "--exit-trace", tmp_path / "trace.json", "--max-tokens", 24, "--ignore-eos", "--json",
        "--policy", "atomic", "--scheduling-policy", "priority", "--prefill-chunk-size", 8,
        "--block-size", 4, "--no-prefix-caching", "--incremental-kv", "--kv-watermark", 4,
        "--num-blocks", 600, "--max-num-seqs", 4, "--max-num-batched-tokens", 32,
        "--run-ahead", 2, "--max-prefill-batches-before-decode", 2,
        "--kv-cache-dtype", "float32", "--max-model-len", 128, "--lookahead-seed", 3,
        "--admission-scan-limit", 8, "--admission-bypass-limit", 2,
        "--gpu-memory-utilization", 0.8,
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["token_ids"] for result in results] == [run["token_ids"] for run in runs]
    assert [result["exit_depths"] for result in results] == [run["exit_depths"] for run in runs]
    statistics = done.stderr.splitlines()[-1]
    for word in (
        "launches",
        "prefill",
        "with a head",
        "real",
        "padded",
        "readbacks",
        "compilations",
    ):
        assert word in statistics
    assert "tokens/s" in statistics
    assert "memory plan" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "fastest"), "mixed, separate, atomic"),
        (("--policy", "atomic", "--no-mixed-prefill-decode"), "off means policy separate"),
        (("--policy", "slack", "--policy-option", "speed"), "must be KEY=VALUE, got 'speed'"),
        (("--policy", "slack", "--policy-option", "speed=9"), "target, costs, got 'speed'"),
        (("--max-decode-rows", "17"), "17 is not in 1..16; leave it out for all"),
        (("--prefill-chunk-size", "256"), "256 + 16 - 1 > 256; try --max-num-batched-tokens 271"),
        (("--max-num-batched-tokens", "8"), "max_num_batched_tokens must be >= max_num_seqs"),
        (("--num-blocks", "8", "--kv-cache-bytes", "100"), "give one"),
        (("--temperature", "-1"), "temperature must be 0 (greedy) or in"),
        (("--exit-threshold", "nan"), "threshold must be in"),
        (("--exit-mode", "trace"), "needs a trace"),
        (("--requests", "nowhere.jsonl"), "cannot be read"),
    ],
)
def test_engine_options_that_cannot_work_are_one_line(tiny_folder, arguments, message):
    done = looped("-q", "generate", "hi", "--model", tiny_folder, *arguments, check=False)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.long
def test_many_slots_leave_a_long_prompt_its_chunks(tiny_folder):
    ids = ",".join(str(1 + index % 500) for index in range(800))
    options = ("--max-num-seqs", 256, "--max-tokens", 1, "--max-model-len", 1024)
    done = looped(
        "generate", "--model", tiny_folder, "--prompt-ids", ids, *options, "--num-blocks", 256
    )
    (launches,) = re.findall("launches: ([^;]*);", done.stderr)
    counts = {kind: int(count) for count, kind in map(str.split, launches.split(", "))}
    assert "; 1 with a head;" in done.stderr
    assert sum(counts.values()) <= 8


@pytest.mark.long
def test_mixed_prefill_decode_is_another_name_for_the_policy(tiny_folder):
    options = ("generate", "one", "two", "--model", tiny_folder, "--max-tokens", 4, *SMALL_FLAGS)
    on = looped(*options, "--mixed-prefill-decode", "--policy", "mixed", "--no-prompt-shortcut")
    off = looped(*options, "--no-mixed-prefill-decode")
    assert on.stdout == off.stdout
    assert "prefill" not in on.stderr.splitlines()[-1]
    assert "; 0 mixed;" in off.stderr.splitlines()[-1]
    assert EngineConfig(mixed_prefill_decode=True).policy_name == "mixed"
    assert EngineConfig(mixed_prefill_decode=False).policy_name == "separate"
    assert EngineConfig().policy_name == "mixed"


@pytest.mark.slow
def test_deterministic_and_the_shortcut_are_flags_that_change_no_token(tiny_folder):
    prompt = ",".join(str(index) for index in range(20, 60))
    options = ("generate", "--prompt-ids", prompt, "--model", tiny_folder, "--max-tokens", 4)
    options += ("--max-num-batched-tokens", 64, "--max-num-seqs", 4)
    plain = looped(*options, "--prompt-shortcut")
    fixed = looped(*options, "--deterministic")
    assert plain.stdout == fixed.stdout
    assert "1 prefill" in plain.stderr.splitlines()[-1]
    # A pass, a head, and what writes admitted requests, grown tables and edits.
    assert "compilations: 5;" in fixed.stderr.splitlines()[-1]


@pytest.mark.slow
def test_several_prompts_stream_in_the_order_they_were_given(tiny_folder):
    options = ("--model", tiny_folder, "--max-tokens", 6)
    together = looped("generate", "one", "two", "three", *options).stdout
    apart = "".join(looped("generate", text, *options).stdout for text in ("one", "two", "three"))
    assert together == apart


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--exit-threshold", "0.5"), "takes no --exit-threshold"),
        (("--max-loops", "2"), "takes no --max-loops"),
        (("--min-loops", "2"), "takes no --min-loops"),
        (("--exit-mode", "ouro"), "means exit mode trace"),
    ],
)
def test_exit_options_beside_a_trace_are_refused_not_ignored(
    tiny_folder, tmp_path, arguments, message
):
    (tmp_path / "trace.json").write_text("[[4, 1]]")
    options = ("--model", tiny_folder, "--exit-trace", tmp_path / "trace.json")
    done = looped("-q", "generate", "hi", *options, *arguments, check=False)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.long
def test_an_interrupt_is_no_traceback(tiny_folder):
    command = [
        str(Path(sys.executable).with_name("looped")), "-q", "generate", "hi", "--model",
        str(tiny_folder), "--max-tokens", "4000", "--ignore-eos",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.read(1)  # generation has begun
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr == ""
