"""Taking turns between prompt and decode launches, as `atomic` and `separate` both do."""

from ..request import Stage
from ..view import Choice, View


def choose_alternating(view: View) -> Choice:
    """Coda if ready; decode if it is due; else prompts, after admission; else decode."""
    if view.is_coda_ready:
        return Stage.CODA, False
    is_decode_due = view.num_prompt_launches >= view.prefill_interval
    if view.decode_items and is_decode_due:
        return Stage.RECURRENT, False
    if view.prompt_items or view.num_waiting:
        return Stage.PREFILL, True
    return Stage.RECURRENT, False
