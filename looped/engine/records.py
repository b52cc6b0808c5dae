"""What happened: one record a launch, and running totals."""

from dataclasses import dataclass, field

from looped.sched import LAUNCH_KINDS, ItemKind, LaunchKind, RowStatus, ScheduledItem


@dataclass(slots=True, unsafe_hash=True)
class ItemRecord:
    """One item of a launch. Not to be written to: frozen it would take four times as long to
    make, and one is made for each row of each launch."""

    request_id: str
    sample_index: int
    kind: ItemKind
    depth: int | None
    """Depth that ran (first); in a score the last one that had run. None of a decode row that had
    ended, on the device or by an abort, before the launch was applied."""
    first_position: int
    """Of its first row; of a row without a depth the furthest that it could have been at."""
    num_rows: int
    slot: int
    """The request's place in device state."""
    status: RowStatus | None = None
    """What the head said of its row; None where no head looked, or without a depth."""

    @classmethod
    def of(cls, item: ScheduledItem, slot: int, status: RowStatus | None = None) -> "ItemRecord":
        """Describes an item of a launch that is about to be applied, and after it no more."""
        request, kind = item.request, item.kind
        depth, position = item.depth, item.first_position
        if request.is_finished:
            status = None
            depth = None if kind is ItemKind.DECODE else depth
        elif kind is ItemKind.DECODE:
            depth = request.loops_done
            position = len(request.prompt_token_ids) + len(request.output_token_ids) - 1
        return cls(
            request.request_id,
            request.sample_index,
            kind,
            depth,
            position,
            item.count,
            slot,
            status,
        )


@dataclass(frozen=True, slots=True)
class HeadRecord:
    """The head behind a launch."""

    form: str
    """Which of its forms ran: `conditional`, `greedy_copies` and so on."""
    bucket: int
    """Rows of the executable."""
    num_rows: int
    """Rows that could finish, among them."""


@dataclass(frozen=True, slots=True)
class LaunchRecord:
    """One launch, as it was sent to the device and as its record told of it."""

    index: int
    """Launches of this engine before it."""
    kind: LaunchKind
    bucket: int
    """Rows of the executable."""
    num_rows: int
    """Real rows among them."""
    num_passes: int
    """Depths that ran; 0 of a score."""
    num_calls: int
    """Calls of the executable, each with one upload: 1, but one per pass where a deterministic
    engine splits a prefill launch."""
    num_writes: int
    """Uploads before it that wrote rows of the request table: of new requests, tables that have
    grown, and edits of logits."""
    num_readbacks: int
    """1 if the host reads the launch, else 0."""
    head: HeadRecord | None
    """What followed for the rows that could finish."""
    items: tuple[ItemRecord, ...]

    @property
    def called_kind(self) -> LaunchKind:
        """The kind of the executable, where a deterministic engine splits a prefill launch."""
        return self.kind.called_kind(self.num_calls)

    @property
    def num_padded_rows(self) -> int:
        return self.bucket - self.num_rows

    @property
    def num_masked_rows(self) -> int:
        """Decode rows that rode although they had ended."""
        return sum(item.depth is None for item in self.items)

    @property
    def token_loops(self) -> int:
        """Rows times passes over the layers, masked rows left out: the work of the launch."""
        return (self.num_rows - self.num_masked_rows) * self.num_passes

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
    """Decode rows of recurrent launches, masked ones left out."""
    num_masked_rows: int = 0
    """Decode rows that rode although they had ended: what it costs to read late."""
    num_heads: int = 0
    """Launches that a head followed."""
    num_head_rows: int = 0
    """Rows of heads: those that could finish, whether they did or not."""
    num_score_rows: int = 0
    """Rows whose next token, in the prompt, was scored; once per scored loop."""
    num_padded_rows: int = 0
    num_readbacks: int = 0
    num_uploads: int = 0
    """Host-to-device transfers of launches; one per call of an executable, but none of a head."""
    num_writes: int = 0
    """Host-to-device transfers that wrote rows of the request table."""
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
        if record.kind.brings_scores:
            self.num_score_rows += record.num_rows
        else:
            prompt_rows = (item.num_rows for item in record.items if item.kind is ItemKind.PROMPT)
            num_prompt_rows = sum(prompt_rows)
            self.num_prompt_rows += num_prompt_rows
            num_masked = record.num_masked_rows
            self.num_decode_rows += record.num_rows - num_prompt_rows - num_masked
            self.num_masked_rows += num_masked
        self.num_padded_rows += record.num_padded_rows
        if record.head is not None:
            self.num_heads += 1
            self.num_head_rows += record.head.num_rows
        self.num_uploads += record.num_calls
        self.num_writes += record.num_writes
