"""Scheduling policies: what runs next, as pure functions over an immutable view.

A `Policy` is asked these, and flags say what it does with the configuration's options. It allocates
nothing and keeps nothing, and a wrong answer is an `InterfaceError` that names it.

    choose(view) -> (stage, admits)
        Where to take from: RECURRENT (passes of decode rows, and of prompt rows where the policy
        mixes) or PREFILL (passes of prompt rows alone); and whether waiting requests are admitted
        first. A stage whose selection turned out empty is *masked*, shown as empty, and the policy
        is asked again. To want nothing at all is wrong unless a launch is out that nobody has read.
    take(view, stage) -> Selection(candidates, num_passes)
        The items of the launch, a tuple out of the view after admission: decode items first, at
        most `view.max_decode_rows` of them, then prompt items, `view.max_num_batched_tokens` rows
        altogether. A request's prompt items keep their order. num_passes is 1, or P to run every
        depth of prompt items that stand at depth 0, which is for policies that say so
        (`runs_all_depths`, or `uses_prompt_shortcut` where `view.shortcut_pays`).
    item_size(view, request) -> tokens                 optional; else prefill_chunk_size
        Asked once, when a prompt item is made, before choose or take sees it. Clamped to
        1..prefill_chunk_size, and kept until the item has run every depth.
    window(view, request) -> items                     optional; else 1
        Most prompt items of the request under way at once.

What is known about a request stands in `item.request`: its exit rule, when it came (`arrival_time`)
and when its newest token did (`newest_token_time`), in the unit of `view.now`. Where its row stands
is in the item: depth, output index, and whether it leaves after this pass. Each is None where
launches that nobody has read leave it open; a policy that looks at one of them declares
`needs_depths`, and then every launch is read before the next is made.

An order cannot starve anybody: what was passed over in 4 * P * max_num_seqs launches that could
have taken it goes first, under any policy (`sched/choice/aging.py`). How often it takes
launches of each kind, and when it admits, is its own affair.

`POLICIES` and `FACTORIES` are the shipped ones, one file each; a package adds others by an entry
point of the group `looped.policies` (`registry.py`), and the Scheduler and the engine take a
`Policy` object in the place of a name, too.
"""

from .packing import pack_whole
from .policy import Policy
from .registry import (
    FACTORIES,
    GROUP,
    POLICIES,
    PolicyOptions,
    policy_named,
    policy_names,
    resolve_policy,
)
from .slack import slack_policy
from .wavefront import wavefront_from_options, wavefront_policy

__all__ = [
    "FACTORIES",
    "GROUP",
    "POLICIES",
    "Policy",
    "PolicyOptions",
    "pack_whole",
    "policy_named",
    "policy_names",
    "resolve_policy",
    "slack_policy",
    "wavefront_from_options",
    "wavefront_policy",
]
