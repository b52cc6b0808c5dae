"""Configuration of a Scheduler: sizes, limits and rules, checked against each other when built."""

from dataclasses import dataclass, field

from .errors import ConfigError
from .policies import Policy, PolicyOptions, resolve_policy
from .sizes import budget_for, default_budget, default_chunk_size, useful_chunk_size

DEFAULT_PROMPT_SHORTCUT = True
"""Measured: experiments/prompt_shortcut.py."""
SCHEDULING_POLICIES = ("fcfs", "priority")
DEFAULT_RUN_AHEAD = 1
MAX_RUN_AHEAD = 4
"""A deeper queue hides nothing more, and every arrival waits behind it."""


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """What may be chosen of a scheduler, for any model; sizes in tokens unless said otherwise.

    The options of an engine and of a simulation are made of these: names, defaults, help and checks
    are here alone.
    """

    prompt_shortcut: bool | None = None
    """Let prompts run their depths in one launch while no request is past its prompt (policy
    mixed). None: as measured best."""
    max_num_seqs: int = 16
    """Requests that may be active at once."""
    max_num_batched_tokens: int | None = None
    """Rows that a launch may have: the budget. None: 256, or, where max_num_seqs is above 128, the
    next power of two at or above max_num_seqs + 128."""
    max_decode_rows: int | None = None
    """Decode rows that a launch may have; below the number of ready ones, the policy's order
    decides who goes. None: max_num_seqs."""
    prefill_chunk_size: int | None = None
    """Most prompt tokens in an item. None: min(128, budget - max_num_seqs + 1)."""
    block_size: int = 16
    """Positions in a KV block."""
    kv_watermark: int = 0
    """Blocks, over all planes, kept free at admission while anything is active."""
    max_prefill_batches_before_decode: int | None = None
    """Prompt launches before a ready decode goes first. None: 1, where the policy uses it."""
    scheduling_policy: str = "fcfs"
    """Order of admission: `fcfs`, or `priority` (lower first, then arrival)."""
    admission_scan_limit: int = 64
    """Waiting requests looked at in one round of admission."""
    admission_bypass_limit: int = 8
    """Later admissions that a blocked request tolerates before all behind it wait."""
    prefix_caching: bool | None = None
    """Share the KV of full prompt blocks between requests with equal prefixes. None: on, but for
    a policy that has several prompt items of a request under way at once."""
    run_ahead: int | None = None
    """Launches that may be under way before the record of the oldest is read, 0..4; tokens are the
    same at each. None: 1, or 0 for a policy that orders by depth."""
    incremental_kv: bool = False
    """Claim KV when it is first written; gains no concurrency until preemption exists."""

    def __post_init__(self) -> None:
        """Check every option alone; those that others depend on are SchedulerConfig's."""
        positive = "block_size max_num_seqs admission_scan_limit"
        for name in positive.split():
            self._check_at_least(1, name)
        self._check_at_least(0, "admission_bypass_limit")
        self._check_at_least(0, "kv_watermark")
        for name in ("max_num_batched_tokens", "max_prefill_batches_before_decode"):
            if getattr(self, name) is not None:
                self._check_at_least(1, name)
        if self.run_ahead is not None and not 0 <= self.run_ahead <= MAX_RUN_AHEAD:
            raise ConfigError(f"run_ahead must be in 0..{MAX_RUN_AHEAD}, got {self.run_ahead}")
        if self.scheduling_policy not in SCHEDULING_POLICIES:
            raise ConfigError(
                f"scheduling_policy must be one of {', '.join(SCHEDULING_POLICIES)}, "
                f"got {self.scheduling_policy!r}"
            )

    def _check_at_least(self, lowest: int, name: str) -> None:
        value = getattr(self, name)
        if value < lowest:
            raise ConfigError(f"{name} must be >= {lowest}, got {value}")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(SchedulerOptions):
    """Everything that the Scheduler needs to know. Sizes in tokens unless said otherwise."""

    num_planes: int
    """P: loops of the model, and KV planes."""
    vocab_size: int
    """Token ids are 0..vocab_size-1."""
    num_blocks: int
    """KV blocks in the pool, over all planes."""
    max_model_len: int
    """Longest prompt plus output of a request."""
    policy: str | Policy = "mixed"
    """Name of a policy that is shipped or installed, or a Policy."""
    policy_options: PolicyOptions = ()
    """Keys and values, as typed, for a policy that is named and made from options."""
    cache_salt: str = ""
    """What else cached blocks depend on: model, dtype, layout."""
    is_chunk_derived: bool = field(init=False)
    """Whether prefill_chunk_size was left to us."""
    chosen_policy: Policy = field(init=False, repr=False, compare=False)
    """What policy and policy_options mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_num_batched_tokens is None:
            object.__setattr__(self, "max_num_batched_tokens", default_budget(self.max_num_seqs))
        self._check_sizes()
        derived = default_chunk_size(self.budget, self.max_num_seqs)
        object.__setattr__(self, "is_chunk_derived", self.prefill_chunk_size is None)
        if self.prefill_chunk_size is None:
            object.__setattr__(self, "prefill_chunk_size", derived)
        if not 1 <= self.chunk_size <= self.budget:
            raise ConfigError(
                f"prefill_chunk_size must be in 1..max_num_batched_tokens: {self.chunk_size} is "
                f"not in 1..{self.budget}; {self._advice_for_chunk(derived)}"
            )
        policy = resolve_policy(self.policy, self.policy_options)
        object.__setattr__(self, "chosen_policy", policy)
        self.check_policy(policy)

    @property
    def budget(self) -> int:
        """max_num_batched_tokens, which is an int once the configuration is built."""
        assert self.max_num_batched_tokens is not None
        return self.max_num_batched_tokens

    @property
    def chunk_size(self) -> int:
        """prefill_chunk_size, which is an int once the configuration is built."""
        assert self.prefill_chunk_size is not None
        return self.prefill_chunk_size

    @property
    def chunk_warning(self) -> str | None:
        """What to say of a chunk that came out smaller than is useful; None if it did not."""
        useful = useful_chunk_size(self.max_model_len)
        if not self.is_chunk_derived or self.chunk_size >= useful:
            return None
        return (
            f"prefill_chunk_size is {self.chunk_size}, all that max_num_batched_tokens "
            f"{self.budget} has room for beside max_num_seqs {self.max_num_seqs}, so a prompt "
            "takes more launches than it has to; try --max-num-batched-tokens "
            f"{budget_for(useful, self.max_num_seqs)}, or leave it out"
        )

    def room_after(self, num_prompt_tokens: int) -> int:
        """Return the tokens that can follow such a prompt; 0 for one that is too long."""
        # The last token of all is never fed back, and so needs no position in the pool.
        most = min(self.max_model_len, self.pool_positions + 1)
        return max(most - num_prompt_tokens, 0)

    @property
    def pool_positions(self) -> int:
        """Positions that the whole pool has for one request, in every plane."""
        return self.num_blocks // self.num_planes * self.block_size

    @property
    def prefill_interval(self) -> int:
        """max_prefill_batches_before_decode, or its default."""
        return self.max_prefill_batches_before_decode or 1

    @property
    def decode_row_limit(self) -> int:
        """max_decode_rows, or its default."""
        return self.max_num_seqs if self.max_decode_rows is None else self.max_decode_rows

    @property
    def has_prompt_shortcut(self) -> bool:
        """prompt_shortcut, or its default."""
        return DEFAULT_PROMPT_SHORTCUT if self.prompt_shortcut is None else self.prompt_shortcut

    def needs_prefill_launches(self, policy: Policy) -> bool:
        """Return whether `policy` ever runs several depths in one launch."""
        return policy.runs_all_depths or (policy.uses_prompt_shortcut and self.has_prompt_shortcut)

    def blocks_for(self, num_tokens: int) -> int:
        """Return the KV blocks of `num_tokens` positions: P * ceil(num_tokens / block_size)."""
        return self.num_planes * -(-num_tokens // self.block_size)

    def max_window(self, policy: Policy) -> int:
        """Return the most prompt items of a request under way at once: one a depth is enough."""
        return min(policy.max_window, self.num_planes)

    def has_prefix_caching(self, policy: Policy) -> bool:
        """Return prefix_caching, or its default under `policy`."""
        return self.max_window(policy) == 1 if self.prefix_caching is None else self.prefix_caching

    def launches_ahead(self, policy: Policy) -> int:
        """Return run_ahead, or its default under `policy`."""
        if self.run_ahead is not None:
            return self.run_ahead
        return 0 if policy.needs_depths else DEFAULT_RUN_AHEAD

    def check_policy(self, policy: Policy) -> None:
        """Check the options that depend on the policy.

        Raises:
            ConfigError: an option that the policy ignores, or a budget that it cannot work with.
        """
        interval = self.max_prefill_batches_before_decode
        if interval is not None and not policy.uses_prefill_interval:
            raise ConfigError(
                f"max_prefill_batches_before_decode must be left out with policy {policy.name}, "
                f"which ignores it; got {interval}"
            )
        if self.prompt_shortcut is not None and not policy.uses_prompt_shortcut:
            raise ConfigError(
                f"prompt_shortcut must be left out with policy {policy.name}, which ignores it; "
                f"got {self.prompt_shortcut}"
            )
        if self.run_ahead and policy.needs_depths:
            raise ConfigError(
                f"run_ahead must be 0, or left out, with policy {policy.name}, which orders by "
                f"depths that only a read record tells; got {self.run_ahead}"
            )
        if self.prefix_caching and self.max_window(policy) > 1:
            raise ConfigError(
                f"prefix_caching must be off, or left out, with policy {policy.name}, which has up "
                f"to {self.max_window(policy)} prompt items of a request under way at once"
            )
        num_rows = budget_for(self.chunk_size, self.max_num_seqs)
        if policy.is_mixing and num_rows > self.budget:
            raise ConfigError(
                "prefill_chunk_size + max_num_seqs - 1 must be <= max_num_batched_tokens with "
                f"policy {policy.name}, or decode rows could starve a prompt: {self.chunk_size} + "
                f"{self.max_num_seqs} - 1 > {self.budget}; "
                f"try --max-num-batched-tokens {num_rows}"
            )

    @property
    def _useful_budget(self) -> int:
        """A budget with room for the chunk that was asked for, or else for a useful one."""
        chunk_size = self.prefill_chunk_size or 0
        if chunk_size < 1:
            chunk_size = useful_chunk_size(self.max_model_len)
        return budget_for(chunk_size, self.max_num_seqs)

    def _advice_for_chunk(self, derived: int) -> str:
        """What to try in place of a chunk that is none, or that the budget has no room for.

        Args:
            derived: the chunk that the budget has room for.
        """
        if derived >= useful_chunk_size(self.max_model_len):
            return f"try --prefill-chunk-size {derived}"
        if self.chunk_size < 1:
            return f"leave it out, and try --max-num-batched-tokens {self._useful_budget}"
        return f"try --max-num-batched-tokens {self._useful_budget}"

    def _check_sizes(self) -> None:
        for name in ("num_planes", "vocab_size", "num_blocks", "max_model_len"):
            self._check_at_least(1, name)
        if self.budget < self.max_num_seqs:
            raise ConfigError(
                "max_num_batched_tokens must be >= max_num_seqs, so that every decode row fits: "
                f"{self.budget} < {self.max_num_seqs}; "
                f"try --max-num-batched-tokens {self._useful_budget}"
            )
        if not 1 <= self.decode_row_limit <= self.max_num_seqs:
            raise ConfigError(
                f"max_decode_rows must be in 1..max_num_seqs: {self.max_decode_rows} is not in "
                f"1..{self.max_num_seqs}; leave it out for all"
            )
        if self.num_blocks < self.num_planes:
            raise ConfigError(
                "num_blocks must be >= num_planes, since a token needs a block in each plane: "
                f"{self.num_blocks} < {self.num_planes}; raise --num-blocks"
            )
        if self.kv_watermark >= self.num_blocks:
            raise ConfigError(
                "kv_watermark must be < num_blocks, or one request at a time would run: "
                f"{self.kv_watermark} >= {self.num_blocks}; lower --kv-watermark"
            )
