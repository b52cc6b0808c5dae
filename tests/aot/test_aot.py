"""Steps compiled for a GPU that is not there: what is reported, and what fails."""

import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from checkpoints import published_config
from command_line import looped

from looped.aot import (
    DATA_SHEETS,
    Assembler,
    compile_step,
    default_rungs,
    has_plugin,
    load_target,
    make_absent_engine,
    parse_rungs,
    steps_to_compile,
)
from looped.aot.floors import floor_of
from looped.aot.kernels import find_assembler
from looped.device.state import StateShape
from looped.engine.options import LAYER_FORMS, EngineConfig
from looped.errors import UsageError
from looped.models import num_parameters, parameter_shapes, parse_config, read_config
from looped.pallas_kernels import BACKENDS
from looped.programs.compile_target import CompileTarget
from looped.programs.executables import Executables, Step
from looped.programs.sampling.forms import CONDITIONAL
from looped.sched import LaunchKind

needs_plugin = pytest.mark.skipif(
    not has_plugin(), reason="JAX's CUDA plugin is not installed: pip install 'looped[aot]'"
)

ROOT = Path(__file__).parents[2]
SMALL = ("--num-blocks", 8192, "--max-model-len", 512)


@pytest.fixture(scope="module", params=list(DATA_SHEETS))
def target(request):
    return load_target(request.param)


@pytest.fixture(scope="module")
def engine(request, target):
    folder = request.getfixturevalue("tiny_folder")
    config = EngineConfig(num_blocks=8192, max_model_len=512)
    return make_absent_engine(folder, config, target, dtype="bfloat16")


@needs_plugin
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_a_decode_step_is_compiled_with_its_state_in_place(engine, target, layers):
    executables = engine.executables(target, backend="xla", layers=layers)
    assembler = Assembler(target.architecture)
    report = compile_step(executables, Step(LaunchKind.RECURRENT, 4), target, assembler, 512)
    assert report.error is None
    assert not report.failures
    state = jax.tree.leaves(executables.state_type)
    assert report.aliased_bytes >= sum(leaf.size * leaf.dtype.itemsize for leaf in state)
    assert 0 < report.temporary_bytes < executables.shape.kv_bytes // 2
    assert report.launches_per_layer > report.launches_in_attention > 0
    # The reference's attention is a loop of many launches; every layer has four products beside.
    assert 8 <= report.launches_per_layer - report.launches_in_attention <= 30
    assert report.num_bytes > report.floor.bytes_outside_attention
    has_copies = any("copies of a weight" in aim for aim in report.missed_aims)
    assert has_copies == (layers == "scanned"), report.missed_aims
    assert (report.kernels is None) == (find_assembler() is None)
    assert all(kernel.num_registers > 0 for kernel in report.kernels or ())


# What each backend launches in a mixed step, by the names that profilers show; of `xla`, compiled
# above, nothing is its own.
KERNELS = {
    "pallas": {"_decode_kernel", "_prompt_kernel"},
    "triton": {"decode_kernel", "prompt_kernel", "finish_kernel"},
    "triton_fused": {"fused_kernel", "finish_kernel"},
}


@needs_plugin
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "xla"])
def test_a_whole_step_compiles_with_every_backend_and_its_kernels_are_reported(
    engine, target, backend
):
    if backend.startswith("triton") and find_spec("jax_triton") is None:
        pytest.skip("jax-triton is not installed: pip install 'looped[aot]'")
    executables = engine.executables(target, backend=backend, layers="scanned")
    assembler = Assembler(target.architecture)
    report = compile_step(executables, Step(LaunchKind.RECURRENT, 4), target, assembler, 512)
    assert report.error is None
    assert not report.failures  # the verdict, but for what is aimed at
    if assembler.path is None:
        pytest.skip("the step compiles, but no ptxas is here to look at its kernels")
    names = {kernel.name for kernel in report.kernels}
    assert {name for name in names if name.endswith("_kernel")} == KERNELS[backend]


@needs_plugin
@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        (LaunchKind.PREFILL, "triton"),
        (LaunchKind.PREFILL, "pallas"),
        (LaunchKind.SCORE, "triton"),
        (LaunchKind.HEAD, "triton"),
    ],
)
def test_no_other_program_of_a_gpu_waits_for_the_host(engine, target, kind, backend):
    """In every form; passes are compiled above."""
    if backend == "triton" and find_spec("jax_triton") is None:
        pytest.skip("jax-triton is not installed: pip install 'looped[aot]'")
    executables = engine.executables(target, backend=backend, layers="scanned")
    num_rows = {LaunchKind.PREFILL: 32, LaunchKind.SCORE: engine.shape.chunk_size}.get(kind, 4)
    steps = executables.steps([(kind, num_rows)])
    assert len(steps) == {LaunchKind.PREFILL: 1, LaunchKind.SCORE: 2, LaunchKind.HEAD: 8}[kind]
    for step in steps:
        report = compile_step(executables, step, target, Assembler(target.architecture), 512)
        assert report.error is None
        assert not [failure for failure in report.failures if "the host waits" in failure]


