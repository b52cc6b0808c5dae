"""config.json: every key is used, ignored on purpose, or refused by name."""

import json
import logging
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import FIXTURES, published_config, small_config

from looped.config import ModelConfig
from looped.errors import LoopedError
from looped.model_files import read_json
from looped.models import num_parameters, parse_config, read_config
from looped.models.config_keys import IGNORED_KEYS


def read(**changes: Any) -> ModelConfig:
    return parse_config(small_config(**changes))


def refuse(**changes: Any) -> str:
    with pytest.raises(LoopedError) as caught:
        read(**changes)
    return str(caught.value)


def without(*names: str, **changes: Any) -> dict[str, Any]:
    return {key: value for key, value in small_config(**changes).items() if key not in names}


def test_every_field_comes_from_its_key() -> None:
    values = {
        "num_hidden_layers": 3,
        "hidden_size": 10,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "intermediate_size": 20,
        "vocab_size": 30,
        "total_ut_steps": 5,
        "max_position_embeddings": 40,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "early_exit_threshold": 0.2,
        "eos_token_id": [7, 9],
        "torch_dtype": "bfloat16",
    }
    assert read(**values) == ModelConfig(
        model_type="ouro",
        num_layers=3,
        hidden_size=10,
        num_heads=6,
        num_kv_heads=2,
        head_dim=4,
        intermediate_size=20,
        vocab_size=30,
        num_loops=5,
        max_position_embeddings=40,
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        exit_threshold=0.2,
        dtype="bfloat16",
    )


@pytest.mark.parametrize("name", ["ouro-tiny", "ouro-tiny-gqa"])
def test_the_fixtures_are_read(name: str) -> None:
    config = read_config(FIXTURES / name / "config.json")
    assert (config.num_loops, config.vocab_size) == (4, 512)


def test_the_published_config_is_read_with_every_key() -> None:
    config = parse_config(published_config(24))
    assert (config.num_layers, config.head_dim, config.dtype) == (24, 128, "bfloat16")
    assert config.rope_theta == 1e6


def test_a_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        read().num_loops = 2  # type: ignore[misc]


# Rotary positions.


def test_theta_is_read_from_the_top_level() -> None:
    assert read(rope_theta=1234.5).rope_theta == 1234.5


def test_theta_is_read_from_rope_parameters() -> None:
    values = without("rope_theta", rope_parameters={"rope_theta": 1234.5, "rope_type": "default"})
    assert parse_config(values).rope_theta == 1234.5
    values["rope_parameters"] = {"rope_theta": 77}
    assert parse_config(values).rope_theta == 77


def test_theta_may_stand_in_both_places_if_it_agrees() -> None:
    assert read(rope_theta=5.0, rope_parameters={"rope_theta": 5.0}).rope_theta == 5.0


def test_two_thetas_that_differ_are_refused() -> None:
    message = refuse(rope_theta=1e6, rope_parameters={"rope_theta": 1e4})
    assert "rope_theta is 1000000.0 at the top level and 10000.0 in rope_parameters" in message


@pytest.mark.parametrize("nested", [None, {}, {"rope_type": "default"}])
def test_a_missing_theta_is_refused_and_has_no_default(nested: dict[str, Any] | None) -> None:
    values = without("rope_theta", rope_parameters=nested)
    with pytest.raises(LoopedError, match="rope_theta is missing, at the top level and in rope_"):
        parse_config(values)


@pytest.mark.parametrize(
    "nested",
    [
        {"rope_theta": 1e6, "rope_type": "yarn"},
        {"rope_theta": 1e6, "rope_type": "default", "factor": 4.0},
        {"rope_theta": 1e6, "partial_rotary_factor": 0.5},
    ],
)
def test_rope_scaling_inside_rope_parameters_is_refused(nested: dict[str, Any]) -> None:
    message = refuse(rope_parameters=nested)
    assert "is not supported, only rope_theta with rope_type 'default' is" in message


def test_rope_parameters_that_are_no_object_are_refused() -> None:
    assert "rope_parameters must be an object, got [1]" in refuse(rope_parameters=[1])


# Keys that change the arithmetic.


