"""How much of a run rests on launches that a cost table was fitted to, and how much on others."""

from looped.record.timeline import Timeline
from looped.sched import CostModel, LaunchKind

UNNAMED = "unnamed_launches"
"""Name of the share in results, in percent."""
MOST_UNNAMED = 5.0
"""Percent of a run's launches that may be of no bucket of the table's before a result says so."""


def unnamed_share(timeline: Timeline, costs: CostModel) -> float | None:
    """Launches whose kind and bucket, or whose head's, a cost table does not name, in percent.

    None for a table that names none: an estimate, or a formula alone.
    """
    if costs.is_estimate or not costs.overheads:
        return None
    records = [launch.record for launch in timeline.launches]
    named = costs.overheads
    num_unnamed = sum(
        record.bucket not in named.get(record.called_kind, {})
        or (record.head is not None and record.head.bucket not in named.get(LaunchKind.HEAD, {}))
        for record in records
    )
    return 100 * num_unnamed / max(len(records), 1)
