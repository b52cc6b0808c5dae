"""The house: which room may look into which, and how large rooms and functions may grow.

A room is a folder of `looped` (`sched`, `pallas_kernels` and `convert` are linked into it), or a
module that lies in `looped` itself.
"""

import sys
import tomllib
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest
from house import FOLDERS, ROOT, arrows, functions, imported_modules, modules, room_of, source_files

ARROWS = {
    "__main__": "cli",
    "aot": "config device engine errors loading models pallas_kernels process programs sched",
    "bench": "config convert engine errors loading measure model_files models process "
    "programs progress record sampling_params sched text",
    "cli": "aot bench config convert demo engine errors evaluation llm measure models "
    "pallas_kernels plots process progress record sampling_params sched server simulation text "
    "training",
    "config": "errors",
    "convert": "config errors model_files models progress",
    "demo": "engine errors llm sampling_params sched training",
    "device": "config sched",
    "engine": "config convert device errors loading pallas_kernels process programs "
    "sampling_params sched",
    "evaluation": "convert demo engine errors llm measure models plots sampling_params sched "
    "text training",
    "llm": "convert engine errors loading models process programs progress sampling_params text",
    "loading": "config convert errors models process",
    "measure": "config engine errors models reference",
    "model_files": "errors",
    "models": "config errors model_files",
    "plots": "engine errors record sched",
    "programs": "config convert device errors models pallas_kernels progress sampling_params sched",
    "record": "engine errors sched",
    "reference": "convert errors models",
    "sampling_params": "errors sched",
    "server": "engine errors llm process sampling_params sched text",
    "simulation": "engine errors measure progress record sampling_params sched",
    "text": "engine errors model_files record sampling_params sched",
    "training": "config convert errors loading measure model_files models plots process "
    "progress text",
}
"""Of each room, the rooms that it imports from: all of them, and no other. A room that is not here
imports from none; `sched` and `pallas_kernels` never will. A new arrow is a decision: it may not
close a circle."""
THIRD_PARTY = {
    "sched": set(),
    "pallas_kernels": {"jax", "jaxtyping", "numpy", "triton", "jax_triton"},
}
"""What the two pure folders may import beside the standard library."""
CLOCKS = {"time", "datetime", "random"}

MOST_MODULES = 16
MOST_IN_REGISTRY = 26
REGISTRIES = {"sched/policies", "looped/cli"}
"""Folders of one file an entry."""
MOST_TEST_MODULES = 30
MOST_TOP_MODULES = 12
MOST_LINES = 80
LONG_FILES = {"looped/reference.py", "pallas_kernels/triton/kernels.py"}
"""Whose functions read best in one piece: the reference, and kernels."""
MOST_COMPLEX = 12


def room_arrows():
    found = defaultdict(set)
    for module, imported in arrows(at_import=False).items():
        found[room_of(module)] |= {room_of(one) for one in imported} - {room_of(module)}
    return {room: rooms for room, rooms in found.items() if rooms}


def circle_in(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_rooms_import_from_the_rooms_that_they_may():
    found = {(room, other) for room, others in room_arrows().items() for other in others}
    allowed = {(room, other) for room, others in ARROWS.items() for other in others.split()}
    assert not found - allowed, "arrows that ARROWS does not have"
    assert not allowed - found, "arrows of ARROWS that are not there any more"


def test_no_circle_of_rooms_and_none_of_modules():
    assert circle_in(room_arrows()) is None
    assert circle_in(arrows(at_import=True)) is None
    assert circle_in({"a": {"b"}, "b": {"a"}}) is not None


def test_every_module_is_looked_at():
    graph = arrows(at_import=False)
    assert graph.keys() == modules().keys()
    assert "looped.sched.scheduler" in graph["looped.sched"]
    assert "looped.llm" in graph["looped.cli.generate"]  # inside the command
    assert "looped.llm" not in arrows(at_import=True)["looped.cli.generate"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_imports_one_of_our_folders_by_its_bare_name(folder):
    for path in source_files(folder):
        tops = {module.split(".")[0] for module in imported_modules(path)}
        assert not tops & set(FOLDERS[1:]), f"{path}: that is not ours once installed"


@pytest.mark.parametrize("folder", THIRD_PARTY)
def test_the_pure_folders_import_nothing_of_ours_and_little_of_others(folder):
    for path in source_files(folder):
        for module in imported_modules(path):
            top = module.split(".")[0]
            if top == "looped":
                assert room_of(module) == folder, f"{path} imports {module}"
            elif top not in sys.stdlib_module_names:
                assert top in THIRD_PARTY[folder], f"{path} imports {module}"


def test_the_scheduler_reads_no_clock():
    for path in source_files("sched"):
        assert not CLOCKS & set(imported_modules(path)), path


def test_nothing_but_its_command_imports_the_server():
    graph = arrows(at_import=False)
    users = {module for module, imported in graph.items() if "server" in map(room_of, imported)}
    assert {module for module in users if room_of(module) != "server"} == {"looped.cli.serve"}


def test_no_folder_has_more_modules_than_can_be_overlooked():
    sizes = defaultdict(int)
    for folder in (*FOLDERS, "tests"):
        for path in source_files(folder):
            sizes[str(path.parent.relative_to(ROOT))] += 1
    for folder, size in sizes.items():
        most = MOST_TEST_MODULES if folder.startswith("tests") else MOST_MODULES
        if folder in REGISTRIES:
            most = MOST_IN_REGISTRY
        if folder == "looped":
            most = MOST_TOP_MODULES
        assert size <= most, f"{folder} has {size} modules; at most {most}"
    assert sizes.keys() >= REGISTRIES


def test_no_function_is_longer_than_a_screen_or_two():
    for folder in (*FOLDERS, "experiments", "examples", "tests"):
        for path in source_files(folder):
            if str(path.relative_to(ROOT)) in LONG_FILES:
                continue
            for name, num_lines in functions(path):
                assert num_lines <= MOST_LINES, f"{path}: {name} has {num_lines} lines"


def test_no_function_is_more_complex_than_ruff_allows():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "C90" in lint["select"]
    assert lint["mccabe"]["max-complexity"] <= MOST_COMPLEX
    assert not [rule for rule in lint["ignore"] if rule.startswith("C90")]
    marker = "noqa: " + "C901"
    for folder in (*FOLDERS, "experiments", "examples", "tests"):
        for path in source_files(folder):
            assert marker not in path.read_text(), path
