"""What a scheduling policy is: two pure functions and what they expect of the configuration."""

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ConfigError
from ..request import Request, Stage
from ..view import Choice, Selection, View


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Decides what runs next, and nothing else: the Scheduler allocates and builds the batch.

    Raises:
        ConfigError: a field that is not of its kind, or a max_window that no window needs.
    """

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
    """Whether its prompt launches run every depth, even if there is other work."""
    needs_depths: bool = False
    """Whether it looks at depth, output index or pending exit of decode items, which are certain
    only if every record is read before the next launch is made: then run_ahead is 0."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"expected a policy's name as a text, not empty; got {self.name!r}")
        for field in ("choose", "take", "item_size", "window"):
            value = getattr(self, field)
            if not callable(value) and (value is not None or field in ("choose", "take")):
                raise self._fault(field, "a function", value)
        for field in _FLAGS:
            if type(getattr(self, field)) is not bool:
                raise self._fault(field, "a bool", getattr(self, field))
        if type(self.max_window) is not int or self.max_window < 1:
            raise self._fault("max_window", "a whole number >= 1", self.max_window)
        if self.window is None and self.max_window > 1:
            raise self._fault("max_window", "1 where there is no window function", self.max_window)

    def _fault(self, field: str, expected: str, got: object) -> ConfigError:
        return ConfigError(f"policy {self.name}: expected {field} to be {expected}, got {got!r}")


_FLAGS = (
    "uses_prefill_interval",
    "is_mixing",
    "uses_prompt_shortcut",
    "runs_all_depths",
    "needs_depths",
)
