"""`mixed` (arm A2, the default): prompt rows at their own depth share launches with decode rows.

Every loop reads the same weights, so a launch carries decode rows at their depths and prompt rows
at theirs. Decode items come first, in admission order and up to max_decode_rows, so a prompt never
displaces one; prompt items follow in admission order, each whole. The guard in `SchedulerConfig`
keeps room for the oldest prompt item beside a full house of decode rows, so decode never starves a
prompt either.
"""

from ..request import Stage
from ..view import Selection, View
from .mixing import choose_mixing, mix
from .policy import Policy


def take(view: View, stage: Stage) -> Selection:
    """Decode rows, then the prompt items that fit beside them."""
    return mix(view, view.decode_items, view.prompt_items)


MIXED = Policy(
    name="mixed", choose=choose_mixing, take=take, is_mixing=True, uses_prompt_shortcut=True
)
