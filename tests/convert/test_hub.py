"""Names of models: a folder, a hub id, or one clear line."""

import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError

from looped.convert import resolve_model_folder
from looped.errors import LoopedError

HUB_ID = "ByteDance/Ouro-1.4B"


def refuse(name: str) -> str:
    with pytest.raises(LoopedError) as caught:
        resolve_model_folder(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Records what would be downloaded, to `tmp_path`."""
    calls: list[dict[str, Any]] = []

    def download(repo_id: str, **options: Any) -> str:
        calls.append({"repo_id": repo_id, **options})
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def download(*_: Any, **__: Any) -> NoReturn:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def test_a_folder_is_taken_as_it_is(tmp_path: Path, downloads: list[dict[str, Any]]) -> None:
    assert resolve_model_folder(str(tmp_path)) == tmp_path
    assert downloads == []


def test_a_folder_wins_over_a_hub_id_of_the_same_spelling(
    tmp_path: Path, downloads: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HUB_ID).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model_folder(HUB_ID) == Path(HUB_ID)
    assert downloads == []


def test_a_home_folder_that_is_not_there_is_one_line() -> None:
    name = "~nobody-of-that-name/model"
    assert refuse(name).startswith(f"{name} begins with a home folder that is not there")


def test_the_home_folder_can_be_abbreviated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model_folder("~/model") == tmp_path / "model"


def test_a_hub_id_is_downloaded_without_code_and_pickles(
    tmp_path: Path, downloads: list[dict[str, Any]]
) -> None:
    assert resolve_model_folder(HUB_ID) == tmp_path
    (call,) = downloads
    assert call["repo_id"] == HUB_ID
    patterns = call["allow_patterns"]
    repository = [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ]
    unwanted = ["modeling_ouro.py", "pytorch_model.bin", "optimizer.pt", "README.md"]
    kept = huggingface_hub.utils.filter_repo_objects(
        [*repository, *unwanted], allow_patterns=patterns
    )
    assert list(kept) == repository


@pytest.mark.parametrize("name", ["nowhere", "./a/b", "/no/such/folder", "a/b/c", "-x/y"])
def test_what_is_neither_is_refused_without_asking_the_hub(
    name: str, downloads: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refuse(name)
    assert message == f"{name} is neither a folder nor a hub id such as ByteDance/Ouro-1.4B"
    assert downloads == []


def test_an_unreachable_hub_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, LocalEntryNotFoundError("long\nstory"))
    assert refuse(HUB_ID) == (
        f"{HUB_ID} is not in the local cache and the hub cannot be reached; "
        "check the network or give a folder"
    )


def gated() -> GatedRepoError:
    error = GatedRepoError.__new__(GatedRepoError)
    OSError.__init__(error, "Access is restricted.\nPlease log in.")
    return error


class TransportError(Exception):
    """The HTTP library's own errors derive from Exception alone."""


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("No space left\non device"), "No space left"),
        (TransportError("connection reset\nby peer"), "connection reset"),
        (HFValidationError("bad id"), "bad id"),
        (TimeoutError(), "TimeoutError"),
        (gated(), "Access is restricted."),
    ],
    ids=["disk", "transport", "id", "silent", "gated"],
)
def test_any_failure_of_the_download_gives_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    fail_with(monkeypatch, error)
    assert refuse(HUB_ID) == f"{HUB_ID} cannot be downloaded: {reason}"


def test_offline_mode_of_the_true_library_gives_one_line(tmp_path: Path) -> None:
    code = f"""
from looped.convert import resolve_model_folder
from looped.errors import LoopedError
try:
    resolve_model_folder({HUB_ID!r})
except LoopedError as error:
    print(error)
"""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == (
        f"{HUB_ID} is not in the local cache and the hub cannot be reached; "
        "check the network or give a folder\n"
    )
