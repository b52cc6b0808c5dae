"""`mixed` (arm A2, the default): prompt rows at their own depth share launches with decode rows.

Every loop reads the same weights, so a launch carries decode rows at their depths and prompt rows
at theirs. Decode items come first and are all taken, so a prompt never displaces one; prompt items
follow in admission order, each whole. The guard in `SchedulerConfig` keeps room for the oldest
prompt item beside a full house of decode rows, so decode never starves a prompt either.
"""

from ..items import ScheduledItem
from ..request import Stage
from ..view import Choice, Selection, View
from .packing import pack_whole
from .policy import Policy


def choose(view: View) -> Choice:
    """Coda if ready, else everything that loops, after admission."""
    return (Stage.CODA, False) if view.is_coda_ready else (Stage.RECURRENT, True)


def take(view: View, stage: Stage) -> Selection:
    """All coda rows; or all decode rows, then the prompt items that fit beside them."""
    if stage is Stage.CODA:
        return Selection(view.coda_items)
    num_rows = view.max_num_batched_tokens - len(view.decode_items)
    prompts = pack_whole(view.prompt_items, num_rows)
    return Selection(view.decode_items + prompts, _num_passes(view, prompts))


def _num_passes(view: View, prompts: tuple[ScheduledItem, ...]) -> int:
    """The prompt-only shortcut: with nobody to wait for them, prompts run their depths at once."""
    depths = {item.depth for item in prompts}
    num_rows = sum(item.count for item in prompts)
    is_alone = view.num_past_prompt == 0 and not any(map(_is_single_pass, view.prompt_items))
    if is_alone and len(depths) == 1 and view.shortcut_pays(num_rows):
        return view.num_planes - depths.pop()
    return 1


def _is_single_pass(item: ScheduledItem) -> bool:
    return item.is_single_pass


MIXED = Policy(name="mixed", choose=choose, take=take, is_mixing=True, uses_prompt_shortcut=True)
