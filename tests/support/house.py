"""The sources as they stand: modules, the rooms they lie in, who imports whom, functions."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("looped", "sched", "pallas_kernels", "convert")
"""Of what is installed; all but the first are linked into it."""


def source_files(folder: str) -> list[Path]:
    """The Python files under a folder, each once: links are not followed."""
    top = ROOT / folder
    return sorted(path for path in top.rglob("*.py") if not is_under_link(path, top))


def modules() -> dict[str, Path]:
    """Every installed module by its name."""
    return {_name_of(path): path for folder in FOLDERS for path in source_files(folder)}


def room_of(module: str) -> str:
    """The folder that a module lies in, or the module itself where that is `looped`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def imported_modules(path: Path) -> Iterator[str]:
    """Modules that a file's import lines name, wherever they stand, as they are once installed."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _named(path, node)


def arrows(*, at_import: bool) -> dict[str, set[str]]:
    """Of ours, what every module imports.

    Args:
        at_import: leave out what functions import when they run. What stands under TYPE_CHECKING
            is left out in any case.
    """
    known = modules()
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        found[module] = set()
        for node in _import_lines(ast.parse(path.read_text()), at_import=at_import):
            for name in _named(path, node):
                members = [f"{name}.{alias.name}" for alias in node.names]
                if isinstance(node, ast.Import) or name not in known:
                    members = [name]
                found[module] |= {one if one in known else name for one in members}
        found[module] &= known.keys() - {module}
    return found


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Functions of a file with their lines, signature and docstring not counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            yield node.name, node.end_lineno - body[0].lineno + 1 if body else 0


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "looped" else ("looped", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_under_link(path: Path, top: Path) -> bool:
    """Whether a path is seen through one of the links below `top`."""
    return any(parent.is_symlink() for parent in path.parents if top in parent.parents)


def _import_lines(node: ast.AST, *, at_import: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        elif not (at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from _import_lines(child, at_import=at_import)


def _named(path: Path, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif node.level == 0:
        yield node.module
    else:
        parts = _name_of(path).split(".")
        package = parts if path.name == "__init__.py" else parts[:-1]
        base = package[: len(package) - node.level + 1]
        yield ".".join((*base, *filter(None, [node.module])))
