"""Families: what the registry finds and refuses, and that nothing outside names one."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import FIXTURES, small_config, write_json

from looped.config import ModelConfig
from looped.errors import ForeignCheckpointError, LoopedError
from looped.measure.flop_bound import ParameterCounts
from looped.models import (
    DEFAULT_MODEL_TYPE,
    FAMILIES,
    LM_HEAD,
    Family,
    family_of,
    num_parameters,
    parameter_shapes,
    parse_config,
    registry,
)
from looped.models.config_keys import ConfigKeys
from looped.models.ouro_family import OuroFamily
from looped.sched import ExitMode
from looped.training.config import GateConfig, LookaheadConfig
from looped.training.sources import Source
from looped.training.stages import gate_stage, lookahead_stage

ROOT = Path(__file__).parents[2]
ROOMS = ("looped", "sched", "pallas_kernels", "examples", "experiments")
MAY_NAME_FAMILIES = ("looped/models/", "looped/demo/")
"""And `convert`, which is no room of those above."""

# What has a family's name in it and means something else.
EXIT_MODE_FILES = ("sched/exits.py", "looped/reference.py", "looped/server/api/schema.py")
"""They spell the exit modes as strings. A mode is called after Ouro's paper, in which it was
published, and is any model's that has a gate."""
EXIT_MODE_NAMES = {"OURO", "OURO_DELAYED", "GATE_OURO", "is_ouro"}
"""Identifiers of exit modes."""
OTHER_MEANINGS = re.compile(
    r"""(exit[ -]mode\b.*|by\ default\ )\bouro(_delayed)?\b  # an exit mode in a message
    |ExitMode\.\w+               # in source text that is searched for
    |ouro-[\w.]+-(h200|a100)     # a cost table, called after the model that it is of
    |ouro-tiny(-gqa)?            # a folder of tests/fixtures
    |(ByteDance/)?Ouro-1\.4B     # a hub id, or a published shape
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)

FAMILY_MODULES = {
    module
    for family in FAMILIES.values()
    for module in (type(family).__module__, family.model_class().__module__)
}


def product_files() -> list[Path]:
    return [
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
        and not str(path.relative_to(ROOT)).startswith(MAY_NAME_FAMILIES)
    ]


def texts_of(tree: ast.AST) -> Iterator[str]:
    """Identifiers, and strings but for docstrings: prose may say what was measured of whom."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in prose | parts:
            yield str(node.value)
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value


def imported(tree: ast.AST) -> set[str]:
    """Absolute names of what a module imports from ours, modules and what is in them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level and not module.startswith("looped"):
                module = f"looped.{module}".rstrip(".")
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def named_families(text: str, *, spells_exit_modes: bool = False) -> list[str]:
    """Families whose `model_type` is in an identifier or string, in whatever case."""
    if text in EXIT_MODE_NAMES or (spells_exit_modes and text in set(ExitMode)):
        return []
    rest = OTHER_MEANINGS.sub("", text).lower()
    return [model_type for model_type in FAMILIES if model_type in rest]


def test_no_module_outside_models_convert_and_demo_names_a_family() -> None:
    found = {}
    for path in product_files():
        name = str(path.relative_to(ROOT))
        spells = name in EXIT_MODE_FILES
        tree = ast.parse(path.read_text())
        named = [
            text for text in texts_of(tree) if named_families(text, spells_exit_modes=spells)
        ] + sorted(FAMILY_MODULES & imported(tree))
        if named:
            found[name] = named
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "model: OuroModel",
        "def is_ouro_model(): ...",
        "model_type = 'ouro'",
        "assert architecture == 'OuroForCausalLM'",
        "raise ValueError(f'{model_type} is not Ouro')",
    ],
)
def test_a_family_that_is_named_is_found(source: str) -> None:
    assert any(map(named_families, texts_of(ast.parse(source))))


@pytest.mark.parametrize(
    "source",
    [
        "from looped.models.ouro import rotate",
        "from looped.models import ouro",
        "from .models.ouro_family import TENSOR_NAMES",
        "from ..models import ouro_family as family",
        "import looped.models.ouro_family",
    ],
)
def test_an_imported_module_of_a_family_is_found(source: str) -> None:
    assert FAMILY_MODULES & imported(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        '"""Ouro, in prose."""',
        "rule = ExitMode.OURO_DELAYED",
        "help = 'Exit mode: trace or ouro'.lower()",
        "raise UsageError(f'exit mode {mode}: expected ouro, ouro_delayed')",
        "table = 'ouro-1.4b-h200'",
        "hub_id = 'ByteDance/Ouro-1.4B'",
    ],
)
def test_exit_modes_cost_tables_and_hub_ids_are_not_families(source: str) -> None:
    assert not any(map(named_families, texts_of(ast.parse(source))))


# The registry.


def test_a_family_is_found_by_its_model_type_and_by_what_was_read() -> None:
    for model_type, family in FAMILIES.items():
        assert family.model_type == model_type
    config = parse_config(small_config())
    assert family_of(config) is FAMILIES[config.model_type]
    assert DEFAULT_MODEL_TYPE in FAMILIES


def test_what_a_family_writes_it_reads_back() -> None:
    config = replace(parse_config(small_config()), exit_threshold=0.5, dtype="bfloat16")
    assert parse_config(family_of(config).write_config(config)) == config


def test_reading_a_configuration_needs_no_jax(tmp_path: Path) -> None:
    path = FIXTURES / "ouro-tiny" / "config.json"
    code = (
        "import sys; from pathlib import Path; from looped.models import num_parameters, "
        f"read_config; num_parameters(read_config(Path({str(path)!r}))); print(*sys.modules)"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert not {"jax", "flax", "numpy"} & set(output.split())


@pytest.mark.parametrize(
    ("changes", "described"),
    [
        ({"model_type": "llama"}, "llama (OuroForCausalLM)"),
        (
            {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "llama (LlamaForCausalLM)",
        ),
        ({"model_type": "llama", "architectures": None}, "llama"),
        ({"model_type": None, "architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"model_type": ["ouro"], "architectures": None}, "['ouro']"),
    ],
)
def test_an_unknown_family_is_refused_with_those_that_are_served(
    changes: dict[str, Any], described: str
) -> None:
    with pytest.raises(ForeignCheckpointError) as caught:
        parse_config(small_config(**changes), source="x/config.json")
    assert str(caught.value) == (
        f"a model of the family {described}, and only ouro (ByteDance's Ouro and its fine-tunes) "
        "is served: x/config.json"
    )


# A second family, which is Ouro's but for what a family may differ in.


class PlainFamily(OuroFamily):
    """No gate, and as many loops as it was made for."""

    model_type = "plain"
    architecture = "PlainForCausalLM"
    name = "Plain"
    description = "made for a test"
    tensor_mark = None

    def read_config(self, keys: ConfigKeys) -> ModelConfig:
        config = super().read_config(keys)
        return replace(config, has_gate=False, has_adjustable_loops=False)

    def parameter_shapes(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        shapes = super().parameter_shapes(config)
        return {name: shape for name, shape in shapes.items() if not name.startswith("exit_gate")}


@pytest.fixture
def plain_family(monkeypatch: pytest.MonkeyPatch) -> Family:
    family = PlainFamily()
    monkeypatch.setattr(registry, "FAMILIES", {**FAMILIES, family.model_type: family})
    return family


def plain_config(**changes: Any) -> dict[str, Any]:
    return small_config(model_type="plain", architectures=["PlainForCausalLM"], **changes)


def test_another_family_is_served_beside_the_first(plain_family: Family) -> None:
    config = parse_config(plain_config())
    assert family_of(config) is plain_family
    assert family_of(parse_config(small_config())) is FAMILIES["ouro"]
    assert parse_config(plain_config(), source="x").model_type == "plain"
    assert num_parameters(config) == num_parameters(parse_config(small_config())) - 12 - 1
    with pytest.raises(LoopedError, match=r"model_type is missing; 'ouro' and 'plain' are supp"):
        parse_config(plain_config() | {"model_type": None})


def test_a_refusal_names_every_family_that_is_served(plain_family: Family) -> None:
    served = r"only ouro \(.*\) and plain \(made for a test\) are served"
    with pytest.raises(ForeignCheckpointError, match=served):
        parse_config(small_config(model_type="llama"))


def test_work_is_counted_without_a_gate_and_with_a_tied_head(
    plain_family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parse_config(plain_config())
    untied = ParameterCounts.of(config)
    assert untied.head == config.vocab_size * config.hidden_size
    assert untied.recurrent == num_parameters(config) - 2 * untied.head
    shapes = {name: shape for name, shape in parameter_shapes(config).items() if name != LM_HEAD}
    monkeypatch.setattr(plain_family, "parameter_shapes", lambda config: shapes)
    assert ParameterCounts.of(config) == untied


@pytest.mark.parametrize("num_loops", [3, 5])
def test_a_fixed_number_of_loops_is_not_changed(plain_family: Family, num_loops: int) -> None:
    config = parse_config(plain_config())
    assert config.with_num_loops(4) is config
    with pytest.raises(LoopedError) as caught:
        config.with_num_loops(num_loops)
    assert str(caught.value) == (
        f"num_loops must be 4, got {num_loops}: models of the family plain run as many loops as "
        "they were made for; leave it out"
    )


def no_examples() -> Source:
    raise AssertionError("the model is refused before examples are read")


@pytest.mark.parametrize(
    ("stage", "config", "what"),
    [(gate_stage, GateConfig(), "a gate"), (lookahead_stage, LookaheadConfig(), "looking ahead")],
)
def test_no_gate_is_trained_where_there_is_none(
    plain_family: Family, tmp_path: Path, stage: Any, config: Any, what: str
) -> None:
    write_json(tmp_path / "config.json", plain_config())
    with pytest.raises(LoopedError) as caught:
        stage(tmp_path / "run", tmp_path, no_examples, config)
    assert str(caught.value) == (
        f"{tmp_path} has no exit gate, and {what} takes one; take a model that has a gate"
    )
    assert not (tmp_path / "run").exists()