@needs_plugin
def test_mutation_the_head_of_a_cpu_would_make_the_host_of_a_gpu_wait(engine, target):
    """Its conditions survive in what XLA makes of it for a GPU, and are found there."""
    executables = engine.executables(target, backend="xla", layers="scanned")
    step = Step(LaunchKind.HEAD, 4, CONDITIONAL)
    report = compile_step(executables, step, target, Assembler(target.architecture), 512)
    assert report.error is None
    assert [failure for failure in report.failures if "the host waits" in failure]


@dataclass(frozen=True, kw_only=True)
class KeepsNothing(CompileTarget):
    """A target whose steps do not take their state over."""

    def lower(self, function, types, *, donated):
        places = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self.sharding), types
        )
        return jax.jit(function).trace(*places).lower(lowering_platforms=("cuda",))


@needs_plugin
def test_mutation_a_step_that_is_not_donated_its_state_fails_by_name(engine, target):
    good = engine.executables(target, backend="xla", layers="unrolled")
    parameters = jax.tree.unflatten(good._tree, good._leaf_types)
    sharding = target.compile_target.sharding
    executables = Executables(
        engine.shape, parameters, backend="xla", target=KeepsNothing(sharding=sharding)
    )
    report = compile_step(
        executables,
        executables.steps([(LaunchKind.HEAD, 2)])[-1],
        target,
        Assembler(target.architecture),
        512,
    )
    failures = "\n".join(report.failures)
    for name in ("key_pool", "value_pool", "token_marks"):
        assert f"state.{name} of" in failures
    assert "bytes, a layer of a pool has" in failures


@needs_plugin
def test_what_does_not_compile_is_a_failure_with_its_reason(engine, target):
    executables = engine.executables(target, backend="magic", layers="unrolled")
    report = compile_step(
        executables, Step(LaunchKind.RECURRENT, 2), target, Assembler(target.architecture), 512
    )
    assert "got 'magic'" in report.error
    assert report.failures == [f"does not compile: {report.error}"]


@needs_plugin
def test_an_absent_engine_has_the_sizes_of_one_on_that_gpu(target):
    config = ROOT / "examples/ouro-1.4b/config.json"
    engine = make_absent_engine(config, EngineConfig(), target, dtype="bfloat16")
    assert engine.shape.kv_dtype == engine.shape.dtype == jnp.bfloat16
    weights = 2 * num_parameters(read_config(config))
    left = 0.9 * 0.75 * target.memory_bytes - weights
    assert 0.95 * left < engine.shape.kv_bytes < left
    assert default_rungs(engine) == [
        (LaunchKind.RECURRENT, 16),
        (LaunchKind.RECURRENT, 144),
        (LaunchKind.RECURRENT, 256),
        (LaunchKind.SCORE, 128),
        (LaunchKind.HEAD, 16),
        (LaunchKind.PREFILL, 256),
    ]
    steps = steps_to_compile(engine, list(BACKENDS), ["unrolled", "scanned"], None)
    assert len(steps) == len(set(steps)) == 4 * (1 + 4) + 3 + 2
    assert {(backend, form) for backend, form, _ in steps} == set(product(BACKENDS, LAYER_FORMS))
    assert {rung for _, _, rung in steps} == set(default_rungs(engine))
    for form in LAYER_FORMS:  # alone, each is compiled whole
        alone = steps_to_compile(engine, ["pallas"], [form], None)
        assert [rung for _, _, rung in alone] == default_rungs(engine)
    every = parse_rungs(engine, ["all"])
    num_layered = sum(kind.runs_layers for kind, _ in every)
    both = steps_to_compile(engine, ["triton", "pallas"], LAYER_FORMS, every)
    assert len(both) == len(every) + 3 * num_layered
    assert len(every) == sum(map(len, engine.ladders.values()))
    for text in ("recurrent:7", "decode:16", "recurrent", "recurrent:-2"):
        with pytest.raises(UsageError, match=re.escape(f"got {text!r}")):
            parse_rungs(engine, [text])


@needs_plugin
def test_descriptions_and_data_sheets_say_the_same(target):
    stated = int(re.search(r"memory_bandwidth: (\d+)", target.description)[1])
    assert stated == pytest.approx(target.data_sheet.memory_bandwidth, rel=1e-3)
    assert target.architecture == {"h200": "sm_90a", "a100": "sm_80"}[target.name]
    assert target.max_shared_bytes in (232_448, 166_912)
    assert target.device.device_kind.startswith("NVIDIA")


