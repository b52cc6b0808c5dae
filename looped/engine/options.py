"""Options of an engine, as a user gives them; what is None is worked out when the engine starts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from looped.config import LAYER_FORMS, ModelConfig
from looped.errors import UsageError
from looped.sched import (
    ConfigError,
    ExitMode,
    ExitOptions,
    Policy,
    PolicyOptions,
    RequestError,
    SchedulerConfig,
    SchedulerOptions,
    resolve_exit,
    resolve_policy,
)

KV_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class PolicyChoice:
    """Who runs next, as a user says it."""

    policy: str | Policy | None = field(default=None, metadata={"option_type": str | None})
    """Who runs next: mixed (prompt and decode rows share launches), separate, atomic, or another
    one that is shipped or that an installed package brings; a wrong name lists them. None: mixed.
    """
    policy_options: PolicyOptions = field(
        default=(),
        metadata={
            "option_name": "policy_option",
            "option_type": list[str] | None,
            "metavar": "KEY=VALUE",
            "read": lambda words: read_policy_options(words or ()),
        },
    )
    """Option of a policy that takes some, such as target=0.05 of slack; repeatable."""
    mixed_prefill_decode: bool | None = None
    """Another name for the choice of policy: on is mixed, off is separate."""

    @property
    def policy_name(self) -> str:
        """The policy's name; UsageError where its two options contradict each other."""
        return _name_of(self.chosen_policy)

    @property
    def resolved_policy(self) -> Policy:
        """The policy itself; UsageError if there is none, or not with its options."""
        try:
            return resolve_policy(self.chosen_policy, self.policy_options)
        except ConfigError as error:
            raise UsageError(str(error)) from None

    @property
    def chosen_policy(self) -> str | Policy:
        """The policy, by either of its options; UsageError where they contradict each other."""
        if self.mixed_prefill_decode is None:
            return self.policy or "mixed"
        implied = "mixed" if self.mixed_prefill_decode else "separate"
        if self.policy is not None and self.policy != implied:
            switch = "on" if self.mixed_prefill_decode else "off"
            raise UsageError(
                f"mixed_prefill_decode {switch} means policy {implied}, but policy "
                f"{_name_of(self.policy)} was given; leave out one of the two"
            )
        return implied


@dataclass(frozen=True, kw_only=True)
class EngineConfig(SchedulerOptions, PolicyChoice):
    """How one engine schedules, caches and compiles. Sizes in tokens unless said otherwise.

    What the scheduler alone needs to know is in its own options, and forwarded.
    """

    deterministic: bool = False
    """Same bits for a request alone and in a crowd, under every policy and chunk size: one row
    bucket, padded to max_num_batched_tokens. Slow."""
    max_model_len: int | None = None
    """Longest prompt plus output. None: the model's, at most 4096 on CPU and what fits on GPU."""
    num_blocks: int | None = None
    """KV blocks, over all planes. None: from kv_cache_bytes, or from memory."""
    kv_cache_bytes: int | None = None
    """Bytes of the KV pool. None: what max_num_seqs long requests need, within memory."""
    kv_cache_dtype: str | None = None
    """Type of cached keys and values. None: float32 on CPU, the model's on GPU."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory that the engine may fill, weights included."""
    exit_mode: ExitMode | None = None
    """Exit rule of requests that name none; None: ouro, or trace for those that have one."""
    exit_threshold: float | None = None
    """Threshold of requests that name none; None: the checkpoint's."""
    min_loops: int | None = None
    """Fewest loops of requests that name none; None: min(2, max_loops)."""
    max_loops: int | None = None
    """Most loops of requests that name none; None: P."""
    lookahead_seed: int = 0
    """Seed of the frozen random head of exit mode `random_lookahead`."""
    attention_backend: str = "auto"
    """Attention kernels: xla, pallas, triton or triton_fused; auto is xla on a CPU
    and in deterministic mode, else triton (not measured yet)."""
    layers: str | None = None
    """Form of the layers in a compiled step: `unrolled` (code and arrays of every layer) or
    `scanned` (one layer's code, stacked arrays). None: the platform's measured best, unrolled on
    CPU; on GPU unrolled until measured."""

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except ConfigError as error:
            raise UsageError(str(error)) from None
        if self.kv_cache_dtype is not None and self.kv_cache_dtype not in KV_DTYPES:
            raise UsageError(
                f"kv_cache_dtype must be one of {', '.join(KV_DTYPES)}; got {self.kv_cache_dtype!r}"
            )
        if self.layers not in (None, *LAYER_FORMS):
            raise UsageError(f"layers must be one of {', '.join(LAYER_FORMS)}; got {self.layers!r}")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise UsageError(
                "gpu_memory_utilization must be above 0 and at most 1, "
                f"got {self.gpu_memory_utilization}"
            )
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise UsageError("num_blocks and kv_cache_bytes both size the KV pool; give one")
        if self.exit_mode not in (None, *ExitMode):
            raise UsageError(
                f"exit_mode must be one of {', '.join(ExitMode)}; got {self.exit_mode!r}"
            )
        if not 0 <= self.lookahead_seed < 2**32:
            raise UsageError(f"lookahead_seed must be 0 to 2**32 - 1, got {self.lookahead_seed}")
        for name in ("num_blocks", "kv_cache_bytes", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, got {value}")

    def scheduler_config(
        self,
        *,
        num_planes: int,
        vocab_size: int,
        num_blocks: int,
        max_model_len: int,
        cache_salt: str,
    ) -> SchedulerConfig:
        """The scheduler's configuration: its part of these options, and what a model has.

        Raises:
            UsageError: options that contradict each other or the model.
        """
        chosen = {option.name: getattr(self, option.name) for option in fields(SchedulerOptions)}
        try:
            return SchedulerConfig(
                **chosen,
                policy=self.chosen_policy,
                policy_options=self.policy_options,
                num_planes=num_planes,
                vocab_size=vocab_size,
                num_blocks=num_blocks,
                max_model_len=max_model_len,
                cache_salt=cache_salt,
            )
        except ConfigError as error:
            raise UsageError(str(error)) from None

    def exit_defaults(self, model: ModelConfig) -> ExitOptions:
        """What requests inherit for the exit options they leave out.

        Raises:
            UsageError: defaults that contradict each other or the model.
        """
        threshold = model.exit_threshold if self.exit_threshold is None else self.exit_threshold
        bounds = ExitOptions(
            threshold=threshold, min_loops=self.min_loops, max_loops=self.max_loops
        )
        try:
            resolve_exit(bounds, ExitOptions(), model.num_loops)
        except RequestError as error:
            raise UsageError(str(error)) from None
        return replace(bounds, mode=self.exit_mode)


def read_policy_options(words: Iterable[str]) -> PolicyOptions:
    """Keys and values of options as a user types them.

    Raises:
        UsageError: a word that is not KEY=VALUE.
    """
    options = []
    for word in words:
        key, separator, value = word.partition("=")
        if not (key and separator):
            raise UsageError(f"--policy-option must be KEY=VALUE, got {word!r}")
        options.append((key, value))
    return tuple(options)


def option_flag(name: str, metadata: Mapping[str, Any]) -> str:
    """The command line's word for a field, without the dashes before it."""
    return str(metadata.get("option_name", name)).replace("_", "-")


def _name_of(policy: str | Policy) -> str:
    return policy if isinstance(policy, str) else policy.name
