"""Events of a launch log as objects of JSON, one a line, and back."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from looped.engine.events import (
    AbortEvent,
    EndEvent,
    EngineEvent,
    FaultEvent,
    LaunchEvent,
    LogEvent,
    LoggedToken,
    QueueLengths,
    RequestEvent,
)
from looped.engine.records import HeadRecord, ItemRecord, LaunchRecord
from looped.sched import (
    ExitMode,
    ExitRule,
    FinishReason,
    ItemKind,
    PromptScoring,
    RowStatus,
    Stage,
    launch_kind,
)

ITEM_FIELDS = tuple(field.name for field in fields(ItemRecord))
TOKEN_FIELDS = tuple(field.name for field in fields(LoggedToken))
QUEUE_FIELDS = tuple(field.name for field in fields(QueueLengths))
MOMENTS = ("scheduled", "started", "dispatched", "awaited", "ended", "visible")
RECORD_FIELDS = tuple(
    field.name for field in fields(LaunchRecord) if field.name not in ("kind", "head", "items")
)

_KIND_NAMES = {kind: kind.name.lower() for kind in ItemKind}
_STATUS_NAMES = {None: None} | {status: status.name.lower() for status in RowStatus}
_STATUSES = {name: status for status, name in _STATUS_NAMES.items()}


def event_to_json(event: LogEvent) -> dict[str, Any]:
    """One line as an object of JSON."""
    match event:
        case LaunchEvent():
            return _launch_values(event)
        case EngineEvent():
            ladders = {kind.name.lower(): ladder for kind, ladder in event.ladders.items()}
            return {"type": "engine", **_shallow(event), "ladders": ladders}
        case RequestEvent():
            named = {"exit_rule": _shallow(event.exit_rule), "scoring": event.scoring.name.lower()}
            return {"type": "request", **_shallow(event), **named}
        case AbortEvent():
            return {"type": "abort", **_shallow(event), "stage": event.stage.name.lower()}
        case EndEvent():
            return {"type": "end", **_shallow(event)}
        case FaultEvent():
            return {"type": "fault", **_shallow(event)}


def event_from_json(values: dict[str, Any]) -> LogEvent:
    """The event of one line; KeyError, TypeError or ValueError if it is none."""
    kind = values.pop("type")
    if kind not in _READERS:
        raise ValueError(f"type {kind!r}")
    return _READERS[kind](values)


def _launch_values(event: LaunchEvent) -> dict[str, Any]:
    record = event.record
    return {
        "type": "launch",
        "kind": record.kind.name.lower(),
        **{name: getattr(record, name) for name in RECORD_FIELDS},
        "num_padded_rows": record.num_padded_rows,
        "head": None if record.head is None else _shallow(record.head),
        "launch_index": event.launch_index,
        **{name: getattr(event, name) for name in MOMENTS},
        "num_compilations": event.num_compilations,
        "queues": [getattr(event.queues, name) for name in QUEUE_FIELDS],
        "items": [_item_values(item) for item in record.items],
        "tokens": [_token_values(token) for token in event.tokens],
    }


# Written out: these run once an item and a token, and a loop over names costs four times as much.
def _item_values(item: ItemRecord) -> tuple[str | int | None, ...]:
    return (
        item.request_id,
        item.sample_index,
        _KIND_NAMES[item.kind],
        item.depth,
        item.first_position,
        item.num_rows,
        item.slot,
        _STATUS_NAMES[item.status],
    )


def _token_values(token: LoggedToken) -> tuple[str | int, ...]:
    return (
        token.request_id,
        token.sample_index,
        token.output_index,
        token.token_id,
        token.exit_depth,
    )


def _shallow(event: LogEvent | ExitRule | HeadRecord) -> dict[str, Any]:
    return {field.name: getattr(event, field.name) for field in fields(event)}


def _read_engine(values: dict[str, Any]) -> EngineEvent:
    ladders = {launch_kind(kind): tuple(rows) for kind, rows in values["ladders"].items()}
    return EngineEvent(**values | {"ladders": ladders})


def _read_request(values: dict[str, Any]) -> RequestEvent:
    rule = values["exit_rule"]
    rule = ExitRule(**rule | {"mode": ExitMode(rule["mode"]), "trace": tuple(rule["trace"])})
    named = {
        "exit_rule": rule,
        "scoring": PromptScoring[values["scoring"].upper()],
        "prefix_keys": tuple(values["prefix_keys"]),
    }
    return RequestEvent(**values | named)


def _read_launch(values: dict[str, Any]) -> LaunchEvent:
    items = tuple(
        ItemRecord(
            request_id, sample, ItemKind[kind.upper()], depth, first, rows, slot, _STATUSES[status]
        )
        for request_id, sample, kind, depth, first, rows, slot, status in values["items"]
    )
    kind = launch_kind(values["kind"])
    head = None if values["head"] is None else HeadRecord(**values["head"])
    record = {name: values[name] for name in RECORD_FIELDS}
    return LaunchEvent(
        record=LaunchRecord(kind=kind, head=head, items=items, **record),
        launch_index=values["launch_index"],
        queues=QueueLengths(*values["queues"]),
        num_compilations=values["num_compilations"],
        tokens=tuple(LoggedToken(*token) for token in values["tokens"]),
        **{name: float(values[name]) for name in MOMENTS},
    )


def _read_abort(values: dict[str, Any]) -> AbortEvent:
    return AbortEvent(**values | {"stage": Stage[values["stage"].upper()]})


def _read_end(values: dict[str, Any]) -> EndEvent:
    return EndEvent(**values | {"reason": FinishReason(values["reason"])})


def _read_fault(values: dict[str, Any]) -> FaultEvent:
    return FaultEvent(**values)


_READERS: dict[str, Callable[[dict[str, Any]], LogEvent]] = {
    "engine": _read_engine,
    "request": _read_request,
    "launch": _read_launch,
    "abort": _read_abort,
    "end": _read_end,
    "fault": _read_fault,
}
