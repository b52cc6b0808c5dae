"""`atomic` (arm A0): a prompt item runs all its depths in one launch.

Items of several requests are packed into a launch; decode waits until every depth is through.
"""

from ..request import Stage
from ..view import Selection, View
from .alternation import choose_alternating
from .packing import pack_whole
from .policy import Policy


def take(view: View, stage: Stage) -> Selection:
    """All decode rows, or the first prompt items that fit, through every depth."""
    if stage is Stage.RECURRENT:
        return Selection(view.decode_items[: view.max_decode_rows])
    return Selection(pack_whole(view.prompt_items, view.max_num_batched_tokens), view.num_planes)


ATOMIC = Policy(
    name="atomic",
    choose=choose_alternating,
    take=take,
    uses_prefill_interval=True,
    runs_all_depths=True,
)
