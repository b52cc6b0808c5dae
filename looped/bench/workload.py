"""What every arm is given: resident decoders, and prompts injected as those make progress.

All of it follows from numbers and a seed: an arm's requests are the same in every run, process and
arm, under any policy.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from looped.errors import UsageError
from looped.measure.arrivals import random_token_ids

DECODER, PROMPT, BYSTANDER = "decoder", "prompt", "bystander"
"""Kinds of requests; an id is a kind, a dash and a number."""
TAIL_GAPS = 8
"""Tokens that every decoder has left, at least, when the last window should be over."""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One request of a workload."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    """Emitted exactly: the end of sequence is ignored."""
    trace: tuple[int, ...]
    """Exit depths to replay, 1-based; tokens past its end run every loop. Empty: none to replay."""
    exit_threshold: float = 1.0
    """Without a trace: at which its tokens decide their own exits; 1 runs every loop."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """B decoders of fixed length and M prompts that come at fixed points of their progress.

    Progress is the number of tokens that all decoders together have committed, i.e. that the host
    could see. Prompt i is injected as soon as it is at least k + i * g.
    """

    num_decoders: int
    """B."""
    decoder_prompt_tokens: int
    """Length of a decoder's own prompt."""
    output_tokens: int
    """Tokens that a decoder emits."""
    prompt_tokens: int
    """N, length of an injected prompt."""
    num_prompts: int
    """M."""
    first_injection: int
    """k, in tokens committed by all decoders together."""
    injection_interval: int
    """g, in the same unit."""
    vocab_size: int
    prompt_output_tokens: int = 1
    """Tokens that an injected prompt emits."""
    bystander_tokens: int = 0
    """Length of a short prompt that is queued right behind every injected one; 0 for none."""
    seed: int = 0
    traces: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Exit depths of each decoder's tokens, 1-based; empty: every loop."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            lowest = 0 if name in ("bystander_tokens", "seed") else 1
            if name != "traces" and value < lowest:
                raise UsageError(f"{name} must be at least {lowest}, got {value}")
        if self.traces and len(self.traces) != self.num_decoders:
            raise UsageError(
                f"expected an exit trace for each of {self.num_decoders} decoders, got "
                f"{len(self.traces)}"
            )
        if self.first_injection < self.num_decoders:
            raise UsageError(
                "first_injection must be at least the number of decoders, so that all of them "
                f"decode by then: {self.first_injection} < {self.num_decoders}"
            )
        last = self.first_injection + (self.num_prompts - 1) * self.injection_interval
        total = self.num_decoders * self.output_tokens
        if last >= total:
            raise UsageError(
                f"the last prompt comes at {last} committed tokens, and the decoders emit "
                f"{self.num_decoders} x {self.output_tokens} = {total}; raise output_tokens to "
                f"{last // self.num_decoders + 1 + TAIL_GAPS} or more, or inject fewer prompts"
            )

    @classmethod
    def derive(
        cls,
        *,
        num_decoders: int,
        prompt_tokens: int,
        num_prompts: int,
        chunk_size: int,
        vocab_size: int,
        first_injection: int | None = None,
        injection_interval: int | None = None,
        output_tokens: int | None = None,
        **others: Any,
    ) -> Self:
        """Fills what is None, so that one window is over before the next prompt comes.

        A prompt of C = ceil(N / chunk) chunks takes about C gaps of every decoder where a launch
        advances one depth of one chunk (A1 and A2). So k = 8 * B, g = (C + 5) * B, and a decoder
        emits ceil((k + M * g) / B) + 2 * C + 8 tokens.
        """
        num_chunks = -(-prompt_tokens // chunk_size)
        first = 8 * num_decoders if first_injection is None else first_injection
        interval = injection_interval or (num_chunks + 5) * num_decoders
        reach = -(-(first + num_prompts * interval) // num_decoders)
        return cls(
            num_decoders=num_decoders,
            prompt_tokens=prompt_tokens,
            num_prompts=num_prompts,
            first_injection=first,
            injection_interval=interval,
            output_tokens=output_tokens or reach + 2 * num_chunks + TAIL_GAPS,
            vocab_size=vocab_size,
            **others,
        )

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values | {"traces": tuple(map(tuple, values["traces"]))})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def shortened(self) -> Self:
        """The same with one prompt, to warm up with."""
        gaps = self.output_tokens - (
            (self.num_prompts - 1) * self.injection_interval // self.num_decoders
        )
        least = -(-self.first_injection // self.num_decoders) + 1
        return replace(self, num_prompts=1, output_tokens=max(gaps, least))

    @property
    def decoders(self) -> list[WorkItem]:
        """The resident requests, all there from the start."""
        traces = self.traces or ((),) * self.num_decoders
        return [
            self._item(
                f"{DECODER}-{i}",
                self.decoder_prompt_tokens,
                self.output_tokens,
                traces[i][: self.output_tokens],
            )
            for i in range(self.num_decoders)
        ]

    def injection(self, index: int) -> list[WorkItem]:
        """What comes with injection `index`: a prompt, and its bystander if there is one."""
        items = [self._item(f"{PROMPT}-{index}", self.prompt_tokens, self.prompt_output_tokens, ())]
        if self.bystander_tokens:
            items.append(self._item(f"{BYSTANDER}-{index}", self.bystander_tokens, 1, ()))
        return items

    def injection_point(self, index: int) -> int:
        """Committed tokens at which injection `index` is due: k + index * g."""
        return self.first_injection + index * self.injection_interval

    def items(self, *, has_decoders: bool, has_prompts: bool) -> list[WorkItem]:
        """All requests of an arm."""
        injected = [item for i in range(self.num_prompts) for item in self.injection(i)]
        return self.decoders * has_decoders + injected * has_prompts

    def _item(
        self, request_id: str, num_tokens: int, max_tokens: int, trace: tuple[int, ...]
    ) -> WorkItem:
        token_ids = random_token_ids(self.seed, request_id, num_tokens, self.vocab_size)
        return WorkItem(request_id, token_ids, max_tokens, trace)


def kind_of(request_id: str) -> str:
    """DECODER, PROMPT or BYSTANDER."""
    return request_id.partition("-")[0]
