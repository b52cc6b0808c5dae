"""`slack`: prompt rows take the time that the most urgent decode row can spare.

Constructed with a cost model and a target for the latency between tokens. A token that is due
`target` seconds after the one before it has some of that time left, its *slack*, of which the LM
head will take its part; the rest is shared evenly over the loops that the token still needs. The
smallest such share among a launch's decode rows is what the launch may take, and never more than
the share of a token that has just begun:

    allowance = min((target - (now - newest_token_time) - head) / remaining loops,
                    (target - head) / max_loops)

So time that a launch leaves unused is not given to later ones. How many loops a token has left is
seen from its depth: the policy needs depths, and every launch is read before the next is made.

So the target holds for what is predicted: the passes of a token, each as if the others filled their
share, and one LM head. It does not hold for the host's own time around them, for LM heads of other
requests in between, where decode rows alone take longer, or in a launch into which the Scheduler
puts an overdue prompt item; leave room for these.

It acts in two places. `take` adds prompt items, in admission order, as long as the predicted time
stays within the allowance. `item_size` makes a new item as large as would fit beside the decode
rows of the moment; where nothing fits, as large as would fit beside them if each had just begun its
token, and a whole chunk if the target is out of reach even then. An item under way keeps its size.

While nothing decodes it is `mixed`. Prompts that never fit still advance, because the Scheduler
ages them. Times are predicted for the row buckets of a plain engine.
"""

from functools import partial

from ..buckets import bucket_for, head_ladder, recurrent_ladder
from ..costing.work import LaunchCosts, LaunchWork
from ..errors import ConfigError
from ..items import ItemKind, ScheduledItem
from ..launches import LaunchKind
from ..request import Request, Stage
from ..view import Selection, View
from .mixing import Items, choose_mixing, mix
from .policy import Policy
from .remaining import remaining_loops_ahead


def slack_policy(costs: LaunchCosts, target: float) -> Policy:
    """Return the policy for a cost model and a target.

    Args:
        costs: predicts launches, in seconds; the caller's `now` has to be in seconds, too.
        target: seconds between two tokens of a request, above 0.

    Raises:
        ConfigError: a target that is none.
    """
    if not 0.0 < target < float("inf"):
        raise ConfigError(f"target must be above 0 seconds, and finite; got {target}")
    return Policy(
        name="slack",
        choose=choose_mixing,
        take=partial(_take, costs, target),
        item_size=partial(_item_size, costs, target),
        is_mixing=True,
        uses_prompt_shortcut=True,
        needs_depths=True,
    )


def slack_from_options(*, target: str, costs: str) -> Policy:
    """Return the policy for what a user typed.

    Args:
        target: seconds between two tokens of a request.
        costs: a file of costs, or the name of a table that is shipped.

    Raises:
        ConfigError: no such table, or a target that is none.
    """
    from ..costing.cost_model import read_cost_table  # reads files, which nothing else here does

    try:
        seconds = float(target)
    except ValueError:
        raise ConfigError(f"target must be a number of seconds, got {target!r}") from None
    return slack_policy(read_cost_table(costs), seconds)


def _take(costs: LaunchCosts, target: float, view: View, stage: Stage) -> Selection:
    """Decode rows, then the prompt items that time and budget leave room for."""
    decodes = view.decode_items[: view.max_decode_rows]
    if not decodes:
        return mix(view, (), view.prompt_items)
    allowance = _allowance(costs, target, view, decodes)
    selection = mix(view, decodes, view.prompt_items)
    prompts = selection.candidates[len(decodes) :]
    while prompts and costs.seconds(_pass_of(view, decodes + prompts)) > allowance:
        prompts = prompts[:-1]
    return Selection(decodes + prompts)


def _item_size(costs: LaunchCosts, target: float, view: View, request: Request) -> int:
    """Most tokens of a new item that fit the allowance beside the decode rows of the moment."""
    decodes = view.decode_items[: view.max_decode_rows]
    if not decodes:
        return view.prefill_chunk_size
    fresh = _fresh_share(costs, target, view, decodes)
    for allowance in (_allowance(costs, target, view, decodes), fresh):
        num_tokens = _largest_fit(costs, allowance, view, decodes, request)
        if num_tokens > 0:
            return num_tokens
    return view.prefill_chunk_size


def _largest_fit(
    costs: LaunchCosts, allowance: float, view: View, decodes: Items, request: Request
) -> int:
    """Bisect for the size, since a launch with more rows never takes less time; 0: none fits."""
    fitting, too_many = 0, view.prefill_chunk_size + 1
    while too_many - fitting > 1:
        num_tokens = (fitting + too_many) // 2
        start = request.num_chunked_tokens
        item = ScheduledItem(request, ItemKind.PROMPT, 0, start, num_tokens)
        if costs.seconds(_pass_of(view, (*decodes, item))) <= allowance:
            fitting = num_tokens
        else:
            too_many = num_tokens
    return fitting


def _allowance(costs: LaunchCosts, target: float, view: View, decodes: Items) -> float:
    """Seconds that a launch with these decode rows may take; below 0 where one is late."""
    head = _head_seconds(costs, view)
    most_urgent = min(
        (target - head - (view.now - item.request.newest_token_time))
        / remaining_loops_ahead(view, item)
        for item in decodes
    )
    return min(most_urgent, _fresh_share(costs, target, view, decodes))


def _fresh_share(costs: LaunchCosts, target: float, view: View, decodes: Items) -> float:
    """Seconds of a launch if each of these decode rows had just begun its token."""
    most_loops = max(item.request.exit_rule.max_loops for item in decodes)
    return (target - _head_seconds(costs, view)) / most_loops


def _head_seconds(costs: LaunchCosts, view: View) -> float:
    """The LM head of one token: what follows its last loop."""
    bucket = head_ladder(view.max_num_seqs)[0]
    work = LaunchWork(LaunchKind.HEAD, bucket, 1, num_passes=0, decode_keys=0, prompt_keys=0)
    return costs.seconds(work)


def _pass_of(view: View, items: Items) -> LaunchWork:
    ladder = recurrent_ladder(
        view.max_num_batched_tokens, view.prefill_chunk_size, view.max_num_seqs
    )
    bucket = bucket_for(ladder, sum(item.count for item in items))
    return LaunchWork.of(items, kind=LaunchKind.RECURRENT, num_passes=1, bucket=bucket)
