"""From recorded gate probabilities to the depths that a threshold would have led to.

An approximation: the gates were recorded at full depth, where later tokens see more of the earlier
ones than under last-exited KV, and in float16. Depths of a run at that threshold are an exit trace.
"""

from math import isnan
from typing import Any, SupportsFloat

from looped.errors import UsageError
from looped.sched import ExitDecision, ExitMode, ExitRule, decide, is_deciding


def depths_of_request(probabilities: Any, rule: ExitRule, num_planes: int) -> tuple[int, ...]:
    """Loops of each token of one request, decided by the rules that the scheduler uses.

    Args:
        probabilities: a row for each token, a column for each loop: the chance to leave then, for a
            token that has not left before. A row of NaN is a first token's.
        rule: of mode `ouro` or `ouro_delayed`.
        num_planes: P.

    Raises:
        UsageError: a mode whose signal is not the gate's.
    """
    if rule.mode not in (ExitMode.OURO, ExitMode.OURO_DELAYED):
        raise UsageError(f"gates say nothing of exit mode {rule.mode}: expected ouro, ouro_delayed")
    return tuple(_depth(row, rule, num_planes) for row in probabilities)


def _depth(row: Any, rule: ExitRule, num_planes: int) -> int:
    hazards: list[SupportsFloat] = list(row)
    if isnan(float(hazards[0])):
        return num_planes
    survival, is_pending = 1.0, False
    for loop, hazard in enumerate(hazards, start=1):
        survival *= 1.0 - float(hazard)
        signal = 1.0 - survival if is_deciding(rule, loop, is_pending) else None
        decision = decide(rule, loop, signal, is_pending, output_index=0)
        if decision is ExitDecision.EXIT:
            return loop
        is_pending = decision is ExitDecision.EXIT_NEXT
    raise AssertionError("a rule ends at max_loops at the latest")
