"""What a user asks of one request: how tokens are drawn, when to stop, when to leave the loops."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from looped.sched import ExitOptions

from .errors import UsageError

DEFAULT_MAX_TOKENS = 64
MAX_SEED = 2**63 - 1
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-5, 1e5
"""Beyond these, logits divided by the temperature leave float32's range or its resolution."""
MIN_TOP_P = 1e-6
"""Below this, float32 sums of probabilities no longer tell apart what is kept."""
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 300
MAX_LOGIT_BIAS = 100.0
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.1, 10.0
"""Wide enough for any use; logits multiplied by these stay far inside float32's range."""
MAX_ADDED_PENALTY = 2.0
"""Presence and frequency penalties lie between this and its negative."""
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_LENGTH = 256
"""In characters."""
WHOLE_NUMBERS = ("n", "min_tokens", "priority")
OPTIONAL_WHOLE_NUMBERS = ("max_tokens", "top_k", "logprobs", "prompt_logprobs", "seed")
RANGES = {
    "min_p": (0.0, 1.0),
    "repetition_penalty": (MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY),
    "presence_penalty": (-MAX_ADDED_PENALTY, MAX_ADDED_PENALTY),
    "frequency_penalty": (-MAX_ADDED_PENALTY, MAX_ADDED_PENALTY),
}


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Options of one request; checked when built, before any work.

    Raises:
        UsageError: naming the option, what is allowed and what came.
    """

    max_tokens: int | None = None
    """Tokens to emit at most; 0 only with prompt_logprobs, and scores the prompt alone. None: 64,
    or as many as have room behind the prompt if those are fewer."""
    n: int = 1
    """Samples of the prompt, up to 128. With prefix caching its full KV blocks are computed once
    for all of them. At temperature 0 all are equal, and `LLM` computes one."""
    temperature: float = 0.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int | None = None
    """Keep the k most likely tokens, and all that tie with the last of them; None keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens that holds this probability; ties stay in."""
    min_p: float = 0.0
    """Keep tokens at least this many times as likely as the most likely one; 0 keeps all."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of single tokens, -100 to 100 each, for at most 300 ids."""
    repetition_penalty: float = 1.0
    """Logits of tokens in prompt or output are divided by it if positive, else multiplied."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for every time it is in the output."""
    min_tokens: int = 0
    """No stop id, the model's end of sequence among them, is drawn before so many tokens, and no
    stop string that ends before that counts."""
    logprobs: int | None = None
    """Return the log-probabilities of so many most likely tokens with every token, 0 to 20; None
    returns no list. The emitted token's own comes in any case."""
    prompt_logprobs: int | None = None
    """Return the log-probability of every prompt token but the first, the most likely token in its
    place, and the log-probabilities of so many most likely ones, 0 to 20; None returns nothing.
    Such a prompt takes no hits in the prefix cache. Sample 0 brings them."""
    prompt_logprobs_every_loop: bool = False
    """Return prompt_logprobs after every loop, not after the last alone."""
    seed: int | None = None
    """Seed of this request's draws; None draws a fresh one, which the output names."""
    stop_token_ids: Iterable[int] = frozenset()
    """Further ids that end the request, beside the model's end of sequence."""
    stop: Sequence[str] = ()
    """Up to 16 texts, 1 to 256 characters each, or one; the first in the output ends the request,
    no matter which tokens spell it, and the text ends before it. The whole name of a special token
    means its id besides, as if stop_token_ids had it. With text around it the name finds no
    special token, since those are not text. Needs a tokenizer: `LLM`, not the engine alone."""
    include_stop_str_in_output: bool = False
    """The text ends with the stop string, not before it; a special token is never in it."""
    ignore_eos: bool = False
    """Do not stop at the model's end of sequence."""
    exit: ExitOptions = field(default_factory=ExitOptions)
    """When tokens leave the loops; what is None is the engine's default."""
    priority: int = 0
    """Lower goes first, under scheduling policy `priority`."""

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "stop_token_ids", _token_ids(self.stop_token_ids))
        stop = checked_stop(self.stop, is_included=self.include_stop_str_in_output)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        self._check_max_tokens()
        self._check_draws()
        self._check_logprobs()
        self._check_samples()
        self._check_edits()

    def _check_types(self) -> None:
        for name in (*WHOLE_NUMBERS, *OPTIONAL_WHOLE_NUMBERS):
            value = getattr(self, name)
            is_unset = value is None and name in OPTIONAL_WHOLE_NUMBERS
            if not is_unset and type(value) is not int:
                raise UsageError(f"{name} must be a whole number, got {value!r}")
        for name in ("temperature", "top_p", *RANGES):
            if type(getattr(self, name)) not in (int, float):
                raise UsageError(f"{name} must be a number, got {getattr(self, name)!r}")
        for name in ("ignore_eos", "include_stop_str_in_output", "prompt_logprobs_every_loop"):
            if type(getattr(self, name)) is not bool:
                raise UsageError(f"{name} must be true or false, got {getattr(self, name)!r}")

    def _check_max_tokens(self) -> None:
        fewest = 1 if self.prompt_logprobs is None else 0
        if self.max_tokens is not None and self.max_tokens < fewest:
            raise UsageError(
                "max_tokens must be at least 1, or 0 with prompt_logprobs to score the prompt "
                f"alone; got {self.max_tokens}"
            )

    def _check_draws(self) -> None:
        is_greedy = self.temperature == 0
        if not is_greedy and not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            raise UsageError(
                f"temperature must be 0 (greedy) or in {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}, "
                f"got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k must be at least 1, or left out; got {self.top_k}")
        if not MIN_TOP_P <= self.top_p <= 1.0:
            raise UsageError(f"top_p must be in {MIN_TOP_P:g} to 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise UsageError(f"seed must be 0 to {MAX_SEED}, got {self.seed}")

    def _check_logprobs(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= MAX_LOGPROBS:
                raise UsageError(f"{name} must be in 0 to {MAX_LOGPROBS}, or left out; got {value}")
        if self.prompt_logprobs_every_loop and self.prompt_logprobs is None:
            raise UsageError(
                "prompt_logprobs_every_loop needs prompt_logprobs, which was left out; give it, 0 "
                "for the prompt's own tokens alone"
            )

    def _check_edits(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} must be in {low:g} to {high:g}, got {value}")
        if self.min_tokens < 0:
            raise UsageError(f"min_tokens must be at least 0, got {self.min_tokens}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens must be in 0 to max_tokens, {self.max_tokens}; got {self.min_tokens}"
            )

    @property
    def num_computed(self) -> int:
        """Samples that differ: one at temperature 0, where the others are copies of it."""
        return 1 if self.temperature == 0 else self.n

    def limited(self, room: int, *, default: int = DEFAULT_MAX_TOKENS) -> "SamplingParams":
        """These options with a max_tokens, if that was left out: the default, or what has room.

        Args:
            room: tokens that can follow the prompt. At least one is asked for in any case, so that
                a prompt that leaves none is refused.
            default: where there is room for more.

        Raises:
            UsageError: min_tokens is above that.
        """
        if self.max_tokens is not None:
            return self
        return replace(self, max_tokens=min(default, max(room, 1)))

    def _check_samples(self) -> None:
        if not 1 <= self.n <= MAX_SAMPLES:
            raise UsageError(f"n must be in 1 to {MAX_SAMPLES}, got {self.n}")
        if self.max_tokens != 0:
            return
        for name, neutral in (("n", 1), ("logprobs", None), ("stop", ())):
            if getattr(self, name) != neutral:
                raise UsageError(
                    f"{name} must be left out where nothing is generated (max_tokens 0), "
                    f"got {getattr(self, name)}"
                )


def _token_ids(values: Any) -> frozenset[int]:
    """Token ids of any collection, as a set."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise UsageError(f"stop_token_ids must be a collection of token ids, got {values!r}")
    ids = tuple(values)
    if any(type(value) is not int for value in ids):
        raise UsageError(f"stop_token_ids must be whole numbers, got {values!r}")
    return frozenset(ids)


def checked_stop(values: Any, *, is_included: bool) -> tuple[str, ...]:
    """Stop strings of one text or several, in range.

    Args:
        values: as a user gave them.
        is_included: include_stop_str_in_output.

    Raises:
        UsageError: naming the option, what is allowed and what came.
    """
    texts = (values,) if isinstance(values, str) else values
    if not isinstance(texts, list | tuple) or any(not isinstance(text, str) for text in texts):
        raise UsageError(f"stop must be a text or a list of texts, got {values!r}")
    if len(texts) > MAX_STOP_STRINGS:
        raise UsageError(f"stop takes at most {MAX_STOP_STRINGS} texts, got {len(texts)}")
    for text in texts:
        if not 1 <= len(text) <= MAX_STOP_STRING_LENGTH:
            raise UsageError(
                f"stop takes texts of 1 to {MAX_STOP_STRING_LENGTH} characters, got {len(text)}"
            )
    if is_included and not texts:
        raise UsageError("include_stop_str_in_output needs a stop string, got no stop")
    return tuple(texts)


def _checked_bias(values: Any) -> dict[int, float]:
    """A copy of a logit bias, in range."""
    if not isinstance(values, Mapping):
        raise UsageError(f"logit_bias must map token ids to numbers, got {values!r}")
    if len(values) > MAX_LOGIT_BIASES:
        raise UsageError(f"logit_bias takes at most {MAX_LOGIT_BIASES} ids, got {len(values)}")
    for token_id, bias in values.items():
        if type(token_id) is not int or type(bias) not in (int, float):
            got = f"{token_id!r}: {bias!r}"
            raise UsageError(f"logit_bias must map token ids to numbers, got {got}")
        if not -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS:
            raise UsageError(
                f"logit_bias must be in {-MAX_LOGIT_BIAS:g} to {MAX_LOGIT_BIAS:g}, "
                f"got {bias} for token {token_id}"
            )
    return dict(values)
