"""Hidden rows of prompt items between two depths: named here, owned by the runner.

A prompt item runs one depth at a time, so its rows have to survive between launches. The
scheduler says when such storage is needed and when it is not; what it is, only the runner knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .request import Request


class PromptStateHandle(Protocol):
    """Opaque storage of one prompt item. It records its owner: nothing late can touch it."""


class PromptStateOwner(Protocol):
    """The runner's side of prompt state: at most max_num_seqs handles are held at a time, times
    the window of the policy."""

    def acquire(self, request: Request) -> PromptStateHandle:
        """Return storage for prefill_chunk_size rows of `request`, which may have some already."""
        ...

    def release(self, handle: PromptStateHandle) -> None:
        """Take the storage back; called exactly once per handle, on every path."""
        ...
