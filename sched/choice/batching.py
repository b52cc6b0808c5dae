"""From a policy's selection to a batch: checked, because a policy may come from anywhere.

A wrong selection is refused before anything is allocated, with the policy's name.
"""

from ..errors import InterfaceError
from ..items import Batch, ItemKind
from ..launches import pass_batch
from ..policies import Policy
from ..view import Selection, View


def build_batch(selection: Selection, view: View, policy: Policy) -> Batch:
    """Return the launch of a non-empty selection from `view`.

    Raises:
        InterfaceError: items that the view does not offer or offers once, decode items behind
            prompt items, too many rows or decode rows, or passes that the items cannot run
            together.
    """
    items, policy_name = selection.candidates, policy.name
    if items is not view.decode_items:  # all of them, as most launches have it
        offered = set(map(id, view.decode_items)) | set(map(id, view.prompt_items))
        taken = set(map(id, items))
        if len(taken) < len(items) or not taken <= offered:
            raise _fault(policy_name, "distinct items of the view")
    batch = pass_batch(items, selection.num_passes)
    if batch.num_rows > view.max_num_batched_tokens:
        raise _fault(
            policy_name, f"at most {view.max_num_batched_tokens} rows", f"{batch.num_rows}"
        )
    if batch.num_decode > view.max_decode_rows:
        raise _fault(
            policy_name, f"at most {view.max_decode_rows} decode rows", f"{batch.num_decode}"
        )
    if any(item.kind is ItemKind.PROMPT for item in items[: batch.num_decode]):
        raise _fault(policy_name, "decode items before prompt items")
    if selection.num_passes != 1:
        _check_passes(batch, view.num_planes, policy_name)
        may_skip = policy.uses_prompt_shortcut and view.shortcut_pays(batch.num_rows)
        if not (policy.runs_all_depths or may_skip):
            raise _fault(
                policy_name,
                "one pass a launch unless it declares runs_all_depths, or uses_prompt_shortcut and "
                "the shortcut pays",
                f"{selection.num_passes} passes of {batch.num_rows} rows",
            )
    return batch


def _check_passes(batch: Batch, num_planes: int, policy_name: str) -> None:
    is_fresh = all(item.kind is ItemKind.PROMPT and item.depth == 0 for item in batch.items)
    if not is_fresh or any(item.is_single_pass for item in batch.items):
        raise _fault(
            policy_name,
            "prompt items at depth 0, none of them scored after every loop or behind another item "
            "of its prompt, in a launch of several passes",
        )
    if batch.num_passes != num_planes:
        raise _fault(policy_name, f"1 pass or all {num_planes}", f"{batch.num_passes}")


def _fault(policy_name: str, expected: str, got: str = "other ones") -> InterfaceError:
    return InterfaceError(f"expected from policy {policy_name}: {expected}; got {got}")
