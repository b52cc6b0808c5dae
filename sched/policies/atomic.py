"""`atomic` (arm A0): a prompt item runs all its depths in one launch.

Items of several requests are packed into a launch; decode waits until every depth is through.
"""

from ..request import Stage
from ..view import Selection, View
from .alternation import choose_alternating
from .packing import pack_whole
from .policy import Policy


def take(view: View, stage: Stage) -> Selection:
    """All coda rows, all decode rows, or prompt items at the oldest one's depth to the end."""
    if stage is Stage.CODA:
        return Selection(view.coda_items)
    if stage is Stage.RECURRENT:
        return Selection(view.decode_items[: view.max_decode_rows])
    if not view.prompt_items:
        return Selection(())
    depth = view.prompt_items[0].depth
    alike = tuple(item for item in view.prompt_items if item.depth == depth)
    return Selection(pack_whole(alike, view.max_num_batched_tokens), view.num_planes - depth)


ATOMIC = Policy(
    name="atomic",
    choose=choose_alternating,
    take=take,
    uses_prefill_interval=True,
    runs_all_depths=True,
)
