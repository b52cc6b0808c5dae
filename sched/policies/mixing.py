"""Prompt rows beside decode rows, as every mixing policy launches them; orders and sizes differ."""

from collections.abc import Callable
from functools import partial

from ..items import ScheduledItem
from ..request import Request, Stage
from ..view import Choice, Selection, View
from .packing import pack_whole
from .policy import Policy

Items = tuple[ScheduledItem, ...]
Key = Callable[[View, ScheduledItem], float]


def choose_mixing(view: View) -> Choice:
    """Everything that loops, after admission."""
    return Stage.RECURRENT, True


def mix(view: View, decodes: Items, prompts: Items) -> Selection:
    """The first decode items up to max_decode_rows, then the first prompt items that fit."""
    decodes = decodes[: view.max_decode_rows]
    prompts = pack_whole(prompts, view.max_num_batched_tokens - len(decodes))
    return Selection(decodes + prompts, shortcut_passes(view, prompts))


def shortcut_passes(view: View, prompts: Items) -> int:
    """The prompt-only shortcut: with nobody to wait for them, prompts run their depths at once."""
    num_rows = sum(item.count for item in prompts)
    is_alone = view.num_past_prompt == 0 and not any(map(_is_single_pass, view.prompt_items))
    is_fresh = bool(prompts) and all(item.depth == 0 for item in prompts)
    if is_alone and is_fresh and view.shortcut_pays(num_rows):
        return view.num_planes
    return 1


def ordering_policy(name: str, key: Key) -> Policy:
    """A mixing policy that takes what `key` makes smallest first, decode and prompt items alike.

    Equals stand in admission order, and so do the items of one prompt, wherever its first one has
    put them. Depths order it, so it needs them.
    """

    def take(view: View, stage: Stage) -> Selection:
        """Decode rows, then the prompt items that fit beside them, in order."""
        decodes = tuple(sorted(view.decode_items, key=partial(key, view)))
        return mix(view, decodes, _ordered_prompts(view, key))

    return Policy(
        name=name,
        choose=choose_mixing,
        take=take,
        is_mixing=True,
        uses_prompt_shortcut=True,
        needs_depths=True,
    )


def _ordered_prompts(view: View, key: Key) -> Items:
    place: dict[Request, float] = {}
    for item in view.prompt_items:
        if item.request not in place:
            place[item.request] = key(view, item)
    return tuple(sorted(view.prompt_items, key=lambda item: place[item.request]))


def _is_single_pass(item: ScheduledItem) -> bool:
    return item.is_single_pass
