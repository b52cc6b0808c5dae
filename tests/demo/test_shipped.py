"""The installed demo model is what commands use where no other is named."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import looped
from engines import SMALL
from safetensors.numpy import load_file

from looped.cli.options import chosen_model
from looped.demo import shipped
from looped.demo.answers import MAX_TOKENS, answers
from looped.demo.problems import QUICK_COUNT, held_out
from looped.errors import LoopedError
from looped.evaluation.demo import ENGINE, MIN_LOOPS, POLICIES, THRESHOLDS, summarise
from looped.evaluation.loop_use import FULL_DEPTH
from looped.llm import LLM
from looped.sampling_params import SamplingParams
from looped.sched import ExitOptions

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(monkeypatch, tiny_folder, tmp_path):
    """An installation whose demo model is the tiny checkpoint."""
    (tmp_path / "model").symlink_to(tiny_folder)
    monkeypatch.setattr(shipped, "files", lambda package: tmp_path)
    return tmp_path / "model"


@pytest.fixture
def without(monkeypatch, tmp_path):
    """An installation without a demo model."""
    monkeypatch.setattr(shipped, "files", lambda package: tmp_path)
    return tmp_path / "model"


def test_the_model_lies_in_the_package():
    assert shipped.files("looped.demo").joinpath("shipped.py").is_file()


@pytest.mark.long
def test_generate_without_a_model_uses_it_and_says_so(installed):
    options = ("generate", "hello", "--max-tokens", 4, "--max-model-len", SMALL.max_model_len)
    done = looped(*options)
    assert done.stdout == looped(*options, "--model", installed).stdout
    assert f"no --model given: using the demo model, {installed}" in done.stderr
    assert "no --model given" not in looped(*options, "--model", installed).stderr


@pytest.mark.parametrize("command", [("generate", "hello"), ("serve",), ("eval", "demo")])
def test_without_one_the_error_says_what_to_do(without, command):
    done = looped(*command, check=False)
    assert done.returncode == 1
    assert f"there is no demo model in {without}; name a model with --model" in done.stderr


def test_a_named_model_is_taken_as_it_is(without):
    assert chosen_model("nobody/nothing") == "nobody/nothing"
    with pytest.raises(LoopedError, match="looped train pretrain --task demo"):
        chosen_model(None)


@pytest.mark.parametrize(
    ("arguments", "name"), [((), shipped.NAME), (("--served-model-name", "mine"), "mine")]
)
def test_a_server_calls_it_by_a_name_of_its_own(installed, monkeypatch, arguments, name):
    served = []
    monkeypatch.setattr("looped.llm.LLM", lambda model, **options: model)
    monkeypatch.setattr("looped.server.run.serve", lambda *given: served.append(given) or False)
    looped("serve", *arguments)
    ((model, config, _),) = served
    assert (model, config.served_model_name) == (str(installed), name)


@pytest.fixture(scope="module")
def trained():
    return shipped.shipped_model()


@pytest.fixture(scope="module")
def llm(trained):
    return LLM(str(trained), dtype="float32", config=replace(ENGINE, min_loops=MIN_LOOPS))


def test_the_model_that_ships_is_small_and_has_its_card(trained):
    tensors = load_file(trained / "model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) <= 3_000_000
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"bfloat16"}
    assert sum(file.stat().st_size for file in trained.iterdir()) <= 8_000_000
    card = (trained / "README.md").read_text()
    for heading in ("Data", "Recipe", "Accuracy by depth", "Limits"):
        assert f"## {heading}\n" in card
    assert f"--exit-threshold {THRESHOLDS[0]:g} --min-loops {MIN_LOOPS}\n" in card


@pytest.mark.long
def test_the_model_that_ships_answers_held_out_problems_and_exits_keep_that(llm):
    """Of 1,000 problems it has 95.5 % right, and 95.2 % at 2.33 mean loops."""
    problems = held_out(40)
    full = summarise(answers(llm, problems), 4, FULL_DEPTH)
    exits = ExitOptions(threshold=THRESHOLDS[0])
    adaptive = summarise(answers(llm, problems, exits), 4, THRESHOLDS[0])
    assert full.accuracy.num_right >= 36
    assert adaptive.accuracy.num_right >= full.accuracy.num_right - 2
    assert adaptive.loops.mean < 0.75 * full.loops.mean
    assert adaptive.loops_by_difficulty[1].mean < adaptive.loops_by_difficulty[4].mean


def policies_agree(llm, count, threshold):
    """Whether ids and exit depths of so many held-out problems are equal under every policy."""
    runs = [
        [
            (answer.completion.token_ids, answer.completion.exit_depths)
            for answer in answers(
                llm.with_options(policy=policy),
                held_out(count),
                ExitOptions(threshold=threshold),
            )
        ]
        for policy in POLICIES
    ]
    assert all(len(run) == count for run in runs)
    return runs[0] == runs[1] == runs[2]


@pytest.mark.long
def test_its_answers_are_the_same_under_every_policy(llm):
    assert policies_agree(llm, 24, THRESHOLDS[0])


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [FULL_DEPTH, THRESHOLDS[0]])
def test_87_of_87_of_its_answers_are_the_same_under_every_policy(llm, threshold):
    assert policies_agree(llm, QUICK_COUNT, threshold)


@pytest.mark.long
def test_it_answers_chats_too(llm):
    question = "Ada has 5 pens. Ada finds 3 more. How many pens does Ada have now?"
    (done,) = llm.generate([llm.encode_chat(question)], SamplingParams(max_tokens=MAX_TOKENS))
    assert done.text.strip() == "So 5 + 3 = 8; answer 8"


def test_the_figures_of_the_pages_are_those_of_the_card(trained):
    card = (trained / "README.md").read_text()
    depths = re.findall(r"^\| [1-4] \| \d+ of 1000 \| ([\d.]+) %", card, flags=re.MULTILINE)
    row = rf"\| threshold {THRESHOLDS[0]:g} \| ([\d.]+) % \| ([\d.]+) \| ([\d.]+) %"
    accuracy, loops, _ = re.findall(row, card)[0]
    readme, evaluation, training = (
        (ROOT / page).read_text()
        for page in ("README.md", "docs/evaluation.md", "docs/training.md")
    )
    rows = ("loaded with one loop", "with two", "with three", "with four, every loop")
    for row, share in zip(rows, depths, strict=True):
        assert f"| {row} | {share} % |" in evaluation
    assert f"{THRESHOLDS[0]:g} --min-loops {MIN_LOOPS}` | {accuracy} % | {loops} |" in evaluation
    assert f"{accuracy} % correctly at {loops} loops a token, against {depths[-1]} %" in readme
    assert "{}, {}, {} and\n{} % right".format(*depths) in training
