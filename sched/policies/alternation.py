"""Taking turns between prompt and decode launches, as `atomic` and `separate` both do."""

from ..request import Stage
from ..view import Choice, View


def choose_alternating(view: View) -> Choice:
    """Decode if it is due; else prompts, after admission; else decode."""
    is_decode_due = view.num_prompt_launches >= view.prefill_interval
    if view.decode_items and is_decode_due:
        return Stage.RECURRENT, False
    if view.prompt_items or view.num_waiting:
        return Stage.PREFILL, True
    return Stage.RECURRENT, False
