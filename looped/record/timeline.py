"""A launch log put in order: tokens by request, gaps between them, and what lies in a gap.

Everything that measures or draws a log starts from here, so that the definitions stand once.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise

from looped.engine.events import EndEvent, LaunchEvent, LogEvent, LoggedToken, RequestEvent
from looped.engine.records import ItemRecord, LaunchRecord
from looped.sched import ItemKind

Name = tuple[str, int]
"""Request id and sample index."""


@dataclass(frozen=True, slots=True)
class VisibleToken:
    """A token and the moment at which the host could see it."""

    time: float
    token: LoggedToken


@dataclass(frozen=True, slots=True)
class Gap:
    """From one token of a request to its next."""

    name: Name
    start: float
    """The earlier token was visible."""
    end: float
    """The later one was."""

    @property
    def seconds(self) -> float:
        """Inter-token latency (ITL): end - start."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, such as that in which a prompt is under way."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start

    def overlaps(self, gap: Gap) -> bool:
        """Whether some of the gap lies inside; touching is not enough."""
        return gap.start < self.end and gap.end > self.start


def token_loops(record: LaunchRecord, kind: ItemKind) -> int:
    """Rows of a kind times passes over the layers; 0 of a score. Rows that had ended do not count:
    the device masks them, or their request was aborted."""
    rows = sum(item.num_rows for item in record.items if item.kind is kind and has_run(item))
    return rows * record.num_passes


def has_run(item: ItemRecord) -> bool:
    """Whether an item had not ended before its launch was applied."""
    return item.depth is not None


def num_ended_rows(record: LaunchRecord) -> int:
    """Rows that rode in a launch although they had ended, which the host learned later."""
    return sum(item.num_rows for item in record.items if not has_run(item))


def item_depths(record: LaunchRecord, item: ItemRecord) -> range:
    """Depths that an item ran in a launch; none in a score, and none if it had ended."""
    return range(0) if item.depth is None else range(item.depth, item.depth + record.num_passes)


def places_in_slots(record: LaunchRecord) -> list[tuple[ItemRecord, int, int]]:
    """Every item with its place among the items of its slot, from 0, and how many those are."""
    num_items = Counter(item.slot for item in record.items)
    num_seen: Counter[int] = Counter()
    placed = []
    for item in record.items:
        placed.append((item, num_seen[item.slot], num_items[item.slot]))
        num_seen[item.slot] += 1
    return placed


class _Names:
    """Tells apart requests that had one id, one after the other: `ID`, `ID#2`, `ID#3`, …"""

    def __init__(self) -> None:
        self._taken: set[Name] = set()
        self._current: dict[str, str] = {}
        """By the id of a line, what the newest request of that id goes by."""
        self._num_repeats: Counter[str] = Counter()

    def begun(self, request_id: str, sample_index: int) -> Name:
        """A name of its own for a request, or a sample, that enters the queue."""
        own_id = self._current.get(request_id, request_id)
        while (own_id, sample_index) in self._taken:
            self._num_repeats[request_id] += 1
            own_id = f"{request_id}#{self._num_repeats[request_id] + 1}"
        self._current[request_id] = own_id
        self._taken.add((own_id, sample_index))
        return own_id, sample_index

    def of(self, request_id: str, sample_index: int) -> Name:
        """The name of the newest request, or sample, of that id."""
        return self._current.get(request_id, request_id), sample_index


class Timeline:
    """The events of one engine, in order of time.

    An id that comes again is another request, which goes by `ID#2` here, and so on.

    Args:
        events: of a log, or recorded in memory.
    """

    def __init__(self, events: Iterable[LogEvent]) -> None:
        self.launches: list[LaunchEvent] = []
        """In order. With `run_ahead` later ones were scheduled before one was visible."""
        self.requests: dict[Name, RequestEvent] = {}
        self.ends: dict[Name, EndEvent] = {}
        self.tokens: dict[Name, list[VisibleToken]] = defaultdict(list)
        names = _Names()
        for event in events:
            match event:
                case RequestEvent():
                    self.requests[names.begun(event.request_id, event.sample_index)] = event
                case EndEvent():
                    self.ends[names.of(event.request_id, event.sample_index)] = event
                case LaunchEvent():
                    self.launches.append(event)
                    for token in event.tokens:
                        name = names.of(token.request_id, token.sample_index)
                        self.tokens[name].append(VisibleToken(event.visible, token))
        self._visible = [launch.visible for launch in self.launches]
        self._awaited = [launch.awaited for launch in self.launches]
        waits = (launch.host_wait for launch in self.launches)
        self._waits = list(accumulate(waits, initial=0.0))
        loops = (token_loops(launch.record, ItemKind.PROMPT) for launch in self.launches)
        self._prompt_loops = list(accumulate(loops, initial=0))

    def first_token_time(self, name: Name) -> float | None:
        """When a request's first token was visible; None if it has none."""
        tokens = self.tokens.get(name)
        return tokens[0].time if tokens else None

    def gaps(self, name: Name) -> list[Gap]:
        """Gaps between the tokens of one request, in order."""
        times = [token.time for token in self.tokens.get(name, ())]
        return [Gap(name, start, end) for start, end in pairwise(times)]

    def prompt_loops_in(self, gap: Gap) -> int:
        """Prompt rows times passes of the launches that became visible in (start, end]."""
        first = bisect_right(self._visible, gap.start)
        last = bisect_right(self._visible, gap.end)
        return self._prompt_loops[last] - self._prompt_loops[first]

    def host_wait_in(self, window: Window) -> float:
        """Seconds of the waits that began in a window, half open."""
        first = bisect_left(self._awaited, window.start)
        return self._waits[bisect_left(self._awaited, window.end)] - self._waits[first]

    def device_spans(self) -> list[tuple[LaunchEvent, Window]]:
        """Launches with the time in which the device had them, as far as the host can tell.

        It runs them one after the other: each from its call, or from the end of the one before it
        where that came later, to its own end.
        """
        spans, last = [], float("-inf")
        for launch in self.launches:
            spans.append((launch, Window(max(launch.started, last), launch.ended)))
            last = launch.ended
        return spans

    def launches_in(self, window: Window) -> list[LaunchEvent]:
        """Launches that became visible inside a window, or at its end."""
        first = bisect_right(self._visible, window.start)
        return self.launches[first : bisect_right(self._visible, window.end)]
