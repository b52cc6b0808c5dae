"""What Prometheus sees. One registry per server, so that several can live in one process."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from looped.engine.outputs import Completion, TokenEvent
from looped.engine.records import EngineStats, HeadRecord, ItemRecord, LaunchRecord
from looped.sched import ItemKind

from .engine_thread import StepReport

TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)
LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
QUEUE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
MIXED_DEPTHS = "mixed"
"""Depth label of padding rows where the real rows stand at several depths."""
NO_DEPTH = ""
"""Depth label of rows that rode although they had ended."""


class Metrics:
    """Counters, gauges and histograms of one server.

    Args:
        num_loops: P; exit depths are 1..P.
    """

    def __init__(self, num_loops: int) -> None:
        self.registry = CollectorRegistry()
        self._waiting = self._gauge("requests_waiting", "Samples that wait for a slot.")
        self._running = self._gauge("requests_running", "Samples that hold a slot.")
        self._used_blocks = self._gauge("kv_blocks_used", "KV blocks in use, over all planes.")
        self._blocks = self._gauge("kv_blocks", "KV blocks of the pool, over all planes.")
        self._launches = self._counter("launches", "Launches.", "kind", "bucket")
        self._rows = self._counter(
            "rows",
            "Rows of launches, once per loop depth that they ran; of a score, the depth that they "
            "had run. `rows` is prompt, decode, ended (the host had not read so yet) or padded.",
            "kind",
            "rows",
            "depth",
        )
        self._heads = self._counter("heads", "Heads behind launches.", "form", "bucket")
        self._head_rows = self._counter(
            "head_rows",
            "Rows that heads looked at: left, stayed, leaves_next, ended (the host had not read so "
            "yet) or padded.",
            "status",
        )
        self._writes = self._counter(
            "request_table_writes", "Uploads that wrote rows of the request table."
        )
        self._mixed_launches = self._counter(
            "mixed_launches", "Launches with prompt rows and decode rows."
        )
        self._readbacks = self._counter("readbacks", "Launches that the host read.")
        self._compilations = self._counter("compilations", "Compiled steps.")
        self._failed_launches = self._counter("failed_launches", "Launches that failed.")
        self.num_restarts = self._counter("engine_restarts", "Engines built anew.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._cached_tokens = self._counter(
            "cached_prompt_tokens", "Those among them that the prefix cache held."
        )
        self._output_tokens = self._counter("output_tokens", "Tokens emitted.")
        self._finished = self._counter("samples_finished", "Samples that have ended.", "reason")
        self._queue = self._histogram(
            "queue_seconds",
            "From a request's arrival to the first launch of a sample of it.",
            QUEUE_BUCKETS,
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to a token of it.",
            TTFT_BUCKETS,
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds",
            "From one token of a sample to the next.",
            LATENCY_BUCKETS,
        )
        self._seconds = self._histogram(
            "request_seconds", "From a request's arrival to the end of a sample.", TTFT_BUCKETS
        )
        self._exit_depth = self._histogram(
            "exit_depth",
            "Loops executed for emitted tokens.",
            tuple(float(loop) for loop in range(1, num_loops + 1)),
        )
        self.exit_depths = dict.fromkeys(range(1, num_loops + 1), 0)
        """Emitted tokens by the loops executed for them, 1..P."""

    def count_step(self, report: StepReport, previous: EngineStats) -> None:
        """One round of the engine, and what its totals were before."""
        for launch in report.launches:
            self._count_launch(launch.record)
        stats = report.stats
        self._compilations.inc(stats.num_compilations - previous.num_compilations)
        self._failed_launches.inc(stats.num_failed_launches - previous.num_failed_launches)
        self._readbacks.inc(stats.num_readbacks - previous.num_readbacks)
        self.set_load(stats)

    def set_load(self, stats: EngineStats) -> None:
        """What runs and waits now."""
        self._waiting.set(stats.num_waiting)
        self._running.set(stats.num_active)
        self._used_blocks.set(stats.num_used_blocks)
        self._blocks.set(stats.num_blocks)

    def count_first_launch(self, seconds: float) -> None:
        """One sample that came into a launch, so long after its request came."""
        self._queue.observe(seconds)

    def count_token(
        self, event: TokenEvent, *, seen: float, previous: float | None, opened: float
    ) -> None:
        """One token; `previous` is when the sample's last one was seen, None for the first."""
        if previous is None:
            self._first_token.observe(seen - opened)
        else:
            self._inter_token.observe(seen - previous)
        self._output_tokens.inc()
        self._exit_depth.observe(event.exit_depth)
        self.exit_depths[event.exit_depth] += 1

    def count_completion(self, completion: Completion, *, seconds: float) -> None:
        """One sample that has ended, so long after its request came."""
        self._finished.labels(completion.finish_reason.value).inc()
        self._seconds.observe(seconds)
        if completion.sample_index == 0:
            self._prompt_tokens.inc(len(completion.prompt_token_ids))
            self._cached_tokens.inc(completion.num_cached_tokens)

    def _count_launch(self, record: LaunchRecord) -> None:
        kind = record.kind.name.lower()
        self._launches.labels(kind, str(record.bucket)).inc()
        self._mixed_launches.inc(record.is_mixed)
        num_passes = max(record.num_passes, 1)
        for item in record.items:
            rows = "prompt" if item.kind is ItemKind.PROMPT else "decode"
            for depth in _depths(item, num_passes):
                name = "ended" if depth == NO_DEPTH else rows
                self._rows.labels(kind, name, depth).inc(item.num_rows)
        # Wherever the real rows stand, if they stand together.
        depths = {tuple(_depths(item, num_passes)) for item in record.items}
        padded = depths.pop() if len(depths) == 1 else (MIXED_DEPTHS,) * num_passes
        for depth in padded:
            self._rows.labels(kind, "padded", depth).inc(record.num_padded_rows)
        self._writes.inc(record.num_writes)
        if record.head is not None:
            self._count_head(record.head, record.items)

    def _count_head(self, head: HeadRecord, items: tuple[ItemRecord, ...]) -> None:
        self._heads.labels(head.form, str(head.bucket)).inc()
        statuses = [item.status for item in items if item.status is not None]
        for status in statuses:
            self._head_rows.labels(status.name.lower()).inc()
        self._head_rows.labels("ended").inc(head.num_rows - len(statuses))
        self._head_rows.labels("padded").inc(head.bucket - head.num_rows)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"looped_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"looped_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"looped_{name}", text, buckets=buckets, registry=self.registry)


def _depths(item: ItemRecord, num_passes: int) -> list[str]:
    """Labels of the depths that an item ran, one a pass."""
    if item.depth is None:
        return [NO_DEPTH] * num_passes
    return [str(depth) for depth in range(item.depth, item.depth + num_passes)]
