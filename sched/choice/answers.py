"""A policy's answers to its two questions, checked for their form: it may come from anywhere.

Which items it may take together is checked where the batch is built (`batching.py`).
"""

from ..errors import InterfaceError
from ..policies import Policy
from ..request import Stage
from ..view import Choice, Selection, View

LAUNCH_STAGES = (Stage.RECURRENT, Stage.PREFILL)
"""Stages that can be launched from, in the order tried when a policy insists on a masked one."""


def chosen(policy: Policy, view: View) -> Choice:
    """Return where the policy takes from, and whether it admits first.

    Raises:
        InterfaceError: it answers with something else.
    """
    answer = policy.choose(view)
    if isinstance(answer, tuple) and len(answer) == 2:
        stage, admits = answer
        if isinstance(stage, Stage) and stage in LAUNCH_STAGES and type(admits) is bool:
            return stage, admits
    stages = ", ".join(f"Stage.{stage.name}" for stage in LAUNCH_STAGES)
    raise InterfaceError(
        f"expected from choose of policy {policy.name}: (one of {stages}; whether to admit, a "
        f"bool); got {answer!r}"
    )


def taken(policy: Policy, view: View, stage: Stage) -> Selection:
    """Return what the policy takes from a stage.

    Raises:
        InterfaceError: it answers with something that is no Selection of a tuple and a number.
    """
    answer = policy.take(view, stage)
    if not isinstance(answer, Selection):
        raise InterfaceError(
            f"expected from take of policy {policy.name}: a Selection, empty for nothing; "
            f"got {answer!r}"
        )
    if not isinstance(answer.candidates, tuple):
        raise InterfaceError(
            f"expected from take of policy {policy.name}: its candidates in a tuple; "
            f"got a {type(answer.candidates).__name__}"
        )
    if type(answer.num_passes) is not int:
        raise InterfaceError(
            f"expected from take of policy {policy.name}: a whole number of passes; "
            f"got {answer.num_passes!r}"
        )
    return answer
