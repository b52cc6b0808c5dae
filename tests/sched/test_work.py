"""What a launch has to do, counted from its items."""

from dataclasses import replace

from looped.sched import (
    ExitOptions,
    ItemKind,
    LaunchKind,
    LaunchWork,
    Request,
    ScheduledItem,
    resolve_exit,
)


def item(kind: ItemKind, first_position: int, count: int) -> ScheduledItem:
    rule = resolve_exit(ExitOptions(), ExitOptions(), num_planes=4)
    request = Request(request_id="any", prompt_token_ids=(1,), max_tokens=1, exit_rule=rule)
    return ScheduledItem(request, kind, 2, first_position, count)


def test_rows_and_the_keys_that_they_see_are_counted_by_kind() -> None:
    items = (item(ItemKind.DECODE, 9, 1), item(ItemKind.DECODE, 0, 1), item(ItemKind.PROMPT, 8, 3))
    work = LaunchWork.of(items, kind=LaunchKind.RECURRENT, num_passes=1, bucket=8)
    assert work == LaunchWork(
        LaunchKind.RECURRENT, 8, 5, 1, decode_keys=10 + 1, prompt_keys=9 + 10 + 11
    )
    split = LaunchWork.of(items, kind=LaunchKind.RECURRENT, num_passes=4, bucket=8, num_calls=4)
    assert split == replace(work, num_passes=4, num_calls=4)


def test_an_lm_head_has_rows_and_neither_passes_nor_keys() -> None:
    items = (item(ItemKind.DECODE, 9, 1),)
    work = LaunchWork.of(items, kind=LaunchKind.HEAD, num_passes=1, bucket=2)
    assert work == LaunchWork(LaunchKind.HEAD, 2, 1, 0, decode_keys=0, prompt_keys=0)
