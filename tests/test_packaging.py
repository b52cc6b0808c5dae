"""What is in the wheel, and what the first import costs."""

import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

from house import FOLDERS, ROOT, is_under_link, source_files


def listed_packages():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]


def test_every_folder_with_code_is_a_listed_package():
    found = set()
    for folder in FOLDERS:
        for path in source_files(folder):
            parts = path.parent.relative_to(ROOT).parts
            found.add(".".join(parts if folder == "looped" else ("looped", *parts)))
    assert found | data_folders() == set(listed_packages())
    assert found & data_folders() == set()


def data_folders():
    """Folders of data in packages: setuptools warns, at length, of those that are not listed."""
    return {
        ".".join(("looped", *path.parent.relative_to(ROOT).parts)).replace(
            "looped.looped", "looped"
        )
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix in {".json", ".txtpb"}
        and not is_under_link(path, ROOT / folder)
    }


def test_the_three_links_are_relative_and_point_at_the_folders():
    for folder in FOLDERS[1:]:
        link = ROOT / "looped" / folder
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{folder}"


def test_every_package_and_what_lies_beside_the_code_is_in_the_wheel(tmp_path):
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path]
    copy = tmp_path / "checkout"
    copy_sources(copy)
    subprocess.run([*command, copy], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    targets = {f"looped/pallas_kernels/targets/{name}.txtpb" for name in ("a100", "h200")}
    assert {"looped/py.typed", "looped/server/status.html", *targets} <= names
    tables = {path.name for path in (ROOT / "sched/costing/cost_tables").iterdir()}
    assert tables
    assert {f"looped/sched/costing/cost_tables/{name}" for name in tables} <= names
    model = {path.name: path.read_bytes() for path in (ROOT / "looped/demo/model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= model.keys()
    for name, content in model.items():
        assert archive.read(f"looped/demo/model/{name}") == content, name
    for folder in FOLDERS:
        for path in source_files(folder):
            relative = path.relative_to(ROOT)
            name = str(relative if folder == "looped" else Path("looped") / relative)
            assert name in names
    assert not [name for name in names if name.startswith(("sched/", "convert/", "tests/"))]


def copy_sources(copy):
    """The tree without links followed, so that a build leaves nothing in the checkout."""
    copy.mkdir()
    for name in (*FOLDERS, "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, copy / name)


def run_outside(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout


def test_import_sched_outside_the_checkout_is_the_standard_librarys(tmp_path):
    output = run_outside(
        tmp_path, "-c", "import sched, looped.sched; print(sched.__file__, looped.sched.__file__)"
    )
    standard, ours = output.split()
    assert not standard.startswith(str(ROOT))
    assert ours != standard


def test_help_answers_within_a_second_and_without_jax(tmp_path):
    code = (
        "import sys; sys.argv = ['looped', '--help']\n"
        "from looped.cli import main\n"
        "try:\n    main()\n"
        "finally:\n    print('modules:', *sys.modules)"
    )
    times = []
    for _ in range(3):
        start = time.perf_counter()
        output = run_outside(tmp_path, "-c", code)
        times.append(time.perf_counter() - start)
    loaded = set(output.partition("modules:")[2].split())
    assert "generate" in output
    assert not loaded & {"jax", "jaxlib", "flax", "numpy", "orbax", "fastapi", "uvicorn"}
    assert min(times) < 1.0


def test_the_scheduler_imports_without_jax(tmp_path):
    output = run_outside(tmp_path, "-c", "import looped.sched, sys; print(*sys.modules)")
    assert not {"jax", "numpy", "flax"} & set(output.split())