@pytest.mark.parametrize(
    ("name", "value", "supported"),
    [
        ("attention_bias", True, "False or None"),
        ("hidden_act", "gelu", "'silu'"),
        ("hidden_act", None, "'silu'"),
        ("mlp_bias", True, "False or None"),
        ("rope_scaling", {"type": "yarn", "factor": 4.0}, "None"),
        ("sliding_window", 4096, "None"),
        ("tie_word_embeddings", True, "False"),
        ("tie_word_embeddings", None, "False"),
        ("use_sliding_window", True, "False or None"),
        ("use_weighted_exit", True, "False or None"),
        ("early_exit_step", 2, "None"),
    ],
)
def test_what_the_model_does_not_do_is_refused(name: str, value: Any, supported: str) -> None:
    message = refuse(**{name: value})
    assert message == f"config.json: {name} = {value!r} is not supported, only {supported} is"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_bias", False),
        ("mlp_bias", None),
        ("use_sliding_window", False),
        ("use_weighted_exit", False),
        ("early_exit_step", None),
        ("sliding_window", None),
        ("layer_types", ["full_attention", "full_attention"]),
        ("layer_types", None),
    ],
)
def test_the_same_keys_saying_what_ouro_does_are_accepted(name: str, value: Any) -> None:
    assert read(**{name: value}) == read()


def test_sliding_layers_are_refused() -> None:
    message = refuse(layer_types=["full_attention", "sliding_attention"])
    assert "layer_types is a list with 'sliding_attention'; only a list of 'full_att" in message
    assert len(refuse(layer_types=["sliding_attention", "full_attention"] * 40)) < 200
    assert "layer_types is 5" in refuse(layer_types=5)


def test_a_missing_model_type_is_refused() -> None:
    with pytest.raises(LoopedError, match="model_type is missing; 'ouro' is supported"):
        parse_config(without("model_type"))


# Other keys.


@pytest.mark.parametrize("name", ["rope_theta_2", "logit_scale", "qk_norm", "num_experts"])
def test_an_unknown_key_is_refused_by_name(name: str) -> None:
    assert f"unknown keys {name}: remove them if they do not change inf" in refuse(**{name: 1})


def test_keys_without_influence_are_ignored() -> None:
    assert read(**dict.fromkeys(IGNORED_KEYS, "anything")) == read()


def test_a_fine_tune_s_own_keys_are_ignored_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="looped")
    assert read(rltt_stage=2, rltt_lambda={"a": 1}) == read()
    assert caplog.messages == [
        "config.json: ignoring the fine-tune's own keys rltt_lambda, rltt_stage"
    ]


def test_nothing_is_logged_without_such_keys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="looped")
    parse_config(published_config(24))
    assert caplog.messages == []


REQUIRED = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "total_ut_steps",
    "max_position_embeddings",
    "rms_norm_eps",
]


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_refused_by_name(name: str) -> None:
    with pytest.raises(LoopedError) as caught:
        parse_config(without(name))
    assert str(caught.value) == f"config.json: {name} is missing"


def test_all_faults_come_in_one_message() -> None:
    with pytest.raises(LoopedError) as caught:
        parse_config({"hidden_act": "relu", "strange": 1, "vocab_size": 0})
    for name in [*REQUIRED, "rope_theta", "model_type", "hidden_act", "strange", "vocab_size"]:
        assert name in str(caught.value)


# Ranges.


COUNTS = {
    "num_hidden_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "total_ut_steps": "num_loops",
    "max_position_embeddings": "max_position_embeddings",
}


@pytest.mark.parametrize("value", [0, -1, 2.5, "4", True, [4]])
@pytest.mark.parametrize(("key", "field"), COUNTS.items())
def test_counts_are_whole_and_at_least_one(key: str, field: str, value: Any) -> None:
    said = f"must be a whole number of at least 1, got {value!r}"
    assert refuse(**{key: value}) == f"config.json: {key} {said}"
    with pytest.raises(LoopedError) as caught:
        replace(read(), **{field: value})
    assert str(caught.value) == f"{field} {said}"


def test_wrong_counts_are_refused_before_the_head_size_is_computed() -> None:
    assert "num_attention_heads must be" in refuse(head_dim=None, num_attention_heads=0)
    assert "hidden_size must be" in refuse(head_dim=None, hidden_size="12")


@pytest.mark.parametrize("value", [0, -1e-6, "1e-6", float("nan"), float("inf"), True])
@pytest.mark.parametrize("name", ["rms_norm_eps", "rope_theta"])
def test_epsilon_and_theta_are_positive_numbers(name: str, value: Any) -> None:
    assert refuse(**{name: value}) == f"{name} must be a positive number, got {value!r}"


@pytest.mark.parametrize("value", [-0.1, 1.01, "0.5", float("nan"), True])
def test_the_exit_threshold_is_in_0_to_1(value: Any) -> None:
    assert f"early_exit_threshold must be in 0 to 1, got {value!r}" in refuse(
        early_exit_threshold=value
    )
    with pytest.raises(LoopedError, match="exit_threshold must be in 0 to 1"):
        replace(read(), exit_threshold=value)


