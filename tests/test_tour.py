"""docs/tour.md and what folders say of themselves: every hop, folder and module is where it is said
to be."""

import ast
import re

import pytest
from house import FOLDERS, ROOT, source_files

PAGE = (ROOT / "docs" / "tour.md").read_text()
HOPS = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, flags=re.MULTILINE)
MAPPED = {
    folder.rstrip("/")
    for cell in re.findall(r"^\| ((?:`[\w/]+/`(?:, )?)+) \|", PAGE, flags=re.MULTILINE)
    for folder in re.findall(r"`([\w/]+)`", cell)
}
ROOMS = {"experiments", "examples"} | {
    path.parent.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in source_files(folder)
    if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) <= 3
}
"""The folders of the source, and the rooms in them."""
INITS = [path for folder in FOLDERS for path in source_files(folder) if path.name == "__init__.py"]


def defined_names(tree, prefix=""):
    """Names of functions and classes, and of methods behind their class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from defined_names(node, f"{node.name}.")


def listed_modules(docstring):
    """Names in the left column of the lists of a folder's docstring, which are set apart by two
    spaces or more."""
    for line in docstring.splitlines():
        listed = re.match(r" {0,4}((?:[a-z]\w*/?(?:, |,$)?)+)(?:  +\S|$)", line)
        if listed and ("," in listed[0] or "  " in line.strip()):
            yield from re.findall(r"\w+", listed[1])


def test_the_way_to_the_kernel_has_at_most_12_hops_in_order():
    assert [int(number) for number, *_ in HOPS] == list(range(1, len(HOPS) + 1))
    assert 8 <= len(HOPS) <= 12
    assert HOPS[0][1:] == ("looped/cli/generate.py", "generate")
    assert HOPS[-1][1].startswith("pallas_kernels/")


@pytest.mark.parametrize(("number", "file", "name"), HOPS)
def test_every_hop_is_there(number, file, name):
    assert name in set(defined_names(ast.parse((ROOT / file).read_text())))


def test_the_map_has_every_room_and_no_folder_that_is_not_there():
    assert ROOMS <= MAPPED
    assert all((ROOT / folder).is_dir() for folder in MAPPED)


@pytest.mark.parametrize("path", INITS, ids=lambda path: path.parent.relative_to(ROOT).as_posix())
def test_a_folder_says_what_it_is_for_and_lists_what_it_has(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, path
    assert docstring.splitlines()[0].endswith("."), "the first line is a sentence"
    there = {one.stem for one in path.parent.iterdir()}
    missing = set(listed_modules(docstring)) - there
    assert not missing, f"{path} lists modules that are not in it"
