"""What a scheduling policy is: two pure functions and what they expect of the configuration."""

from collections.abc import Callable
from dataclasses import dataclass

from ..request import Request, Stage
from ..view import Choice, Selection, View


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Decides what runs next, and nothing else: the Scheduler allocates and builds the batch."""

    name: str
    """What users call it."""
    choose: Callable[[View], Choice]
    """From which stage to take, and whether to admit first."""
    take: Callable[[View, Stage], Selection]
    """Which items to launch; sees the view after admission. Empty: the stage is masked."""
    item_size: Callable[[View, Request], int] | None = None
    """Most prompt tokens in the item that a request makes next. None: prefill_chunk_size."""
    window: Callable[[View, Request], int] | None = None
    """Most prompt items of a request under way at once. None: 1."""
    max_window: int = 1
    """The largest number that `window` returns; device state is planned for it, or for P items of a
    request where that is less, since more never help."""
    uses_prefill_interval: bool = False
    """Whether max_prefill_batches_before_decode means anything to it."""
    is_mixing: bool = False
    """Whether prompt items share launches with decode items, which needs a larger budget."""
    uses_prompt_shortcut: bool = False
    """Whether prompt_shortcut means anything to it."""
    runs_all_depths: bool = False
    """Whether its prompt launches run every depth, whatever else there is to do."""
