"""The door: a request that could never run is refused here, before it touches the queue."""

from ..config import SchedulerConfig
from ..errors import RequestError
from ..policies import Policy
from ..request import NO_INDEX, PromptScoring, Request


def check_request(request: Request, config: SchedulerConfig, policy: Policy) -> None:
    """Check a new request against the model, the limits, the pool and the policy.

    Raises:
        RequestError: it has been added before, has no prompt, an id outside the vocabulary,
            nothing to generate or score, more loops than the model, or needs more than there is;
            or it wants scores that the policy's launches have no room for.
    """
    name = f"request {request.request_id!r}"
    if request.arrival_index != NO_INDEX:
        raise RequestError(f"{name}: expected a new Request, got one that was added before")
    if not request.prompt_token_ids:
        raise RequestError(f"{name}: expected at least one prompt token, got none")
    for option in ("max_tokens", "priority"):
        value = getattr(request, option)
        if type(value) is not int:
            raise RequestError(f"{name}: {option} must be a whole number, got {value!r}")
    is_scored = request.scoring is not PromptScoring.NONE
    if request.max_tokens < (0 if is_scored else 1):
        raise RequestError(
            f"{name}: max_tokens must be >= 1, or 0 where the prompt is scored; "
            f"got {request.max_tokens}"
        )
    if request.scoring is PromptScoring.EVERY_LOOP and policy.runs_all_depths:
        raise RequestError(
            f"{name}: scoring EVERY_LOOP needs launches of one depth, and policy {policy.name} "
            "runs every depth in one; choose another policy, or LAST_LOOP"
        )
    if request.exit_rule.max_loops > config.num_planes:
        raise RequestError(
            f"{name}: max_loops must be <= {config.num_planes} (the loops of this model), "
            f"got {request.exit_rule.max_loops}"
        )
    _check_vocabulary(name, request, config)
    _check_length(name, request, config)


def _check_vocabulary(name: str, request: Request, config: SchedulerConfig) -> None:
    token_ids = request.prompt_token_ids
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < config.vocab_size:
            raise RequestError(
                f"{name}: expected token ids in 0..{config.vocab_size - 1}, got {token_id} at "
                f"position {token_ids.index(token_id)}; encode it with this model's tokenizer"
            )


def _check_length(name: str, request: Request, config: SchedulerConfig) -> None:
    num_prompt_tokens = request.num_prompt_tokens
    room = config.room_after(num_prompt_tokens)
    advice = f"lower max_tokens to {room}, " if room else ""
    if num_prompt_tokens + request.max_tokens > config.max_model_len:
        raise RequestError(
            f"{name}: prompt + max_tokens must be <= max_model_len: {num_prompt_tokens} + "
            f"{request.max_tokens} > {config.max_model_len}; shorten the prompt, "
            f"{advice}or raise --max-model-len"
        )
    num_needed = config.blocks_for(request.capacity)
    if num_needed > config.num_blocks:
        raise RequestError(
            f"{name}: expected to need at most {config.num_blocks} KV blocks, the whole pool, got "
            f"{num_needed} for {request.capacity} positions in {config.num_planes} planes; "
            f"shorten the prompt, {advice}or raise --num-blocks"
        )
