"""The look-ahead gate beside a model: converted, exported, shown, and refused where it is wrong."""

from pathlib import Path

import numpy as np
import pytest
from checkpoints import copy_fixture
from safetensors.numpy import save_file

from looped.convert import (
    LOOKAHEAD_FILE,
    ConvertedFolder,
    LookaheadGate,
    convert_checkpoint,
    export_checkpoint,
    inspect_folder,
    read_lookahead_gate,
    write_lookahead_gate,
)
from looped.engine.llm_engine import LLMEngine
from looped.errors import LoopedError, UsageError
from looped.llm import LLM
from looped.loading import LoadedModel, load_folder
from looped.programs.lookahead import check_lookahead
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions

GATE = LookaheadGate(
    np.arange(2 * 64, dtype=np.float32).reshape(2, 64), np.asarray([0.5, -1.0], np.float32)
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = copy_fixture(tmp_path / "hf")
    write_lookahead_gate(folder, GATE)
    return folder


def same(gate: LookaheadGate | None) -> bool:
    return (
        gate is not None
        and np.array_equal(gate.weight, GATE.weight)
        and np.array_equal(gate.bias, GATE.bias)
    )


def check_looking_ahead(loaded: LoadedModel) -> None:
    check_lookahead(ExitMode.LOOKAHEAD, loaded.lookahead_gate, loaded.config.num_loops)


def test_a_gate_goes_through_conversion_and_export_and_is_shown(
    source: Path, tmp_path: Path
) -> None:
    manifest = convert_checkpoint(source, tmp_path / "converted", dtype="bfloat16")
    assert manifest.lookahead_gate == GATE.checksums
    export_checkpoint(tmp_path / "converted", tmp_path / "back")
    for folder in (source, tmp_path / "converted", tmp_path / "back"):
        assert same(read_lookahead_gate(folder, load_folder(folder).config))
        check_looking_ahead(load_folder(folder))
        inspection = inspect_folder(folder)
        assert inspection.lookahead_gate == {"weight": (2, 64), "bias": (2,)}


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    folder = copy_fixture(tmp_path / "hf")
    manifest = convert_checkpoint(folder, tmp_path / "converted")
    assert manifest.lookahead_gate == {}
    assert inspect_folder(tmp_path / "converted").lookahead_gate == {}
    assert load_folder(folder).lookahead_gate is None


def test_a_gate_that_is_trained_after_conversion_enters_the_manifest(tmp_path: Path) -> None:
    folder = copy_fixture(tmp_path / "hf")
    convert_checkpoint(folder, tmp_path / "converted")
    write_lookahead_gate(tmp_path / "converted", GATE)
    assert ConvertedFolder(tmp_path / "converted").manifest.lookahead_gate == GATE.checksums
    export_checkpoint(tmp_path / "converted", tmp_path / "back")
    assert (tmp_path / "back" / LOOKAHEAD_FILE).exists()


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_export_refuses_a_gate_that_is_not_the_manifests(
    source: Path, tmp_path: Path, damage: str
) -> None:
    convert_checkpoint(source, tmp_path / "converted")
    path = tmp_path / "converted" / LOOKAHEAD_FILE
    if damage == "flip":
        content = bytearray(path.read_bytes())
        content[-8] ^= 1
        path.write_bytes(content)
    else:
        path.unlink()
    with pytest.raises(LoopedError, match="does not match its checksums"):
        export_checkpoint(tmp_path / "converted", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": GATE.weight[:1], "bias": GATE.bias}, r"weight float32 \(2, 64\).*\(1, 64\)"),
        ({"weight": GATE.weight.astype(np.float16), "bias": GATE.bias}, "float16"),
        ({"weight": GATE.weight}, "bias float32"),
        ({"weight": GATE.weight * np.nan, "bias": GATE.bias}, "weight holds values that are not"),
    ],
)
def test_a_gate_of_another_form_is_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    folder = copy_fixture(tmp_path / "hf")
    save_file(tensors, folder / LOOKAHEAD_FILE)
    for refuse in (
        lambda: load_folder(folder),
        lambda: convert_checkpoint(folder, tmp_path / "converted"),
        lambda: inspect_folder(folder),
    ):
        with pytest.raises(LoopedError, match=message):
            refuse()
    assert not (tmp_path / "converted").exists()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    folder = copy_fixture(tmp_path / "hf")
    (folder / LOOKAHEAD_FILE).write_bytes(b"no tensors")
    with pytest.raises(LoopedError, match="cannot be read"):
        load_folder(folder)


def test_without_a_gate_the_mode_is_refused_at_the_door(tmp_path: Path) -> None:
    folder = copy_fixture(tmp_path / "hf")
    with pytest.raises(UsageError, match="lookahead needs trained heads"):
        LLM(str(folder), exit_mode=ExitMode.LOOKAHEAD)
    engine = LLMEngine(load_folder(folder))
    with pytest.raises(UsageError, match=r"request 'a': exit mode lookahead needs .*looped train"):
        engine.add_request("a", [5], SamplingParams(exit=ExitOptions(mode=ExitMode.LOOKAHEAD)))
    assert not engine.has_unfinished_requests()


def test_a_gate_serves_fewer_loops_than_it_was_trained_for_and_not_more(source: Path) -> None:
    check_looking_ahead(load_folder(source, num_loops=3))
    for num_loops, message in ((2, "run at least 3 loops"), (6, "run at most 4 loops")):
        with pytest.raises(UsageError, match=message):
            check_looking_ahead(load_folder(source, num_loops=num_loops))
