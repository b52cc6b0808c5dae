"""Which files tell launch kinds apart: the two registries, and a policy that prices launches."""

import ast
from pathlib import Path

import pytest

import looped
from looped.sched import LAUNCH_KINDS

ROOT = Path(looped.__file__).parents[1]
NAMES = {kind.name.lower() for kind in LAUNCH_KINDS}
FILES = {"sched/launches.py", "sched/policies/slack.py", "looped/programs/registry.py"}


def names_a_kind(node):
    """Whether a node is a member of LaunchKind, or weighs a value against a member's name."""
    match node:
        case ast.Attribute(value=ast.Name("LaunchKind"), attr=name):
            return name.lower() in NAMES
        case ast.Attribute(value=ast.Attribute(attr="LaunchKind"), attr=name):
            return name.lower() in NAMES
        case ast.Compare(left=left, comparators=others):
            return any(map(is_name, [left, *others]))
        case ast.MatchValue(value=value):
            return is_name(value)
        case ast.Call(func=ast.Name("launch_kind") | ast.Attribute(attr="launch_kind")):
            return any(map(is_name, node.args))
    return False


def is_name(node):
    """Whether a literal is the name of a kind, or a collection with one."""
    match node:
        case ast.Constant(value=str(text)):
            return text.lower() in NAMES
        case ast.Tuple() | ast.List() | ast.Set():
            return any(map(is_name, node.elts))
    return False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch.launch is LaunchKind.SCORE", True),
        ("sched.LaunchKind.PREFILL", True),
        ("kind.name == 'SCORE'", True),
        ("name in ('recurrent', 'prefill')", True),
        ("match name:\n    case 'score': pass", True),
        ("launch_kind('prefill')", True),
        ("kind: LaunchKind", False),
        ("launch_kind(name)", False),
        ("{'recurrent': queues.recurrent}", False),
        ("stage is Stage.RECURRENT", False),
        ("LaunchWork(LaunchKind.HEAD, bucket, 1)", False),  # a program, and no kind of launch
    ],
)
def test_what_names_a_kind_is_told_from_what_does_not(text, expected):
    assert any(map(names_a_kind, ast.walk(ast.parse(text)))) is expected


def test_no_file_but_these_tells_launch_kinds_apart():
    files = {path.resolve() for folder in ("looped", "sched") for path in python_files(folder)}
    assert len(files) > 200
    found = {
        str(path.relative_to(ROOT))
        for path in files
        if any(map(names_a_kind, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == FILES


def python_files(folder):
    return (ROOT / folder).rglob("*.py")
