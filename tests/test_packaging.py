"""The house: what is in the wheel, who imports whom, and what the first import costs."""

import ast
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("looped", "sched", "pallas_kernels", "convert")

# Of ours, what each folder may import. `convert` may use the engine's configuration with what it is
# read with, parameter tree, errors and progress bars; `sched` and `pallas_kernels` stand alone.
ALLOWED = {
    "sched": (),
    "pallas_kernels": (),
    "convert": (
        "looped.config",
        "looped.errors",
        "looped.family",
        "looped.model_files",
        "looped.models",
        "looped.progress",
        "looped.quantisation",
    ),
}
# Of others, what the two pure folders may import beside the standard library.
THIRD_PARTY = {
    "sched": set(),
    "pallas_kernels": {"jax", "jaxtyping", "numpy", "triton", "jax_triton"},
}


def source_files(folder):
    return sorted(
        path for path in (ROOT / folder).rglob("*.py") if not under_link(path, ROOT / folder)
    )


def under_link(path, top):
    return any(parent.is_symlink() for parent in path.parents if top in parent.parents)


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield absolute_name(path, node)


def absolute_name(path, node):
    """The module that a `from` line means, relative ones as they are once installed."""
    if node.level == 0:
        return node.module
    parts = path.relative_to(ROOT).parent.parts
    package = parts if parts[0] == "looped" else ("looped", *parts)
    base = package[: len(package) - node.level + 1]
    return ".".join((*base, *filter(None, [node.module])))


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_follow_the_arrows(folder):
    for path in source_files(folder):
        for module in imported_modules(path):
            top = module.split(".")[0]
            assert top not in FOLDERS[1:], f"{path}: `import {top}` is not ours once installed"
            if top == "looped":
                allowed = module.startswith((f"looped.{folder}", *ALLOWED[folder]))
                assert allowed, f"{path} imports {module}"
            elif folder in THIRD_PARTY and top not in sys.stdlib_module_names:
                assert top in THIRD_PARTY[folder], f"{path} imports {module}"


def test_nothing_but_its_command_imports_the_server():
    for path in source_files("looped"):
        if path.parent != ROOT / "looped" / "server":
            modules = [name for name in imported_modules(path) if ".server" in name]
            assert not modules or path == ROOT / "looped/cli/serve.py", path


def test_the_scheduler_reads_no_clock():
    for path in source_files("sched"):
        assert not {"time", "datetime", "random"} & set(imported_modules(path)), path


def test_the_engine_never_imports_the_standard_librarys_sched_by_accident():
    for path in source_files("looped"):
        tops = {module.split(".")[0] for module in imported_modules(path)}
        assert not tops & {"sched", "convert", "pallas_kernels"}, path


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
        and not under_link(path, ROOT / folder)
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
    tables = {path.name for path in (ROOT / "sched/cost_tables").iterdir()}
    assert tables
    assert {f"looped/sched/cost_tables/{name}" for name in tables} <= names
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
