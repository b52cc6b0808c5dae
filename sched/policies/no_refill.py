"""`no-refill`: static batching, which admits new requests when every active one has finished.

What refilling slots at once is worth is seen against it; in all else it is `mixed`.
"""

from ..view import Choice, View
from .mixed import take
from .mixing import choose_mixing
from .policy import Policy


def choose(view: View) -> Choice:
    """As `mixed`, but for admission."""
    stage, _ = choose_mixing(view)
    return stage, view.num_active == 0


NO_REFILL = Policy(
    name="no-refill", choose=choose, take=take, is_mixing=True, uses_prompt_shortcut=True
)
