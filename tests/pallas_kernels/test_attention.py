"""The attention contract beside its values, which are test_backends.py: bits, memory, refusals.

What a row's bits depend on is promised for the backend "xla" alone.
"""

import functools
import re
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from attention_cases import Decode, Prompt, bits, build_case
from attention_suite import SHAPES, SHIPPED_ON_CPU, Target, compiled

from looped.pallas_kernels import (
    DEFAULT_ARCHITECTURE,
    AttentionMetadata,
    architecture_of,
    ragged_paged_attention,
    resolve_backend,
    write_kv,
)

attend = Target("xla").attend
XLA_SHAPES = SHAPES | {"shipped on a CPU": SHIPPED_ON_CPU}
BY_DEFAULT = ("groups of 4", "bfloat16", "decode bucket")
"""Shapes on which rows' bits are compared by default; the others are long."""


def test_prompts_of_5_and_7_in_blocks_of_16_are_the_same_together_and_alone():
    shape, rng = SHAPES["decode bucket"], np.random.default_rng(1)
    together = build_case(rng, shape, [], [Prompt(0, 5, seed=5), Prompt(0, 7, seed=7)])
    Target("xla").check(together)
    out = attend(together)
    five = attend(build_case(rng, shape, [], [Prompt(0, 5, seed=5)]))
    seven = attend(build_case(rng, shape, [], [Prompt(0, 7, seed=7)]))
    assert_same_bits(out[:5], five[:5])
    assert_same_bits(out[5:12], seven[:7])


