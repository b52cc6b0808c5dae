"""Documentation that names files, tests, options and figures must not outlive them."""

import re
import subprocess
import sys
from collections import defaultdict

import pytest
import typer
from house import FOLDERS, ROOT, source_files

from looped.cli import app
from looped.pallas_kernels import BACKENDS
from looped.sched.policies.registry import FACTORIES, POLICIES

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
OTHERS_OPTIONS = {"--backend", "--endpoint", "--svg"}
"""Options on our pages that are not `looped`'s: of clients, and of an experiment."""
GLOSSARY = {
    *("slot", "place", "plane", "lane", "segment", "rung", "door", "loop", "depth", "row", "block"),
    *("chunk", "item", "launch", "program", "head", "bucket", "ride", "riding", "run-ahead"),
    *("record", "ticket", "request"),
}
"""Words that a reader meets everywhere."""
STALE = re.compile(
    r"not here yet|does not exist yet|yet to show|(?:DESIGN|FIELD|STYLE)\.md"
    r"|\bhangs? (?:on|together)\b|\btalks? (?:on|to) std|RFCs?\b(?! \d{4})"
)
"""What became untrue, what only its writer can read, and what is not English."""


def commands(group=None, prefix=()):
    """Every command of `looped` by its words."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*prefix, name))
        else:
            yield (*prefix, name), command


def options_of(command):
    return {
        option
        for parameter in command.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if option.startswith("--")
    }


COMMANDS = dict(commands())
OPTIONS = {"--help", "--version", "--quiet"}.union(*map(options_of, COMMANDS.values()))


def anchor_of(heading):
    """A heading's address on its page, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), flags=re.MULTILINE)
            assert anchor in map(anchor_of, headings), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_file_exists(page):
    names = {path.name for path in ROOT.rglob("*.py") if ".venv" not in path.parts}
    for folder, name in re.findall(r"`((?:[\w-]+/)*)(\w+\.py)\b", page.read_text()):
        assert name in names, name
        assert not folder or (ROOT / folder / name).is_file(), f"{folder}{name}"


def test_every_named_test_exists():
    tests = defaultdict(str)
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests[path.name] += path.read_text()
    named = [
        found
        for page in PAGES
        for found in re.findall(r"`(test_\w+\.py)(?:::(test_\w+))?", page.read_text())
    ]
    assert len(named) > 20
    for file, test in named:
        assert file in tests, file
        assert not test or f"def {test}(" in tests[file], f"{file}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_named_option_exists(page):
    text = page.read_text()
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)).replace("\\\n", " ")
    ours = [line for line in blocks.splitlines() if line.startswith("looped ")]
    inline = re.findall(r"`[^`\n]*`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(ours + inline)))
    assert not named - OPTIONS - OTHERS_OPTIONS


@pytest.mark.parametrize("command", ["generate", "score", "convert", "export", "inspect"])
def test_the_commands_page_has_every_option(command):
    text = (ROOT / "docs" / "cli.md").read_text()
    named = set(re.findall(r"--[a-z][\w-]*", text))
    negated = {f"--no-{option[2:]}" for option in OPTIONS}
    assert not options_of(COMMANDS[command,]) - named - negated


def test_the_serving_page_has_every_option_of_the_server_alone():
    text = (ROOT / "docs" / "serving.md").read_text()
    alone = options_of(COMMANDS["serve",]) - options_of(COMMANDS["generate",])
    negated = {f"--no-{option[2:]}" for option in OPTIONS}
    assert not alone - set(re.findall(r"--[a-z][\w-]*", text)) - negated


def test_the_policies_page_has_every_policy_and_its_options():
    text = (ROOT / "docs" / "policies.md").read_text()
    for name in (*POLICIES, *FACTORIES):
        assert f"`{name}`" in text
    for factory in FACTORIES.values():
        for option in factory.__code__.co_varnames[: factory.__code__.co_argcount]:
            assert f"--policy-option {option}=" in text


def test_help_and_the_commands_page_name_the_backends_that_there_are():
    (parameter,) = [one for one in COMMANDS["generate",].params if one.name == "attention_backend"]
    text = (ROOT / "docs" / "cli.md").read_text()
    assert set(re.findall(r"\b(?:xla|pallas|triton)\w*", parameter.help)) == set(BACKENDS)
    assert all(f"`{name}`" in text for name in BACKENDS)


def test_the_glossary_has_every_word_of_the_house_with_the_fields_beside_it():
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+\.\)?) \|$", text, flags=re.MULTILINE)
    words = {word for cell, *_ in rows for word in re.split(r", | ", cell)}
    assert words >= GLOSSARY
    assert len(rows) == len([line for line in text.splitlines() if line.startswith("| ")]) - 5


@pytest.mark.parametrize("folder", ["pages", *FOLDERS])
def test_nothing_is_said_that_was_true_once_or_that_only_we_can_read(folder):
    for path in PAGES if folder == "pages" else source_files(folder):
        found = STALE.search(path.read_text())
        assert found is None, f"{path.relative_to(ROOT)}: {found[0]}"


def test_the_gap_table_and_picture_are_what_the_scheduler_does(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "experiments/mixing_gap.py", "--svg", tmp_path / "gap.svg"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for page in (ROOT / "README.md", ROOT / "docs" / "mixed-batching.md"):
        assert done.stdout in page.read_text(), page.name
    assert (tmp_path / "gap.svg").read_text() == (ROOT / "docs/mixed-batching.svg").read_text()