@pytest.mark.parametrize("value", [0, 0.2, 1, 1.0])
def test_the_exit_threshold_is_a_float_and_not_rounded(value: float) -> None:
    threshold = read(early_exit_threshold=value).exit_threshold
    assert threshold == value
    assert isinstance(threshold, float)


def test_no_exit_threshold_means_never_early() -> None:
    assert parse_config(without("early_exit_threshold")).exit_threshold == 1.0
    assert read(early_exit_threshold=None).exit_threshold == 1.0


def test_key_heads_divide_query_heads() -> None:
    message = refuse(num_attention_heads=4, num_key_value_heads=3)
    assert message == (
        "num_key_value_heads must divide num_attention_heads: 4 query heads, 3 key heads"
    )


def test_an_odd_head_size_is_refused() -> None:
    assert "head_dim must be even for rotary positions, got 5" in refuse(head_dim=5)


# Shapes.


@pytest.mark.parametrize("spelling", ["absent", "null"])
def test_without_its_key_the_head_size_is_hidden_over_heads(spelling: str) -> None:
    values = without("head_dim", hidden_size=32, num_attention_heads=4)
    if spelling == "null":
        values["head_dim"] = None
    assert parse_config(values).head_dim == 8


@pytest.mark.parametrize("spelling", ["absent", "null"])
def test_without_its_key_there_are_as_many_key_heads_as_query_heads(spelling: str) -> None:
    values = without("num_key_value_heads")
    if spelling == "null":
        values["num_key_value_heads"] = None
    assert parse_config(values).num_kv_heads == 4


def test_heads_may_be_wider_than_the_hidden_row() -> None:
    config = read(hidden_size=12, num_attention_heads=4, head_dim=6)
    assert config.num_heads * config.head_dim != config.hidden_size
    # 2 layers of q, o: 2*24*12; k, v: 2*12*12; mlp: 3*20*12; norms: 4*12. Two tables of 24*12,
    # the final norm, gate and its bias.
    layer = 2 * 24 * 12 + 2 * 12 * 12 + 3 * 20 * 12 + 4 * 12
    assert num_parameters(config) == 2 * layer + 2 * 24 * 12 + 12 + 12 + 1


def test_cached_values_count_planes_layers_and_key_heads() -> None:
    assert read(total_ut_steps=3).kv_values_per_token() == 3 * 2 * 2 * 2 * 6


# Types and ids.


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ("bfloat16", None, "bfloat16"),
        (None, "float16", "float16"),
        ("torch.bfloat16", None, "bfloat16"),
        ("float32", "bfloat16", "bfloat16"),
        (None, None, "float32"),
    ],
)
def test_the_type_is_read_in_both_spellings(
    older: str | None, newer: str | None, expected: str
) -> None:
    assert read(torch_dtype=older, dtype=newer).dtype == expected


def test_another_type_is_refused() -> None:
    message = refuse(torch_dtype="float64")
    assert message == "torch_dtype must be one of float32, float16, bfloat16; got 'float64'"


# Another number of loops.


def test_another_number_of_loops_changes_only_that() -> None:
    config = read()
    shallow = config.with_num_loops(2)
    assert shallow == replace(config, num_loops=2)
    assert shallow.kv_values_per_token() * 2 == config.kv_values_per_token()
    assert num_parameters(shallow) == num_parameters(config)
    assert config.num_loops == 4


def test_no_number_of_loops_changes_nothing() -> None:
    config = read()
    assert config.with_num_loops(None) is config
    assert config.with_num_loops(4) is config


@pytest.mark.parametrize("num_loops", [0, -1])
def test_less_than_one_loop_is_refused(num_loops: int) -> None:
    with pytest.raises(LoopedError, match=f"num_loops must be at least 1, got {num_loops}"):
        read().with_num_loops(num_loops)


def test_more_loops_than_trained_are_run_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert read().with_num_loops(6).num_loops == 6
    assert caplog.messages == ["running 6 loops; the checkpoint was made for 4"]


# Files.


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoopedError, match=r"config\.json is missing"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"", "is not valid JSON"),
        (b"[1]", "must hold a JSON object, got list"),
        (b"null", "must hold a JSON object, got NoneType"),
    ],
)
def test_a_file_that_is_no_json_object_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(LoopedError, match=reason):
        read_json(tmp_path / "x.json")


def test_a_file_round_trips(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(small_config()), encoding="utf-8")
    assert read_config(tmp_path / "config.json") == read()
