"""`separate` (arm A1): prompts advance one depth per launch, in launches of their own.

Prompt items at any depths share a launch, because every depth reads the same weights.
"""

from ..request import Stage
from ..view import Selection, View
from .alternation import choose_alternating
from .packing import pack_whole
from .policy import Policy


def take(view: View, stage: Stage) -> Selection:
    """All decode rows, or the first prompt items that fit."""
    if stage is Stage.RECURRENT:
        return Selection(view.decode_items[: view.max_decode_rows])
    return Selection(pack_whole(view.prompt_items, view.max_num_batched_tokens))


SEPARATE = Policy(name="separate", choose=choose_alternating, take=take, uses_prefill_interval=True)
