"""Nobody waits for ever, under any policy: what has been passed over too often goes first.

A launch *passes over* every ready item that it leaves although it could have been in it: a launch
of decode rows alone decode items, one of prompt rows alone prompt items, and one with both, or any
pass under a mixing policy, decode and prompt items alike. An item that has been passed over

    4 * P * max_num_seqs

times since it became ready is *overdue*, and the next launch that would pass it over takes it
instead. The policy is still asked, and decides what kind of launch comes next; of its selection
stays what fits behind the overdue items, in its order, within the budget and max_decode_rows.
Overdue items go among themselves by how often they were passed over. Under a mixing policy decode
items go before prompt items here, too, overdue or not, so that an overdue prompt item displaces
prompt items alone; the guard of `SchedulerConfig` leaves room for one of them beside a full house.
So a ready item is in one of any 4 * P * max_num_seqs + max_num_seqs launches that could take it.

A launch of several passes takes items at depth 0; what has begun waits for the next. If the item
that is overdue the longest cannot run several passes, or they are not compiled for so many rows,
the launch has one pass. A request's prompt items keep their order: it is the
first that becomes overdue, and they are passed over together.

What is left to the policy is how often it takes launches of each kind, and whom it admits.
"""

from collections.abc import Iterable, Iterator, Sequence

from ..items import Batch, ItemKind, ScheduledItem
from ..policies import Policy
from ..request import Request, Stage
from ..view import Selection, View


class Aging:
    """Counts launches by what they could take; a request remembers the count it was last part of.

    Args:
        limit: launches that may pass an item over before it is overdue.
        policy: whether its launches mix, and how it runs several passes.
    """

    def __init__(self, limit: int, policy: Policy) -> None:
        self._limit = limit
        self._policy = policy
        self._num_decode = self._num_prompt = 0
        self._next_decode = self._next_prompt = limit
        """Counts before which nothing can be overdue, so that nobody has to look."""

    def admitted(self, request: Request) -> None:
        """Begin to count for a request whose first prompt item is made next."""
        request.launches_seen = self._num_prompt

    def launched(self, batch: Batch) -> None:
        """Take note of a launch, and begin anew for its requests: their next items."""
        if batch.launch.runs_layers:
            self._num_decode += self._could_take_decode(batch)
            self._num_prompt += self._could_take_prompt(batch)
        for item in batch.items:
            request = item.request
            is_prompt = request.stage is Stage.PREFILL
            request.launches_seen = self._num_prompt if is_prompt else self._num_decode

    def may_pass_over(self, batch: Batch) -> bool:
        """Whether a launch might leave out an item that is overdue; then `put_first` looks."""
        return (self._num_decode >= self._next_decode and self._could_take_decode(batch)) or (
            self._num_prompt >= self._next_prompt and self._could_take_prompt(batch)
        )

    def put_first(self, batch: Batch, view: View) -> Selection | None:
        """Return what to launch in the place of `batch`; None if it leaves out nothing overdue.

        Args:
            batch: what the policy would launch.
            view: with everything that is ready, masked or not.
        """
        overdue: list[tuple[int, ScheduledItem]] = []
        if self._could_take_decode(batch):
            self._next_decode = self._look(view.decode_items, self._num_decode, overdue)
        if self._could_take_prompt(batch):
            self._next_prompt = self._look(view.prompt_items, self._num_prompt, overdue)
        overdue.sort(key=_times_passed_over, reverse=True)
        first = [item for _, item in overdue]
        if set(map(id, first)) <= set(map(id, batch.items)):
            return None
        taken = set(map(id, first))
        items = first + [item for item in batch.items if id(item) not in taken]
        if self._policy.is_mixing:
            items.sort(key=_is_prompt)  # stable: among decode items the overdue ones stay first
        return self._passes(items, batch.num_passes, view)

    def _look(
        self,
        items: Sequence[ScheduledItem],
        num_launches: int,
        overdue: list[tuple[int, ScheduledItem]],
    ) -> int:
        """Add what is overdue, and return the count at which to look again."""
        oldest, previous = num_launches, None
        for item in items:
            request = item.request
            if request is previous:
                continue
            previous, seen = request, request.launches_seen
            oldest = min(oldest, seen)
            if num_launches - seen >= self._limit:
                overdue.append((num_launches - seen, item))
        return oldest + self._limit

    def _passes(self, items: list[ScheduledItem], num_passes: int, view: View) -> Selection:
        if num_passes > 1 and _runs_all(items[0]):
            candidates = tuple(_packed(filter(_runs_all, items), view))
            num_rows = sum(item.count for item in candidates)
            if self._policy.runs_all_depths or view.shortcut_pays(num_rows):
                return Selection(candidates, num_passes)
        packed = list(_packed(items, view))
        packed.sort(key=_is_prompt)
        return Selection(tuple(packed))

    def _could_take_decode(self, batch: Batch) -> bool:
        return self._policy.is_mixing or batch.num_decode > 0

    def _could_take_prompt(self, batch: Batch) -> bool:
        return self._policy.is_mixing or batch.num_decode < len(batch.items)


def _packed(items: Iterable[ScheduledItem], view: View) -> Iterator[ScheduledItem]:
    """What fits of `items`, in order; a prompt item that does not fit keeps back those after it."""
    num_rows, num_decode, has_prompt_room = view.max_num_batched_tokens, view.max_decode_rows, True
    for item in items:
        if item.kind is ItemKind.PROMPT:
            has_prompt_room = has_prompt_room and item.count <= num_rows
            is_taken = has_prompt_room
        else:
            is_taken = num_decode > 0 and num_rows > 0
            num_decode -= is_taken
        if is_taken:
            num_rows -= item.count
            yield item


def _is_prompt(item: ScheduledItem) -> bool:
    return item.kind is ItemKind.PROMPT


def _runs_all(item: ScheduledItem) -> bool:
    """Whether an item can run every depth in one launch."""
    return item.kind is ItemKind.PROMPT and item.depth == 0 and not item.is_single_pass


def _times_passed_over(found: tuple[int, ScheduledItem]) -> int:
    return found[0]
