"""One point of a sweep, complete: model, engine options and workload, as a worker is given them."""

import logging
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from looped.engine.options import EngineConfig
from looped.errors import UsageError
from looped.measure.statistics import MIN_VALUES_FOR_P99
from looped.sched import budget_for, default_budget, default_chunk_size, useful_chunk_size

from .workload import Workload

logger = logging.getLogger(__name__)

SPARE_GAPS = 1.1
"""Times the 1,000 gaps that a p99 needs, aimed at in the arm with the fewest."""
LEAST_PROMPTS = 4
EXITS = ("replay", "live")


@dataclass(frozen=True, kw_only=True)
class EnginePoint(ABC):
    """How the engines of one point of a sweep are built, for any measurement."""

    model: str
    """Model folder."""
    dtype: str | None
    """None: the checkpoint's."""
    kv_cache_dtype: str | None
    attention_backend: str
    layers: str | None = None
    """`unrolled` or `scanned`; None: the platform's best."""
    num_planes: int
    """P."""
    budget: int
    """max_num_batched_tokens."""
    chunk_size: int
    max_num_seqs: int
    block_size: int
    run_ahead: int | None = None
    """Launches under way before the oldest is read; None: as the policy has it."""

    @property
    @abstractmethod
    def max_model_len(self) -> int:
        """The longest prompt and output together."""

    @property
    def num_blocks(self) -> int:
        """KV blocks over all planes, for every slot as large as the largest request.

        P * ceil(positions / block size) * max_num_seqs: no request ever waits for one.
        """
        return self.num_planes * -(-self.max_model_len // self.block_size) * self.max_num_seqs

    def engine_config(self, policy: str) -> EngineConfig:
        """Options of its engines; UsageError for what is none."""
        return EngineConfig(
            policy=policy,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.budget,
            prefill_chunk_size=self.chunk_size,
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            run_ahead=self.run_ahead,
            num_blocks=self.num_blocks,
            kv_cache_dtype=self.kv_cache_dtype,
            attention_backend=self.attention_backend,
            layers=self.layers,
            prefix_caching=False,
        )


def chunk_within(budget: int, max_num_seqs: int, chunk_size: int | None, *, longest: int) -> int:
    """The chunk, by default the engine's own, which fits under every policy.

    Args:
        budget: rows that a launch may have.
        max_num_seqs: requests that may be active at once.
        chunk_size: what was asked for; one that comes out smaller than is useful is logged.
        longest: prompt to come, in tokens.

    Raises:
        UsageError: it would not fit, with the numbers.
    """
    useful = useful_chunk_size(longest)
    derived = default_chunk_size(budget, max_num_seqs)
    wanted = useful if chunk_size is None else max(chunk_size, 1)
    chunk = derived if chunk_size is None else chunk_size
    least = budget_for(wanted, max_num_seqs)
    if not 1 <= chunk <= budget - max_num_seqs + 1:
        raise UsageError(
            f"chunk + max_num_seqs - 1 must be at most the budget in every arm: {wanted} + "
            f"{max_num_seqs} - 1 > {budget}; try --budget {least}"
        )
    if chunk_size is None and chunk < useful:
        logger.warning(
            "the chunk is %d, all that budget %d has room for beside %d requests; try --budget %d",
            chunk,
            budget,
            max_num_seqs,
            least,
        )
    return chunk


@dataclass(frozen=True, kw_only=True)
class Point(EnginePoint):
    """What is measured; all arms, rounds and processes of it share every number."""

    exit_threshold: float
    exits: str
    """`replay`: the decoders' exits at that threshold are recorded once and replayed in every arm;
    `live`: every arm decides for itself."""
    workload: Workload

    @classmethod
    def derive(
        cls,
        *,
        num_decoders: int,
        prompt_tokens: int,
        budget: int | None,
        chunk_size: int | None,
        num_pairs: int,
        num_planes: int,
        prompt_slots: int = 2,
        num_prompts: int | None = None,
        decoder_prompt_tokens: int | None = None,
        bystander_tokens: int = 0,
        workload: dict[str, Any] | None = None,
        **others: Any,
    ) -> Self:
        """Fills what is None, the same way for every arm.

        max_num_seqs is B plus `prompt_slots` injected prompts (and bystanders) at once, budget and
        chunk are the engine's own, a decoder's prompt min(chunk, budget // B), so that
        all decoders start in one launch, and M = ceil(1,100 / (pairs * B * max(1, C // P))),
        at least 4: an atomic prompt of C chunks lasts about C / P gaps of each decoder, and 1,000
        gaps make a p99.

        Raises:
            UsageError: numbers that contradict each other.
        """
        max_num_seqs = num_decoders + prompt_slots * (1 + bool(bystander_tokens))
        budget = default_budget(max_num_seqs) if budget is None else budget
        chunk = chunk_within(budget, max_num_seqs, chunk_size, longest=prompt_tokens)
        own = decoder_prompt_tokens or min(chunk, budget // num_decoders)
        if own > chunk or own * num_decoders > budget:
            raise UsageError(
                "all decoders must start in one launch: expected decoder_prompt_tokens at most "
                f"min(chunk {chunk}, budget // B = {budget // num_decoders}), got {own}"
            )
        num_chunks = -(-prompt_tokens // chunk)
        gaps_per_prompt = num_decoders * max(1, num_chunks // num_planes)
        enough = -(-int(SPARE_GAPS * MIN_VALUES_FOR_P99) // (num_pairs * gaps_per_prompt))
        return cls(
            num_planes=num_planes,
            budget=budget,
            chunk_size=chunk,
            max_num_seqs=max_num_seqs,
            workload=Workload.derive(
                num_decoders=num_decoders,
                decoder_prompt_tokens=own,
                prompt_tokens=prompt_tokens,
                num_prompts=num_prompts or max(LEAST_PROMPTS, enough),
                chunk_size=chunk,
                bystander_tokens=bystander_tokens,
                **(workload or {}),
            ),
            **others,
        )

    def __post_init__(self) -> None:
        if self.exits not in EXITS:
            raise UsageError(f"exits must be one of {', '.join(EXITS)}, got {self.exits!r}")
        if not 0 <= self.exit_threshold <= 1:
            raise UsageError(f"exit_threshold must be in 0 to 1, got {self.exit_threshold}")
        if self.exits == "live" and self.workload.traces:
            raise UsageError("exits live decide for themselves and take no exit trace")

    @property
    def name(self) -> str:
        """A folder's name that tells the points of a sweep apart."""
        return (
            f"B{self.workload.num_decoders}-N{self.workload.prompt_tokens}-chunk{self.chunk_size}-"
            f"budget{self.budget}-threshold{self.exit_threshold:g}"
        )

    @property
    def needs_recording(self) -> bool:
        """Whether the decoders' exits have to be recorded before they can be replayed."""
        return self.exits == "replay" and self.exit_threshold < 1 and not self.workload.traces

    @property
    def max_model_len(self) -> int:
        """The longest prompt and output together."""
        items = self.workload.items(has_decoders=True, has_prompts=True)
        return max(len(item.prompt_token_ids) + item.max_tokens for item in items)

    def with_traces(self, traces: tuple[tuple[int, ...], ...]) -> Self:
        """The same with exits to replay."""
        return replace(self, workload=replace(self.workload, traces=traces))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values | {"workload": Workload.from_json(values["workload"])})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """What one process of the benchmark is to do."""

    point: Point
    process: int
    num_rounds: int
    folder: Path
    """Where its launch logs go."""
    is_recording: bool = False
    """Record the decoders' exits, and nothing else."""
    profile_folder: Path | None = None
    """Make a trace of every arm there, with one prompt, and nothing else."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        point, profile = Point.from_json(values["point"]), values["profile_folder"]
        folders = {
            "folder": Path(values["folder"]),
            "profile_folder": None if profile is None else Path(profile),
        }
        return cls(**values | folders | {"point": point})

    def to_json(self) -> dict[str, Any]:
        profile = None if self.profile_folder is None else str(self.profile_folder)
        return asdict(self) | {"folder": str(self.folder), "profile_folder": profile}
