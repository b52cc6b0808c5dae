"""How a prompt is cut into items: as large as the policy says, and as many at once.

The Scheduler asks when a request could have another item; what is made keeps its size. The answers
are checked, because a policy may come from anywhere.
"""

from .errors import InterfaceError
from .policies import Policy
from .request import Request
from .view import View


def item_size(policy: Policy, view: View, request: Request) -> int:
    """Return the most tokens of the next prompt item of `request`.

    Raises:
        InterfaceError: the policy asks for none, or for more than prefill_chunk_size.
    """
    if policy.item_size is None:
        return view.prefill_chunk_size
    size = policy.item_size(view, request)
    _check(policy, "tokens in a prompt item", size, view.prefill_chunk_size)
    return size


def window(policy: Policy, view: View, request: Request) -> int:
    """Return the most prompt items of `request` that may be under way at once.

    Raises:
        InterfaceError: the policy asks for none, or for more than its max_window.
    """
    if policy.window is None:
        return 1
    num_items = policy.window(view, request)
    _check(policy, "prompt items of a request at once", num_items, policy.max_window)
    return num_items


def _check(policy: Policy, what: str, got: int, limit: int) -> None:
    if not 1 <= got <= limit:
        raise InterfaceError(f"expected from policy {policy.name}: 1..{limit} {what}; got {got}")
