"""What happened: one record a launch, and running totals."""

from dataclasses import dataclass, field

from looped.sched import LAUNCH_KINDS, ItemKind, LaunchKind, ScheduledItem


@dataclass(frozen=True, slots=True)
class ItemRecord:
    """One item of a launch."""

    request_id: str
    sample_index: int
    kind: ItemKind
    depth: int
    """Depth that ran (first); under an LM head, the last one that had run."""
    first_position: int
    num_rows: int
    slot: int
    """The request's place in device state."""

    @classmethod
    def of(cls, item: ScheduledItem, slot: int) -> "ItemRecord":
        request = item.request
        return cls(
            request.request_id,
            request.sample_index,
            item.kind,
            item.depth,
            item.first_position,
            item.count,
            slot,
        )


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch, as it was sent to the device."""

    index: int
    """Launches of this engine before it."""
    kind: LaunchKind
    bucket: int
    """Rows of the executable."""
    num_rows: int
    """Real rows among them."""
    num_passes: int
    """Depths that ran; 0 under an LM head."""
    num_calls: int
    """Calls of the executable, each with one upload: 1, but one per pass where a deterministic
    engine splits a prefill launch."""
    num_count_uploads: int
    """Requests that brought token counts and logit bias with it, each in an upload of its own."""
    runs_gate: bool
    records_gates: bool
    """Whether the gate ran and was read for its record alone, and for no row's decision."""
    num_readbacks: int
    """1 if the host reads the launch, else 0."""
    items: tuple[ItemRecord, ...]

    @property
    def called_kind(self) -> LaunchKind:
        """The kind of the executable, where a deterministic engine splits a prefill launch."""
        return self.kind.called_kind(self.num_calls)

    @property
    def num_padded_rows(self) -> int:
        return self.bucket - self.num_rows

    @property
    def token_loops(self) -> int:
        """Rows times passes over the layers: the work of the launch."""
        return self.num_rows * self.num_passes

    @property
    def is_mixed(self) -> bool:
        """Whether prompt rows and decode rows shared it."""
        return len({item.kind for item in self.items}) == 2


@dataclass(kw_only=True, slots=True)
class EngineStats:
    """Running totals of one engine; `LLMEngine.stats` returns a copy."""

    num_launches: dict[LaunchKind, int] = field(
        default_factory=lambda: dict.fromkeys(LAUNCH_KINDS, 0)
    )
    num_mixed_launches: int = 0
    num_prompt_rows: int = 0
    """Prompt rows of all passes, once per launch however many depths it runs."""
    num_decode_rows: int = 0
    """Decode rows of recurrent launches."""
    num_coda_rows: int = 0
    num_score_rows: int = 0
    """Rows whose next token, in the prompt, was scored; once per scored loop."""
    num_padded_rows: int = 0
    num_readbacks: int = 0
    num_uploads: int = 0
    """Host-to-device transfers of launches; one per call of an executable."""
    num_count_uploads: int = 0
    """Host-to-device transfers of token counts and logit bias; one per request that has a penalty,
    a bias or min_tokens."""
    num_compilations: int = 0
    num_output_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    """Prompt tokens that the prefix cache held at admission, over finished requests."""
    num_failed_launches: int = 0
    num_waiting: int = 0
    num_active: int = 0
    num_used_blocks: int = 0
    num_blocks: int = 0

    def count(self, record: LaunchRecord) -> None:
        """Adds one launch."""
        self.num_launches[record.kind] += 1
        self.num_mixed_launches += record.is_mixed
        if record.kind.draws_tokens:
            self.num_coda_rows += record.num_rows
        elif not record.kind.runs_layers:
            self.num_score_rows += record.num_rows
        else:
            prompt_rows = (item.num_rows for item in record.items if item.kind is ItemKind.PROMPT)
            num_prompt_rows = sum(prompt_rows)
            self.num_prompt_rows += num_prompt_rows
            self.num_decode_rows += record.num_rows - num_prompt_rows
        self.num_padded_rows += record.num_padded_rows
        self.num_uploads += record.num_calls
        self.num_count_uploads += record.num_count_uploads
