"""ragged_paged_attention: one suite for every backend, against a float64 oracle and bit for bit."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import (
    AttentionCase,
    Decode,
    PaddedShape,
    Prompt,
    bits,
    build_case,
    expected_attention,
    random_mix,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.pallas_kernels import ragged_paged_attention, write_kv

BACKENDS = ["xla"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)

# Largest absolute difference from the oracle, by q's dtype. Values are standard normal, so no
# output is larger than about 5. Pools are compared as stored: their rounding is not an error.
TOLERANCE = {
    # Sums of up to 128 products in scores of up to about 5, each rounded to 2^-24.
    "float32": 5e-6,
    # The output is rounded to 8 bits: half a unit in the last place of values below 8.
    "bfloat16": 2**-6 + 5e-6,
}

SHAPES = {
    "two rows": PaddedShape(
        num_rows=2,
        max_num_seqs=16,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        block_size=4,
        max_model_len=150,
    ),
    "decode bucket": PaddedShape(
        num_rows=16,
        max_num_seqs=16,
        num_heads=4,
        num_kv_heads=4,
        head_dim=128,
        block_size=16,
        max_model_len=600,
    ),
    "groups of 4": PaddedShape(
        num_rows=64,
        max_num_seqs=7,
        num_heads=8,
        num_kv_heads=2,
        head_dim=64,
        block_size=8,
        max_model_len=600,
    ),
    "groups of 6": PaddedShape(
        num_rows=160,
        max_num_seqs=10,
        num_heads=6,
        num_kv_heads=1,
        head_dim=80,
        block_size=16,
        max_model_len=600,
    ),
    "groups of 8": PaddedShape(
        num_rows=130,
        max_num_seqs=3,
        num_heads=16,
        num_kv_heads=2,
        head_dim=16,
        block_size=32,
        max_model_len=600,
        num_layers=3,
    ),
    "large blocks": PaddedShape(
        num_rows=32,
        max_num_seqs=5,
        num_heads=2,
        num_kv_heads=2,
        head_dim=64,
        block_size=128,
        max_model_len=600,
    ),
    "odd blocks": PaddedShape(
        num_rows=32,
        max_num_seqs=5,
        num_heads=3,
        num_kv_heads=3,
        head_dim=16,
        block_size=12,
        max_model_len=300,
    ),
    "float16 pool": PaddedShape(
        num_rows=64,
        max_num_seqs=6,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        max_model_len=400,
        pool_dtype="float16",
    ),
    "bfloat16": PaddedShape(
        num_rows=64,
        max_num_seqs=6,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        block_size=16,
        max_model_len=400,
        query_dtype="bfloat16",
        pool_dtype="bfloat16",
    ),
    "bfloat16 over float32": PaddedShape(
        num_rows=64,
        max_num_seqs=6,
        num_heads=4,
        num_kv_heads=1,
        head_dim=80,
        block_size=16,
        max_model_len=400,
        query_dtype="bfloat16",
    ),
}
each_shape = pytest.mark.parametrize("name", SHAPES)


@functools.cache
def compiled(backend: str, scale: float):
    return jax.jit(functools.partial(ragged_paged_attention, scale=scale, backend=backend))


def attend(backend: str, case: AttentionCase) -> np.ndarray:
    return np.asarray(compiled(backend, case.q.shape[-1] ** -0.5)(*case.arguments()))


def check(backend: str, case: AttentionCase) -> None:
    out = attend(backend, case)
    assert out.dtype == case.q.dtype
    expected = expected_attention(case, case.q.shape[-1] ** -0.5)
    np.testing.assert_allclose(
        out.astype(np.float64), expected, rtol=0, atol=TOLERANCE[case.q.dtype.name]
    )
    is_nobody = ~expected.any(axis=(1, 2))
    assert not bits(out[is_nobody]).any(), "a row of no sequence must be zero"


@each_backend
@each_shape
def test_random_mixed_batches_agree_with_the_oracle(backend, name):
    rng = np.random.default_rng(list(SHAPES).index(name))
    for index in range(5):
        decodes, prompts = random_mix(rng, SHAPES[name])
        check(backend, build_case(rng, SHAPES[name], decodes, prompts, at_end=index % 2 == 0))


@each_backend
@settings(max_examples=30, deadline=None)
@given(
    decodes=st.lists(st.none() | st.builds(Decode, st.integers(1, 600)), max_size=7),
    prompts=st.lists(st.builds(Prompt, st.integers(0, 580), st.integers(1, 19)), max_size=3),
    at_end=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_mix_agrees_with_the_oracle(backend, decodes, prompts, at_end, seed):
    rng = np.random.default_rng(seed)
    check(backend, build_case(rng, SHAPES["groups of 4"], decodes, prompts, at_end=at_end))


@each_backend
@pytest.mark.parametrize("name", ["decode bucket", "groups of 8"])
def test_lengths_around_blocks_and_key_tiles_agree_with_the_oracle(backend, name):
    shape, rng = SHAPES[name], np.random.default_rng(0)
    for edge in (shape.block_size, 64, 128):
        decodes = [Decode(edge + offset) for offset in (-1, 0, 1)]
        prompts = [Prompt(edge - 1, 2), Prompt(edge, 1), Prompt(0, edge % 8 + 1)]
        check(backend, build_case(rng, shape, decodes, prompts))


@each_backend
def test_prompts_of_5_and_7_in_blocks_of_16_are_the_same_together_and_alone(backend):
    shape, rng = SHAPES["decode bucket"], np.random.default_rng(1)
    together = build_case(rng, shape, [], [Prompt(0, 5, seed=5), Prompt(0, 7, seed=7)])
    check(backend, together)
    out = attend(backend, together)
    five = attend(backend, build_case(rng, shape, [], [Prompt(0, 5, seed=5)]))
    seven = attend(backend, build_case(rng, shape, [], [Prompt(0, 7, seed=7)]))
    assert_same_bits(out[:5], five[:5])
    assert_same_bits(out[5:12], seven[:7])


@each_backend
def test_a_chunk_may_end_exactly_at_the_last_row(backend):
    case = build_case(
        np.random.default_rng(2), SHAPES["groups of 8"], [None] * 2, [Prompt(300, 128)]
    )
    item = int(np.argmax(case.prompt_rows))
    assert case.prompt_first_row[item] + case.prompt_rows[item] == len(case.q)
    check(backend, case)


@each_backend
@each_shape
def test_a_row_keeps_its_bits_whatever_its_neighbours_are(backend, name):
    """Alone; and in another place, among NaN queries and longer contexts."""
    shape, rng = SHAPES[name], np.random.default_rng(3)
    context, last = shape.max_model_len, shape.num_sequences - 1
    mine = Decode(context // 3, seed=1)
    alone = attend(backend, build_case(rng, shape, [mine], []))
    others = [Decode(int(length)) for length in rng.integers(context // 2, context + 1, last)]
    crowd = build_case(rng, shape, [*others, mine], [])
    crowd.q[:last] = np.nan
    assert_same_bits(attend(backend, crowd)[last], alone[0])

    count = min(9, shape.num_rows // 2)
    chunk = Prompt(context // 4, count, seed=2)
    alone = attend(backend, build_case(rng, shape, [], [chunk]))
    neighbour = Prompt(context - count, count)
    crowd = build_case(
        rng, shape, others[: shape.num_rows - 2 * count], [neighbour, chunk], at_end=True
    )
    crowd.q[:-count] = np.nan
    assert_same_bits(attend(backend, crowd)[-count:], alone[:count])


@each_backend
@pytest.mark.parametrize("name", ["decode bucket", "groups of 4", "groups of 6", "bfloat16"])
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 13])
def test_a_prompt_row_keeps_its_bits_whatever_the_chunk_size(backend, name, chunk_size):
    """At one number of rows: chunks of that size against chunks as large as the launch."""
    shape, rng = SHAPES[name], np.random.default_rng(4)
    num_tokens = 2 * shape.num_rows if name == "decode bucket" else shape.num_rows
    assert_same_bits(
        in_chunks(backend, rng, shape, num_tokens, chunk_size),
        in_chunks(backend, rng, shape, num_tokens, shape.num_rows),
    )


def in_chunks(backend, rng, shape, num_tokens, chunk_size):
    """Every row of one prompt, a launch a chunk, at changing places of the launch."""
    rows = []
    for start in range(0, num_tokens, chunk_size):
        count = min(chunk_size, num_tokens - start)
        room = min(shape.num_rows - count, shape.num_sequences)
        first_row = int(rng.integers(room + 1))
        case = build_case(rng, shape, [None] * first_row, [Prompt(start, count, seed=6)])
        rows.append(attend(backend, case)[first_row : first_row + count])
    return np.concatenate(rows)


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(bits(actual), bits(expected))


@each_backend
def test_an_empty_launch_is_all_zeros(backend):
    check(backend, build_case(np.random.default_rng(5), SHAPES["two rows"], [], []))


@each_backend
@pytest.mark.parametrize("pool_dtype", ["float32", "float16"])
@pytest.mark.parametrize("layer_form", ["unrolled", "looped"])
def test_a_donated_step_has_no_temporary_that_grows_with_the_pool(backend, pool_dtype, layer_form):
    """Three layers; a layer's keys depend on the output of the one before, as in a model."""

    def step(k_pool, v_pool, rows, ids, tables, vector):
        def layer(index, state):
            k_pool, v_pool, rows = state
            first_block = index * (k_pool.shape[0] // 3)
            k_pool, v_pool = write_kv(
                k_pool, v_pool, rows[:, :2], rows[:, 2:], ids, ids, first_block
            )
            metadata = (tables, vector, tables, vector, vector, vector, first_block)
            out = ragged_paged_attention(rows, k_pool, v_pool, *metadata, 0.1, backend=backend)
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
        ids, vector = (jax.ShapeDtypeStruct((size,), "int32") for size in (24, 8))
        tables = jax.ShapeDtypeStruct((8, 32), "int32")
        donated = jax.jit(step, donate_argnums=(0, 1))
        analysis = donated.lower(pool, pool, rows, ids, tables, vector).compile().memory_analysis()
        assert analysis.alias_size_in_bytes >= 2 * pool.size * pool.dtype.itemsize
        return analysis.temp_size_in_bytes

    assert temporary_bytes(4096) == temporary_bytes(64)


@each_backend
def test_float32_products_ask_for_the_highest_precision(backend):
    case = build_case(np.random.default_rng(6), SHAPES["two rows"], [], [])
    products = [
        line
        for line in compiled(backend, 1.0).lower(*case.arguments()).as_text().splitlines()
        if "dot_general" in line
    ]
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)


def test_an_unknown_backend_is_refused_by_name():
    case = build_case(np.random.default_rng(7), SHAPES["two rows"], [], [])
    with pytest.raises(ValueError, match=r"expected one of xla, .*, got 'cuda'"):
        ragged_paged_attention(*case.arguments(), 1.0, backend="cuda")


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("q", lambda q: q[0], r"expected q \[T H D\]"),
        ("q", lambda q: q[:, :3], "3 query heads for 4 kv heads"),
        ("q", lambda q: q[..., :8], "got 8 in q and 16 in the pools"),
        ("v_pool", lambda pool: pool.astype(np.float16), "expected v_pool like k_pool"),
        ("decode_tables", lambda tables: np.tile(tables, (2, 1)), "at most T = 2 rows"),
        ("decode_lengths", lambda lengths: lengths[:1], "decode_lengths with one entry per row"),
        ("prompt_rows", lambda rows: rows[:1], "prompt_rows with one entry per row"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(field, change, message):
    case = build_case(np.random.default_rng(8), SHAPES["two rows"], [], [])
    wrong = replace(case, **{field: change(getattr(case, field))})
    with pytest.raises(ValueError, match=message):
        ragged_paged_attention(*map(jnp.asarray, wrong.arguments()), 1.0)
