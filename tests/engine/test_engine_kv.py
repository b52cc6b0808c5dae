"""Last-exited KV in the pool: prompts in every plane, exited tokens in their deeper ones."""

from dataclasses import replace

import numpy as np
import pytest
from engines import make_engine, run_params, second_fixture_is_slow

from looped.device.request_table import RowProgress, column
from looped.engine.runner import Runner
from looped.sched import ItemKind, progress

TOLERANCE = 1e-4


def cached(engine, request, num_positions):
    """[P L positions 2 K D]: a request's keys and values, gathered through its block tables."""
    shape = engine.runner.executables.shape
    planes = []
    for table in request.block_tables:
        layers = []
        for layer in range(shape.config.num_layers):
            blocks = np.array(table) + layer * shape.num_blocks
            pair = [
                # [blocks K S D] -> [positions K D]
                np.asarray(pool)[blocks].swapaxes(1, 2).reshape(-1, *pool.shape[1::2])
                for pool in (engine.runner.state.key_pool, engine.runner.state.value_pool)
            ]
            layers.append(np.stack(pair, axis=1)[:num_positions])
        planes.append(layers)
    return np.array(planes)


POLICIES = ("mixed", "separate", "atomic")


@second_fixture_is_slow
@pytest.mark.parametrize(
    ("policy", "block_size", "chunk"),
    [
        *((policy, 16, 16) for policy in POLICIES),
        *(
            pytest.param(policy, 16, 7, marks=pytest.mark.long)
            for policy in (*POLICIES, "wavefront")
        ),
        *(pytest.param(policy, 4, 16, marks=pytest.mark.slow) for policy in POLICIES),
        pytest.param("wavefront", 4, 16, marks=pytest.mark.slow),
    ],
)
def test_every_plane_matches_the_goldens(golden, policy, block_size, chunk):
    check_planes(golden, policy, block_size, chunk)


def test_mutation_finalising_a_prompt_position_breaks_the_goldens(square_golden, monkeypatch):
    """As if the prompt's last position had left after two loops."""

    def launch(runner, packed, original=Runner.launch):
        firsts = [item for item in packed.batch.head_items if item.output_index == 0]
        if not firsts:
            return original(runner, packed)
        without_head = original(runner, replace(packed, head_executable=None))
        for item in firsts:
            if item.kind is ItemKind.PROMPT:
                place = item.request.slot, column(RowProgress, "depth")
                progress = runner.state.progress.at[place].set(2)
                runner._state = replace(runner.state, progress=progress)
        runner._state, head = packed.head_executable(runner._leaves, runner.state)
        return replace(without_head, packed=packed, head=head, ticket=head)

    monkeypatch.setattr(Runner, "launch", launch)
    monkeypatch.setattr(progress, "_check_row", lambda *_: None)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_planes(square_golden, "mixed", 16, 16)


def check_planes(golden, policy, block_size, chunk):
    """Compares every request's planes with the goldens, shortly before it ends."""
    wanted = {"mode": "ouro", "threshold": 0.5, "min_loops": 1}
    runs = [
        run
        for run in golden.runs
        if wanted.items() <= run.items() and f"kv_{run['prompt']}" in golden.arrays
    ]
    engine = make_engine(
        golden.folder,
        policy=policy,
        block_size=block_size,
        prefill_chunk_size=chunk,
        num_blocks=4 * 8 * 96 // block_size,
        run_ahead=0,  # so that the pool is seen as the tokens are
    )
    for index, run in enumerate(runs):
        engine.add_request(str(index), golden.prompts[run["prompt"]], run_params(run))
    checked = set()
    while engine.has_unfinished_requests():
        for request in list(engine.scheduler.active_requests):
            if len(request.output_token_ids) == request.max_tokens - 1:
                # The last token but one has been cached and its deeper planes filled by its head;
                # the newest token's own position is not complete yet.
                index, num_positions = int(request.request_id), request.capacity - 1
                expected = golden.arrays[f"kv_{runs[index]['prompt']}"][:, :, :num_positions]
                got = cached(engine, request, num_positions)
                np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
                checked.add(index)
        engine.step()
    assert len(checked) == len(runs) >= 3
    early = sum(depth < 4 for run in runs for depth in run["exit_depths"])
    assert early > 20
