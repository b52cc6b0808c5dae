"""How many prompt items of a request may be under way at once, asked of the policy."""

from ..errors import InterfaceError
from ..policies import Policy
from ..request import Request
from ..view import View


def item_window(policy: Policy, view: View, request: Request) -> int:
    """Return the prompt items that `request` may have under way at once.

    What the policy answers is clamped to 1..max_window.

    Raises:
        InterfaceError: it answers with something that is no whole number.
    """
    if policy.window is None:
        return 1
    num_items = policy.window(view, request)
    if type(num_items) is not int:
        raise InterfaceError(
            f"expected from policy {policy.name}: a whole number of prompt items as the window of "
            f"request {request.request_id!r}; got {num_items!r}"
        )
    return max(1, min(num_items, policy.max_window))
