"""How many prompt tokens a new item has, asked of the policy once, when the item is made.

An item that is under way keeps its size: its rows have to stand together through every depth.
"""

from ..errors import InterfaceError
from ..policies import Policy
from ..request import Request
from ..view import View


def item_size(policy: Policy, view: View, request: Request) -> int:
    """Return the tokens that the next prompt item of `request` may have.

    What the policy answers is clamped to 1..prefill_chunk_size.

    Raises:
        InterfaceError: it answers with something that is no whole number.
    """
    if policy.item_size is None:
        return view.prefill_chunk_size
    num_tokens = policy.item_size(view, request)
    if type(num_tokens) is not int:
        raise InterfaceError(
            f"expected from policy {policy.name}: a whole number of tokens as the item size of "
            f"request {request.request_id!r}; got {num_tokens!r}"
        )
    return max(1, min(num_tokens, view.prefill_chunk_size))
