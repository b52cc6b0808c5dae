"""The loop of every stage refuses what is no number, and a folder survives any death."""

import json

import jax.numpy as jnp
import pytest
from demo_models import TINY

from looped.demo.tokenizer import write_tokenizer
from looped.errors import LoopedError, UsageError
from looped.training.config import TrainingConfig
from looped.training.export import export_model
from looped.training.initial import initial_model
from looped.training.run_folder import STAGED_OPTIONS, RunFolder
from looped.training.trainer import check_finite, train


class NoBatches:
    def at(self, step):
        return jnp.float32(step)


def root(trained, _, step):
    """A loss of 0 at 0, where the gradient is NaN from step 2 on and 0 before."""
    value = jnp.sum(trained["x"])
    bad = jnp.where(value == 0, 0.0, jnp.sqrt(value))
    return jnp.where(step < 1, 0.0 * value, bad), {}


def test_a_gradient_that_is_no_number_is_neither_logged_nor_kept(tmp_path):
    config = TrainingConfig(steps=4, warmup_steps=1, checkpoint_interval=1)
    with (
        RunFolder.start(tmp_path / "run", {}, resume=False) as run,
        pytest.raises(LoopedError, match="gradient_norm is nan at step"),
    ):
        train(run, config, root, NoBatches(), trained={"x": jnp.zeros(3)})
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert len(lines) < 2
    assert names == {str(step + 1) for step in range(len(lines))}


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_both_loss_and_gradient_are_looked_at(name, value):
    good = {"loss": 1.0, "gradient_norm": 2.0}
    check_finite(3, good)
    with pytest.raises(LoopedError, match=f"{name} is {value} at step 3"):
        check_finite(3, good | {name: value})


def test_a_model_that_is_not_finite_is_not_exported(tmp_path):
    model = initial_model(TINY.model_config(40), 0)
    weight = model.embedding.weight
    weight[...] = weight[...].at[3, 4].set(jnp.nan)
    with pytest.raises(LoopedError, match=r"embed_tokens\.weight holds values that are not finite"):
        export_model(model, tmp_path / "model", write_tokenizer)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_killed_while_it_wrote_its_options_begins_anew(tmp_path, resume):
    (tmp_path / STAGED_OPTIONS).write_text('{"st')
    with RunFolder.start(tmp_path, {"stage": "gate"}, resume=resume):
        pass
    assert not (tmp_path / STAGED_OPTIONS).exists()
    assert (tmp_path / "run.json").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_without_a_checkpoint_is_begun_anew_with_other_options(tmp_path, resume):
    with RunFolder.start(tmp_path / "run", {"seed": 0}, resume=False):
        pass
    with RunFolder.start(tmp_path / "run", {"seed": 1}, resume=resume) as run:
        run.save(1, {"x": jnp.zeros(1)})
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == {"seed": 1}
    with pytest.raises(UsageError, match="pass --resume"):
        RunFolder.start(tmp_path / "run", {"seed": 1}, resume=False)
    with pytest.raises(UsageError, match="seed 1, now 2"):
        RunFolder.start(tmp_path / "run", {"seed": 2}, resume=True)


def test_a_run_is_not_begun_anew_while_another_process_is_in_it(tmp_path):
    with (
        RunFolder.start(tmp_path / "run", {"seed": 0}, resume=False),
        pytest.raises(LoopedError, match="another process"),
    ):
        RunFolder.start(tmp_path / "run", {"seed": 1}, resume=False)
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == {"seed": 0}


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match="is no training run"):
        RunFolder.start(tmp_path, {}, resume=True)
