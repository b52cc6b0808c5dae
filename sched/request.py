"""One request: what was asked, and how far it has come.

The first half of `Request` is fixed by the user, the second belongs to the scheduler. Requests
are compared by identity, never by id: an id may be used again as soon as its request is aborted,
and results that arrive late then still refer to the old object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import TYPE_CHECKING

from .exits import ExitRule, RowState
from .outlook import FIRST, Outlook, outlook_at

if TYPE_CHECKING:
    from .items import PromptItem
    from .results import PromptScores, TopLogprobs

NO_SLOT = -1
"""Slot of a request that is not active."""
NO_TIME = math.nan
"""Moment that has not come yet."""
NO_INDEX = -1
"""Place in an order that a request has not entered yet."""


class Stage(Enum):
    """Where a request stands in its life. Labels for queues; they never select code to run."""

    WAITING = auto()
    """Not admitted: holds nothing."""
    PREFILL = auto()
    """Its prompt is not complete; it may be at any depth."""
    RECURRENT = auto()
    """Its prompt has run, and its tokens run through the loops."""
    FINISHED = auto()
    """Over, for the reason that `finish_reason` gives."""


class PromptScoring(Enum):
    """After which loops the prompt's tokens are scored."""

    NONE = auto()
    LAST_LOOP = auto()
    EVERY_LOOP = auto()


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(eq=False, kw_only=True, slots=True)
class Request:
    """A prompt, its limits and its progress. Checked by `Scheduler.add`."""

    request_id: str
    """With the sample index, unique among unfinished requests."""
    prompt_token_ids: tuple[int, ...]
    """At least one id of the vocabulary."""
    max_tokens: int
    """Tokens to generate at most, >= 1; 0 only where the prompt is scored."""
    exit_rule: ExitRule
    """When generated tokens leave the loop."""
    stop_token_ids: frozenset[int] = frozenset()
    """Ids that end the request; the one generated is kept as its last output."""
    priority: int = 0
    """Lower goes first, under scheduling_policy `priority`."""
    scoring: PromptScoring = PromptScoring.NONE
    """Which log-probabilities of the prompt's own tokens it wants."""
    sample_index: int = 0
    """Which of several samples of one prompt it is; they share the id."""
    earlier_samples: tuple[Request, ...] = ()
    """Samples of the same prompt before it; the first of them computes it for all to share."""
    payload: object = None
    """What the engine keeps with a request; never read here."""

    stage: Stage = field(default=Stage.WAITING, init=False)
    """Where it stands."""
    arrival_index: int = field(default=NO_INDEX, init=False)
    """Its place among all requests ever added."""
    admission_index: int = field(default=NO_INDEX, init=False)
    """Its place among all requests ever admitted."""
    arrival_time: float = field(default=NO_TIME, init=False)
    """`now` of the first schedule() after it was added."""
    newest_token_time: float = field(default=NO_TIME, init=False)
    """`now` of the first schedule() after its newest token came; its arrival_time before any."""
    launches_seen: int = field(default=0, init=False)
    """Launches that could have taken its next item, up to when that became ready; see `Aging`."""
    num_bypasses: int = field(default=0, init=False)
    """Later requests admitted while this one was blocked."""
    slot: int = field(default=NO_SLOT, init=False)
    """Its place in device state, 0..max_num_seqs-1, while it is active."""
    block_tables: list[list[int]] = field(default_factory=list, init=False)
    """KV blocks of each plane; tables only grow while the request is active."""
    prefix_keys: tuple[bytes, ...] = field(default=(), init=False)
    """Cache keys of its full prompt blocks; empty without prefix caching."""
    num_published_blocks: int = field(default=0, init=False)
    """Full prompt blocks, per plane, that the prefix cache has seen."""
    num_prefilled_tokens: int = field(default=0, init=False)
    """Prompt tokens that have run every loop, in launches that are out or before."""
    num_written_tokens: int = field(default=0, init=False)
    """Those among them whose launches have been applied: their KV is complete in every plane."""
    num_cached_tokens: int = field(default=0, init=False)
    """Those among them that the prefix cache held at admission."""
    prompt_items: list[PromptItem] = field(default_factory=list, init=False)
    """Chunks of the prompt under way, in prompt order; each has run deeper than the one after it,
    or as deep. Only in PREFILL, and one at most unless the policy has a window."""
    loops_done: int = field(default=0, init=False)
    """Loops that the newest token has run, as far as launches have been applied; of the first
    token, which the prompt's rows lead to, only the last is still to come."""
    num_unread: int = field(default=0, init=False)
    """Launches that are out and carry its row, or draw its first token."""
    known: Outlook | None = field(default=None, init=False)
    """What its row is, as far as launches have been applied; None before its prompt has run."""
    outlook: Outlook | None = field(default=None, init=False)
    """What its row can be when all of those have run; None before its prompt has."""
    outlook_index: int = field(default=0, init=False)
    """Output index of the earliest token that its row can be at then."""
    output_token_ids: list[int] = field(default_factory=list, init=False)
    """Generated tokens."""
    exit_depths: list[int] = field(default_factory=list, init=False)
    """Loops executed for each generated token, 1-based; the first is P."""
    logprobs: list[float] = field(default_factory=list, init=False)
    """Raw log-probability of each generated token."""
    top_logprobs: list[TopLogprobs | None] = field(default_factory=list, init=False)
    """Most likely tokens in the place of each generated one; None where it asks for none."""
    prompt_scores: list[PromptScores] = field(default_factory=list, init=False)
    """Scores of the prompt so far, one entry per scored loop, in order of loops."""
    finish_reason: FinishReason | None = field(default=None, init=False)
    """Why it ended; None before."""
    error: str | None = field(default=None, init=False)
    """What went wrong, with finish_reason `error`."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_chunked_tokens(self) -> int:
        """Prompt tokens that need no further prompt item: complete, or in one under way."""
        return self.prompt_items[-1].token_end if self.prompt_items else self.num_prefilled_tokens

    @property
    def capacity(self) -> int:
        """Positions it can ever need: the last sampled token is never fed back."""
        return len(self.prompt_token_ids) + max(self.max_tokens, 1) - 1

    @property
    def is_prompt_complete(self) -> bool:
        """Whether every prompt token has run every loop, in launches that are out or before."""
        return self.num_prefilled_tokens == len(self.prompt_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether it is over."""
        return self.stage is Stage.FINISHED

    @property
    def num_outputs(self) -> int:
        """Tokens that it has got."""
        return len(self.output_token_ids)

    @property
    def states(self) -> tuple[RowState, ...]:
        """What its row can be when the launches that are out have run; one is certain."""
        if self.outlook is None:
            return ()
        moved = self.outlook_index - FIRST
        return tuple(
            RowState(state.output_index + moved, state.loops_done, state.is_exit_pending)
            for state in self.outlook.states
        )

    def begin_row(self, num_planes: int) -> None:
        """Its prompt has run, and its row begins to ride."""
        self.loops_done = num_planes - 1
        self.known = self.outlook = outlook_at(self.exit_rule, 0, num_planes)
        self.outlook_index = 0

    def launched_row(self) -> None:
        """Take note that one more launch that is out carries its row."""
        assert self.outlook is not None
        self.num_unread += 1
        self.outlook, moved = self.outlook.next
        if moved:
            self._begin_token(moved)

    def row_stayed(self, *, is_exit_pending: bool | None) -> None:
        """Take note of an applied launch after which its token was still in the loops.

        Args:
            is_exit_pending: whether it leaves after its next; None if no record has said so.
        """
        assert self.known is not None
        self.loops_done += 1
        self.num_unread -= 1
        if is_exit_pending is None:
            self.known = self.known.next[0]
            return  # what was foreseen of it stands
        self.known = self.known.stayed(is_exit_pending=is_exit_pending)
        self._foresee()

    def row_left(self) -> None:
        """Take note of an applied launch that has brought a token, and it goes on."""
        assert self.known is not None
        self.loops_done = 0
        self.num_unread -= 1
        self.known = outlook_at(self.exit_rule, len(self.output_token_ids), self.known.num_planes)
        self._foresee()

    def _foresee(self) -> None:
        """Work out its outlook anew, from what is known and the launches that are out.

        Until a record is read the outcome of a pass is open where a signal decides. Where the rule
        fixes it (full depth, a trace) it is certain, and a record changes nothing.
        """
        if self.exit_rule.threshold < 1.0:
            self.outlook, self.outlook_index = self.known, len(self.output_token_ids)
            for _ in range(self.num_unread):
                assert self.outlook is not None
                self.outlook, moved = self.outlook.next
                if moved:
                    self._begin_token(moved)

    def _begin_token(self, moved: int) -> None:
        self.outlook_index += moved
        # The first token is the prompt's, and every token of a trace has a depth of its own.
        if self.exit_rule.trace or self.outlook_index == 1:
            assert self.outlook is not None
            num_planes = self.outlook.num_planes
            self.outlook = outlook_at(self.exit_rule, self.outlook_index, num_planes)
