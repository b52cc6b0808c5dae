"""What one run says: every metric is a function whose docstring is its definition.

Each takes a run and the run that it is compared with, made beside it in the same round of the same
process, and returns a number, or None where the run has no such thing. Times are seconds. Here are
those of any benchmark of an engine; `interference_metrics` and `throughput_runs` have their own,
and a table of all that they show. docs/benchmarks.md is held to those tables by tests.

Words: the *period* of a run is what is measured of it. A *gap* is the time between two consecutive
tokens of a request, i.e. an inter-token latency (ITL). *Token-loops* are rows times passes over the
layers.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from looped.engine.events import LaunchEvent
from looped.measure.statistics import percentile
from looped.record.timeline import Window, num_ended_rows, token_loops
from looped.sched import ItemKind

from .runs import EngineRun

AnyRun = TypeVar("AnyRun", bound=EngineRun)


@dataclass(frozen=True)
class Metric(Generic[AnyRun]):
    """A named measure of a run, beside the run that it is compared with."""

    name: str
    unit: str
    measure: Callable[[AnyRun, AnyRun], float | None]

    @property
    def definition(self) -> str:
        """Its docstring, as one line."""
        return " ".join((self.measure.__doc__ or "").split())


def itl_p50(run: EngineRun, baseline: EngineRun) -> float | None:
    """Median of all gaps that begin in the period."""
    return percentile_of([gap.seconds for gap in run.gaps], 50)


def itl_p95(run: EngineRun, baseline: EngineRun) -> float | None:
    """95th percentile of all gaps that begin in the period."""
    return percentile_of([gap.seconds for gap in run.gaps], 95)


def itl_max(run: EngineRun, baseline: EngineRun) -> float | None:
    """Largest gap that begins in the period."""
    return percentile_of([gap.seconds for gap in run.gaps], 100)


def output_tokens_per_second(run: EngineRun, baseline: EngineRun) -> float | None:
    """Tokens that became visible in the period, of all requests / period."""
    tokens = sum(len(launch.tokens) for launch in launches_of(run))
    return tokens / run.seconds


def prompt_token_loops_per_second(run: EngineRun, baseline: EngineRun) -> float | None:
    """Prompt token-loops in the period / period."""
    return token_loops_of(run, ItemKind.PROMPT) / run.seconds


def decode_token_loops_per_second(run: EngineRun, baseline: EngineRun) -> float | None:
    """Decode token-loops in the period / period."""
    return token_loops_of(run, ItemKind.DECODE) / run.seconds


def real_rows(run: EngineRun, baseline: EngineRun) -> float | None:
    """Real rows / (real and padded rows) of the launches in the period, rows of a launch of several
    passes once a pass, in percent. Rows that had ended when their launch was applied are padding,
    and heads do not count."""
    records = [launch.record for launch in launches_of(run)]
    real = sum(
        (record.num_rows - num_ended_rows(record)) * max(record.num_passes, 1) for record in records
    )
    return 100 * real / sum(record.bucket * max(record.num_passes, 1) for record in records)


def launches_per_token(run: EngineRun, baseline: EngineRun) -> float | None:
    """Launches in the period / tokens that became visible in it."""
    launches = launches_of(run)
    return len(launches) / sum(len(launch.tokens) for launch in launches)


def readbacks_per_token(run: EngineRun, baseline: EngineRun) -> float | None:
    """Readbacks in the period / tokens that became visible in it."""
    launches = launches_of(run)
    readbacks = sum(launch.record.num_readbacks for launch in launches)
    return readbacks / sum(len(launch.tokens) for launch in launches)


def later_launches_per_readback(run: EngineRun, baseline: EngineRun) -> float | None:
    """Launches that had been dispatched after a launch that is read when the host came to read it,
    mean over those in the period: `run_ahead` at most, and less where nothing else could be
    dispatched."""
    reads = [launch for launch in launches_of(run) if launch.record.num_readbacks]
    later = [launch.launch_index - launch.record.index - 1 for launch in reads]
    return sum(later) / len(later) if later else None


def ended_rows_per_token(run: EngineRun, baseline: EngineRun) -> float | None:
    """Decode rows that rode in the period although they had ended, since the host had not read so
    yet / tokens that became visible in it."""
    launches = launches_of(run)
    rows = sum(num_ended_rows(launch.record) for launch in launches)
    return rows / sum(len(launch.tokens) for launch in launches)


def host_wait_per_readback(run: EngineRun, baseline: EngineRun) -> float | None:
    """Seconds that the host waits for the device before it reads a launch, mean over the launches
    in the period that are read."""
    return mean_wait(launch for launch in launches_of(run) if launch.record.num_readbacks)


def host_wait_per_token(run: EngineRun, baseline: EngineRun) -> float | None:
    """Host wait for all launches of the period, read or not / tokens that became visible in it."""
    launches = launches_of(run)
    waits = sum(launch.host_wait for launch in launches)
    return waits / sum(len(launch.tokens) for launch in launches)


def host_gap(run: EngineRun, baseline: EngineRun) -> float | None:
    """The host's own time between launches: median of (next launch's call - end of this one's call
    - host wait in between), i.e. apply, the driver's own work, schedule, pack and upload. With
    `run_ahead` the device works meanwhile."""
    gaps = [
        after.started
        - before.dispatched
        - run.timeline.host_wait_in(Window(before.dispatched, after.started))
        for before, after in pairwise(launches_of(run))
    ]
    return percentile_of(gaps, 50)


def mean_wait(launches: Iterable[LaunchEvent]) -> float | None:
    """Host wait, mean over launches, or None of none."""
    waits = [launch.host_wait for launch in launches]
    return sum(waits) / len(waits) if waits else None


def percentile_of(values: list[float], percent: float) -> float | None:
    """A percentile, or None of no values."""
    return percentile(values, percent) if values else None


def launches_of(run: EngineRun) -> list[LaunchEvent]:
    """Launches of the period: those that became visible in it."""
    return run.timeline.launches_in(run.period)


def token_loops_of(run: EngineRun, kind: ItemKind) -> int:
    """Rows times passes of a kind, of launches in the period."""
    return sum(token_loops(launch.record, kind) for launch in launches_of(run))
