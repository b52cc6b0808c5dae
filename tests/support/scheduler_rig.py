"""What scheduler tests start from: a small scheduler on the stub, requests, an empty view."""

from stub_executor import VOCAB_SIZE, Driver, StubExecutor, StubPayload

from looped.sched import (
    ExitOptions,
    ExitRule,
    PromptScoring,
    Request,
    Scheduler,
    SchedulerConfig,
    View,
    resolve_exit,
)

NUM_PLANES = 4
FULL_DEPTH = resolve_exit(ExitOptions(), ExitOptions(), NUM_PLANES)
ADAPTIVE = resolve_exit(ExitOptions(threshold=0.5, min_loops=1), ExitOptions(), NUM_PLANES)
PAYLOAD = StubPayload(0)
EMPTY_VIEW = View(
    now=0.0,
    num_planes=NUM_PLANES,
    max_num_batched_tokens=10,
    max_num_seqs=4,
    max_decode_rows=4,
    prefill_interval=1,
    prefill_chunk_size=8,
    prompt_shortcut=False,
    num_prompt_launches=0,
    decode_items=(),
    prompt_items=(),
    num_past_prompt=0,
    num_waiting=0,
    num_active=0,
)


def rig(**options: object) -> tuple[Scheduler, Driver]:
    """Return a scheduler of four planes with its stub, and who drives them."""
    sizes = {"num_blocks": 64, "max_model_len": 64, "block_size": 2, "prefill_chunk_size": 4}
    # One pass a launch and prompts apart: tests count launches.
    sizes |= {"policy": "separate"}
    config = SchedulerConfig(
        num_planes=NUM_PLANES,
        vocab_size=VOCAB_SIZE,
        **(sizes | options),  # type: ignore[arg-type]
    )
    executor = StubExecutor(config, config.max_window(config.chosen_policy))
    scheduler = Scheduler(config, executor)
    return scheduler, Driver(scheduler, executor)


def request_of(
    request_id: str = "a",
    prompt: tuple[int, ...] = (1, 2, 3),
    max_tokens: int = 2,
    exit_rule: ExitRule = FULL_DEPTH,
    payload: StubPayload = PAYLOAD,
    stop: frozenset[int] = frozenset(),
    scoring: PromptScoring = PromptScoring.NONE,
    earlier_samples: tuple[Request, ...] = (),
    sample_index: int = 0,
) -> Request:
    """Return a request that has not been added anywhere."""
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        exit_rule=exit_rule,
        payload=payload,
        stop_token_ids=stop,
        scoring=scoring,
        earlier_samples=earlier_samples,
        sample_index=sample_index,
    )
