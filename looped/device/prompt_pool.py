"""Places in the prompt pool, where a prompt item's rows wait between two depths.

A place records the request *object* it was given to. That names the KV allocation, too: a request
object is admitted once, and its block tables are its own until it ends.
"""

from dataclasses import dataclass

from looped.sched import PromptStateHandle, Request


@dataclass(frozen=True, eq=False)
class PromptPlace:
    """One item's place, and whose it is: nothing late can touch another request's rows."""

    index: int
    owner: Request


class PromptPool:
    """Hands out the places; the Scheduler's `PromptStateOwner`."""

    def __init__(self, num_places: int) -> None:
        self._free = list(range(num_places - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Places that no item holds."""
        return len(self._free)

    def acquire(self, request: Request) -> PromptPlace:
        """A place for one item of `request`."""
        return PromptPlace(self._free.pop(), request)

    def release(self, handle: PromptStateHandle) -> None:
        """Takes a place back."""
        assert isinstance(handle, PromptPlace)
        self._free.append(handle.index)
