"""A destination exists complete or not at all, and nothing of the user's is lost on the way."""

from pathlib import Path

import pytest
from checkpoints import Refuse, write_checkpoint

from looped.convert import convert_checkpoint
from looped.convert.staging import staged_folder
from looped.errors import LoopedError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "models" / "source")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "old.bin").write_text("old")
    return folder


def test_the_folder_appears_only_when_the_block_ends(tmp_path: Path, source: Path) -> None:
    destination = tmp_path / "new" / "made"
    with staged_folder(destination, source=source, overwrite=False) as staged:
        (staged / "config.json").write_text("{}")
        assert not destination.exists()
        assert staged.parent == destination.parent
        assert staged.name.startswith(".made.partial-")
    assert names(destination.parent) == ["made"]
    assert names(destination) == ["config.json"]
    assert destination.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_inside_leaves_nothing(
    tmp_path: Path, source: Path, failure: type[BaseException]
) -> None:
    destination = tmp_path / "out" / "made"

    def stage_and_fail() -> None:
        with staged_folder(destination, source=source, overwrite=False) as staged:
            (staged / "config.json").write_text("{}")
            raise failure

    with pytest.raises(failure):
        stage_and_fail()
    assert names(tmp_path / "out") == []


def test_an_existing_folder_is_refused(tmp_path: Path, source: Path, refusal: Refuse) -> None:
    destination = make_model(tmp_path / "made")
    message = refusal(source, destination)
    assert message == f"{destination} exists; choose another name or pass --overwrite"


def test_an_existing_file_is_refused_even_with_overwrite(
    tmp_path: Path, source: Path, refusal: Refuse
) -> None:
    (tmp_path / "made").write_text("mine")
    for overwrite in (False, True):
        message = refusal(source, tmp_path / "made", overwrite=overwrite)
        assert "made exists and is not a folder; choose another name" in message


def test_a_link_to_nothing_is_refused(tmp_path: Path, source: Path, refusal: Refuse) -> None:
    (tmp_path / "made").symlink_to("nowhere")
    assert "exists and is not a folder" in refusal(source, tmp_path / "made", overwrite=True)


def test_overwrite_replaces_a_model_folder_whole(tmp_path: Path, source: Path) -> None:
    destination = make_model(tmp_path / "out" / "made")
    with staged_folder(destination, source=source, overwrite=True) as staged:
        (staged / "config.json").write_text('{"new": 1}')
        assert names(destination) == ["config.json", "old.bin"]
    assert names(destination) == ["config.json"]
    assert (destination / "config.json").read_text() == '{"new": 1}'
    assert names(tmp_path / "out") == ["made"]


def test_overwrite_fills_an_empty_folder(tmp_path: Path, source: Path) -> None:
    (tmp_path / "made").mkdir()
    with staged_folder(tmp_path / "made", source=source, overwrite=True) as staged:
        (staged / "config.json").write_text("{}")
    assert names(tmp_path / "made") == ["config.json"]


def test_overwrite_does_not_replace_a_folder_that_is_no_model(
    tmp_path: Path, source: Path, refusal: Refuse
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("mine")
    message = refusal(source, tmp_path / "thesis", overwrite=True)
    assert "is not a model folder (no config.json in it), so --overwrite does not" in message


def test_overwrite_keeps_the_old_folder_if_the_block_fails(tmp_path: Path, source: Path) -> None:
    destination = make_model(tmp_path / "out" / "made")
    with (
        pytest.raises(RuntimeError),
        staged_folder(destination, source=source, overwrite=True),
    ):
        raise RuntimeError
    assert names(tmp_path / "out") == ["made"]
    assert (destination / "old.bin").read_text() == "old"


def test_the_old_folder_comes_back_if_the_last_rename_fails(tmp_path: Path, source: Path) -> None:
    destination = make_model(tmp_path / "out" / "made")
    with (
        pytest.raises(OSError, match="No such file"),
        staged_folder(destination, source=source, overwrite=True) as staged,
    ):
        staged.rmdir()
    assert names(tmp_path / "out") == ["made"]
    assert (destination / "old.bin").read_text() == "old"


def test_a_relative_destination_may_be_the_working_folder(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "out" / "here")
    with staged_folder(Path(), source=source, overwrite=True) as staged:
        (staged / "config.json").write_text("{}")
    assert names(tmp_path / "out") == ["here"]
    assert names(tmp_path / "out" / "here") == ["config.json"]


@pytest.mark.parametrize("inside", ["", "converted", "deep/down", "../source/converted"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_destination_in_the_source_is_refused(
    source: Path, refusal: Refuse, inside: str, overwrite: bool
) -> None:
    destination = source / inside
    message = refusal(source, destination, overwrite=overwrite)
    assert message.startswith(f"{destination} lies in the source {source}")


def test_a_destination_in_a_linked_source_is_refused(
    tmp_path: Path, source: Path, refusal: Refuse
) -> None:
    (tmp_path / "link").symlink_to(source)
    assert "lies in the source" in refusal(source, tmp_path / "link" / "converted")


def test_a_destination_that_contains_the_source_is_refused(source: Path, refusal: Refuse) -> None:
    (source.parent / "config.json").write_text("{}")
    message = refusal(source, source.parent, overwrite=True)
    assert message.startswith(f"{source.parent} contains the source {source}")


def test_a_neighbour_whose_name_begins_alike_is_accepted(source: Path) -> None:
    convert_checkpoint(source, source.with_name("source-converted"))
    assert names(source.parent) == ["source", "source-converted"]


def test_the_destination_is_checked_before_the_source_is_read(tmp_path: Path) -> None:
    make_model(tmp_path / "made")
    with pytest.raises(LoopedError, match="made exists"):
        convert_checkpoint(tmp_path / "nowhere", tmp_path / "made")


def test_what_has_appeared_in_the_meantime_is_not_replaced(tmp_path: Path, source: Path) -> None:
    destination = tmp_path / "made"

    def stage_beside_another() -> None:
        with staged_folder(destination, source=source, overwrite=False) as staged:
            (staged / "config.json").write_text("new")
            make_model(destination)

    with pytest.raises(LoopedError, match="exists; choose another name"):
        stage_beside_another()
    assert (destination / "old.bin").read_text() == "old"
    assert names(tmp_path) == ["made", "models"]
