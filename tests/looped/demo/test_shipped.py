"""The installed demo model is what commands use where no other is named."""

import pytest
from checkpoints import read_checkpoint
from command_line import looped
from engines import SMALL

from looped.cli.options import chosen_model
from looped.demo import shipped
from looped.demo.answers import answers
from looped.demo.problems import held_out
from looped.errors import LoopedError
from looped.evaluation.demo import ENGINE
from looped.llm import LLM


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
    ((model, config),) = served
    assert (model, config.served_model_name) == (str(installed), name)


@pytest.fixture(scope="module")
def trained():
    """The model that ships, where it is there already."""
    try:
        return shipped.shipped_model()
    except LoopedError:
        pytest.skip("looped/demo/model is absent: no trained model ships yet")


def test_the_model_that_ships_is_small_and_has_its_card(trained):
    tensors = read_checkpoint(trained)
    assert sum(tensor.size for tensor in tensors.values()) <= 3_000_000
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"bfloat16"}
    assert sum(file.stat().st_size for file in trained.iterdir()) <= 8_000_000
    card = (trained / "README.md").read_text()
    for heading in ("Data", "Recipe", "Accuracy by depth", "Limits"):
        assert f"## {heading}\n" in card


def test_the_model_that_ships_answers_held_out_problems(trained):
    llm = LLM(str(trained), dtype="float32", config=ENGINE)
    given = answers(llm, held_out(20))
    assert sum(answer.is_right for answer in given) >= 15