@needs_plugin
def test_the_command_prints_a_table_and_json(tiny_folder):
    options = ("aot", "--target", "h200", "--model", tiny_folder, *SMALL, "--layers", "unrolled")
    options += ("--attention-backend", "xla", "--bucket", "recurrent:2", "--bucket", "head:2")
    table = looped(*options)
    assert re.search(r"\| xla +\| unrolled +\| recurrent:2 +\|", table.stdout)
    assert re.search(r"\| - +\| - +\| head:2 greedy +\|", table.stdout)
    assert "head:2 ranked_copies" in table.stdout
    assert "aim: h200 xla unrolled recurrent:2: " in table.stderr
    first, *heads = map(json.loads, looped(*options, "--json").stdout.splitlines())
    assert (first["kind"], {head["kind"] for head in heads}) == ("recurrent", {"head"})
    assert [head["form"] for head in heads][:5] == [
        "greedy", "drawn", "sampled", "ranked", "greedy_copies"
    ]  # fmt: skip
    assert not any(report["failures"] for report in (first, *heads))
    assert first["floor"]["weight_bytes"] > 0


@needs_plugin
def test_the_command_fails_with_the_rung_and_the_number(tiny_folder):
    options = ("--layers", "unrolled", "--attention-backend", "xla", "--bucket", "recurrent:256")
    done = looped(
        "aot", "--target", "a100", "--model", tiny_folder / "config.json", *options,
        "--num-blocks", 4, "--max-model-len", 16, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    failure = r"FAIL: a100 xla unrolled recurrent:256: [\d,]+ temporary bytes, as many as a pool"
    assert re.search(failure, done.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target", "h300"), "target must be one of h200, a100; got 'h300'"),
        (("--target", "h200", "--layers", "both"), "unrolled, scanned; got 'both'"),
        (("--target", "h200", "--attention-backend", "magic"), "xla"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_compiled(tiny_folder, options, message):
    done = looped("aot", *options, "--model", tiny_folder, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_without_the_plugin_the_command_says_what_to_install(tiny_folder, monkeypatch):
    monkeypatch.setattr("looped.aot.targets.has_plugin", lambda: False)
    done = looped("aot", "--target", "h200", "--model", tiny_folder, check=False)
    assert done.returncode == 2
    assert "pip install 'looped[aot]'" in done.stderr


def test_the_example_config_is_the_published_one():
    values = json.loads((ROOT / "examples/ouro-1.4b/config.json").read_text())
    assert values == published_config(24)


def shape_1_4b():
    return StateShape(
        config=parse_config(published_config(24)),
        dtype=jnp.dtype("bfloat16"),
        kv_dtype=jnp.dtype("bfloat16"),
        num_blocks=64,
        block_size=16,
        max_num_seqs=16,
        chunk_size=128,
        max_model_len=4096,
    )


def test_weights_of_a_pass_and_of_the_head_are_those_of_the_checkpoint():
    shape = shape_1_4b()
    sizes = {name: 2 * prod(size) for name, size in parameter_shapes(shape.config).items()}
    layers = sum(size for name, size in sizes.items() if name.startswith("layers."))
    decode = floor_of(shape, (LaunchKind.RECURRENT, 16), 4096)
    assert decode.weight_bytes == layers + sizes["final_norm.weight"]
    head = floor_of(shape, (LaunchKind.HEAD, 16), 4096)
    assert head.weight_bytes == sizes["lm_head.weight"]
    assert head.attention_bytes == 0


def test_attention_bytes_are_the_keys_and_values_that_the_rows_see():
    shape = shape_1_4b()
    per_key = shape.config.kv_values_per_token() // 4 * 2  # of one plane
    rows = 16 * 24 * 2 * 2048 * 2  # queries in, outputs out
    floor = floor_of(shape, (LaunchKind.RECURRENT, 16), 1000)
    assert floor.attention_bytes == 16 * 1000 * per_key + rows
    # One prompt item reads its keys once for all its rows.
    mixed = floor_of(shape, (LaunchKind.RECURRENT, 144), 1000)
    assert mixed.attention_bytes == 17 * 1000 * per_key + 9 * rows


def test_the_estimate_is_the_longer_of_moving_and_computing():
    floor = floor_of(shape_1_4b(), (LaunchKind.RECURRENT, 16), 4096)
    assert floor.seconds(1e12, 1e30) == pytest.approx(floor.num_bytes / 1e12)
    assert floor.seconds(1e30, 1e12) == pytest.approx(floor.num_flops / 1e12)