def test_the_shape_that_ships_on_a_cpu_is_right():
    """Prompt rows behind a prefix, two query tiles by five key tiles, and beside decode rows."""
    rng = np.random.default_rng(2)
    for decodes, prompt in (([], Prompt(320, 256)), ([Decode(500), Decode(3)], Prompt(200, 254))):
        Target("xla").check(build_case(rng, SHIPPED_ON_CPU, decodes, [prompt]))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.long)
        for name in XLA_SHAPES
    ],
)
def test_a_row_keeps_its_bits_whatever_its_neighbours_are(name):
    """Alone; and in another place, among NaN queries and longer contexts."""
    shape, rng = XLA_SHAPES[name], np.random.default_rng(3)
    context, last = shape.max_model_len, shape.num_sequences - 1
    mine = Decode(context // 3, seed=1)
    alone = attend(build_case(rng, shape, [mine], []))
    others = [Decode(int(length)) for length in rng.integers(context // 2, context + 1, last)]
    crowd = build_case(rng, shape, [*others, mine], [])
    crowd.q[:last] = np.nan
    assert_same_bits(attend(crowd)[last], alone[0])

    count = min(9, shape.num_rows // 2)
    chunk = Prompt(context // 4, count, seed=2)
    alone = attend(build_case(rng, shape, [], [chunk]))
    neighbour = Prompt(context - count, count)
    crowd = build_case(
        rng, shape, others[: shape.num_rows - 2 * count], [neighbour, chunk], at_end=True
    )
    crowd.q[:-count] = np.nan
    assert_same_bits(attend(crowd)[-count:], alone[:count])


@pytest.mark.parametrize(
    ("name", "chunk_size"),
    [
        *product(["decode bucket", "groups of 4", "groups of 6", "bfloat16"], [1, 3, 7, 13]),
        # Within a query tile, across its end, and as long as a tile but not in step with one.
        *product(["shipped on a CPU"], [13, 100, 129]),
    ],
)
@pytest.mark.long
def test_a_prompt_row_keeps_its_bits_whatever_the_chunk_size(name, chunk_size):
    """At one number of rows: chunks of that size against chunks as large as the launch."""
    shape, rng = XLA_SHAPES[name], np.random.default_rng(4)
    has_two_launches = name in ("decode bucket", "shipped on a CPU")
    num_tokens = (1 + has_two_launches) * shape.num_rows
    assert_same_bits(
        in_chunks(rng, shape, num_tokens, chunk_size),
        in_chunks(rng, shape, num_tokens, shape.num_rows),
    )


def in_chunks(rng, shape, num_tokens, chunk_size):
    """Every row of one prompt, a launch a chunk, at changing places of the launch."""
    rows = []
    for start in range(0, num_tokens, chunk_size):
        count = min(chunk_size, num_tokens - start)
        room = min(shape.num_rows - count, shape.num_sequences)
        first_row = int(rng.integers(room + 1))
        case = build_case(rng, shape, [None] * first_row, [Prompt(start, count, seed=6)])
        rows.append(attend(case)[first_row : first_row + count])
    return np.concatenate(rows)


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(bits(actual), bits(expected))


@pytest.mark.parametrize(
    ("pool_dtype", "layer_form"), [("float32", "unrolled"), ("float16", "looped")]
)
def test_a_donated_step_has_no_temporary_that_grows_with_the_pool(pool_dtype, layer_form):
    """Three layers; a layer's keys depend on the output of the one before, as in a model."""

    def step(k_pool, v_pool, rows, ids, metadata):
        def layer(index, state):
            k_pool, v_pool, rows = state
            first_block = index * (k_pool.shape[0] // 3)
            k_pool, v_pool = write_kv(
                k_pool, v_pool, rows[:, :2], rows[:, 2:], ids, ids, first_block
            )
            out = ragged_paged_attention(rows, k_pool, v_pool, metadata, first_block, 0.1)
            return k_pool, v_pool, out

        state = (k_pool, v_pool, rows)
        if layer_form == "looped":
            return jax.lax.fori_loop(0, 3, layer, state)
        for index in range(3):
            state = layer(index, state)
        return state

    def temporary_bytes(num_blocks):
        pool = jax.ShapeDtypeStruct((3 * num_blocks, 2, 16, 64), pool_dtype)
        rows = jax.ShapeDtypeStruct((24, 4, 64), "float32")
        ids = jax.ShapeDtypeStruct((24,), "int32")
        metadata = AttentionMetadata.abstract(num_decode=8, num_items=8, table_width=32)
        donated = jax.jit(step, donate_argnums=(0, 1))
        analysis = donated.lower(pool, pool, rows, ids, metadata).compile().memory_analysis()
        assert analysis.alias_size_in_bytes >= 2 * pool.size * pool.dtype.itemsize
        return analysis.temp_size_in_bytes

    assert temporary_bytes(4096) == temporary_bytes(64)


def test_float32_products_ask_for_the_highest_precision():
    case = build_case(np.random.default_rng(6), SHAPES["two rows"], [], [])
    products = [
        line
        for line in compiled("xla", 1.0).lower(*case.arguments()).as_text().splitlines()
        if "dot_general" in line
    ]
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.parametrize(
    ("name", "prompt_products"), [("float16", "f32"), ("bfloat16 over float32", "bf16")]
)
def test_only_bfloat16_prompt_rows_multiply_in_a_half_type(name, prompt_products):
    case = build_case(np.random.default_rng(6), SHAPES[name], [], [])
    products = [
        re.findall(r"tensor<[\dx]*x(\w+)>", line.rpartition(" : ")[2])
        for line in compiled("xla", 1.0).lower(*case.arguments()).as_text().splitlines()
        if "dot_general" in line
    ]
    # Of decode rows, then of prompt rows: two each, with operands of one type and float32 sums.
    expected = ["f32"] * 3, [prompt_products, prompt_products, "f32"]
    assert sorted(products) == sorted([expected[0]] * 2 + [expected[1]] * 2)


def test_an_unknown_backend_is_refused_by_name():
    case = build_case(np.random.default_rng(7), SHAPES["two rows"], [], [])
    with pytest.raises(ValueError, match=r"expected one of xla, pallas, .*, got 'cuda'"):
        ragged_paged_attention(*case.arguments(), 1.0, backend="cuda")


@pytest.mark.parametrize(
    ("name", "platform", "expected"),
    [
        ("auto", "cpu", "xla"),
        ("auto", "gpu", "triton"),
        ("auto", "cuda", "triton"),
        ("xla", "gpu", "xla"),
        ("pallas", "gpu", "pallas"),
        ("pallas", "cpu", "pallas"),
    ],
)
def test_only_auto_depends_on_the_platform(name, platform, expected):
    assert resolve_backend(name, platform) == expected


def test_auto_is_refused_where_no_backend_is_known_to_be_best():
    with pytest.raises(ValueError, match="expected the platform cpu or gpu, got 'tpu'"):
        resolve_backend("auto", "tpu")


def call_pallas(*, heads=(4, 4, 16), dtype="float32", architecture="sm_80"):
    """Trace the pallas backend on two rows."""
    num_heads, num_kv_heads, head_dim = heads
    rows, pool = (
        jax.ShapeDtypeStruct(shape, dtype)
        for shape in ((2, num_heads, head_dim), (8, num_kv_heads, 16, head_dim))
    )
    metadata = AttentionMetadata.abstract(num_decode=2, num_items=2, table_width=4)
    op = functools.partial(
        ragged_paged_attention, scale=1.0, backend="pallas", architecture=architecture
    )
    jax.eval_shape(op, rows, pool, pool, metadata, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"dtype": "int8"},
            "queries and pools of float32, float16, bfloat16; got int8",
        ),
        ({"heads": (4, 4, 512)}, "head_dim up to 256, got 512"),
        ({"heads": (65, 1, 64)}, "at most 64 query heads per kv head, got 65"),
        ({"architecture": "sm_75"}, "expected a GPU architecture of sm_80, sm_90, got 'sm_75'"),
    ],
)
def test_what_the_kernels_do_not_serve_is_refused(arguments, message):
    call_pallas()
    with pytest.raises(ValueError, match=message):
        call_pallas(**arguments)


@pytest.mark.parametrize(
    ("platform", "capability", "expected"),
    [("cpu", None, DEFAULT_ARCHITECTURE), ("gpu", "8.0", "sm_80"), ("gpu", "9.0", "sm_90")],
)
def test_the_architecture_is_the_devices_compute_capability(platform, capability, expected):
    device = SimpleNamespace(platform=platform, compute_capability=capability)
    assert architecture_of(device) == expected


def test_a_gpu_without_tiles_is_refused_by_its_architecture():
    with pytest.raises(ValueError, match=r"expected .* sm_80, sm_90, got 'sm_75'"):
        architecture_of(SimpleNamespace(platform="gpu", compute_capability="7.5"))


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("q", lambda q: q[0], r"expected q \[T H D\]"),
        ("q", lambda q: q[:, :3], "3 query heads for 4 kv heads"),
        ("q", lambda q: q[..., :8], "got 8 in q and 16 in the pools"),
        ("v_pool", lambda pool: pool.astype(np.float16), "expected v_pool like k_pool"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(field, change, message):
    case = build_case(np.random.default_rng(8), SHAPES["two rows"], [], [])
    wrong = replace(case, **{field: change(getattr(case, field))})
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(*wrong.arguments(), 1.0)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("decode_tables", lambda tables: np.tile(tables, (2, 1)), "at most T = 2 rows"),
        ("prompt_tables", lambda tables: tables[0], "prompt_tables of two axes"),
        ("decode_lengths", lambda lengths: lengths[:1], "decode_lengths with one entry per row"),
        ("prompt_position", lambda rows: rows[:1], "prompt_position with one entry per row"),
        ("prompt_first_row", lambda rows: rows[:1], "prompt_first_row with one entry per row"),
        ("prompt_rows", lambda rows: rows[:1], "prompt_rows with one entry per row"),
    ],
)
def test_metadata_that_does_not_fit_together_is_refused_by_field(field, change, message):
    case = build_case(np.random.default_rng(8), SHAPES["two rows"], [], [])
    wrong = replace(case.metadata, **{field: change(getattr(case.metadata, field))})
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(*replace(case, metadata=wrong).arguments(), 1.0)
