"""What a row can be when the launches that are out have run: worked out once, then looked up.

The outcomes of a pass (`exits.possible_states`) depend on the exit rule and on where the row
stands, not on which token it is. So they form a small graph for each kind of rule, whose nodes are
shared by all requests: in a launch a row goes from one node to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from .exits import ExitMode, ExitRule, RowState, last_loop, leaves_after, possible_states

FIRST = 1
"""Stands for the index of the earliest token that a row can be at; not 0, which is the prompt's."""


@dataclass(eq=False, slots=True)
class Outlook:
    """A node: what a row can be, and what follows from that."""

    states: tuple[RowState, ...]
    """One if it is certain. Output indices count from FIRST."""
    depth: int | None
    """Depth that it runs next; None if it is open."""
    is_certain_token: bool
    """Whether it is certain which token it is at."""
    is_exit_pending: bool | None
    """Whether it leaves after its next pass, as was settled before; None if it is open."""
    furthest: int
    """Tokens that it can be beyond the earliest."""
    may_leave: bool
    """Whether it can leave in its next pass."""
    is_decided: bool
    """Whether a signal in its next pass decides when it leaves."""
    rule: ExitRule
    num_planes: int
    _next: tuple[Outlook, int] | None = field(default=None, repr=False)
    _stayed: dict[bool, Outlook | None] = field(default_factory=dict, repr=False)

    @property
    def next(self) -> tuple[Outlook, int]:
        """The node after one more pass, and how many tokens the earliest has moved on."""
        if self._next is None:
            after = possible_states(self.states, self.rule, self.num_planes)
            self._next = _node(after, self.rule, self.num_planes)
        return self._next

    def stayed(self, *, is_exit_pending: bool) -> Outlook | None:
        """The node of a row that is known not to have left in one more pass.

        Args:
            is_exit_pending: whether it leaves after the pass that follows.

        Returns:
            None if its rule does not allow that.
        """
        if is_exit_pending not in self._stayed:
            after = possible_states(self.states, self.rule, self.num_planes)
            states = tuple(
                state
                for state in after
                if state.output_index == FIRST and state.is_exit_pending is is_exit_pending
            )
            node = _node(states, self.rule, self.num_planes)[0] if states else None
            self._stayed[is_exit_pending] = node
        return self._stayed[is_exit_pending]


def outlook_at(rule: ExitRule, output_index: int, num_planes: int) -> Outlook:
    """Return the node of a row that begins with an output token; of the first one, which the
    prompt's rows lead to, only the last loop is left."""
    if output_index == 0:
        return _begin(ExitMode.OURO, True, num_planes, num_planes, num_planes, num_planes - 1)
    last = last_loop(rule, output_index)
    is_fixed = rule.threshold >= 1.0
    mode = ExitMode.OURO if is_fixed else rule.mode
    return _begin(mode, is_fixed, last if is_fixed else rule.min_loops, last, num_planes, 0)


@cache
def _begin(
    mode: ExitMode,
    is_fixed: bool,
    min_loops: int,
    max_loops: int,
    num_planes: int,
    loops_done: int,
) -> Outlook:
    """A node for all rules that leave the same open: thresholds below 1 do not differ in that."""
    rule = ExitRule(mode=mode, threshold=float(is_fixed), min_loops=min_loops, max_loops=max_loops)
    return _node((RowState(FIRST, loops_done, False),), rule, num_planes)[0]


def _node(states: tuple[RowState, ...], rule: ExitRule, num_planes: int) -> tuple[Outlook, int]:
    moved = min(state.output_index for state in states) - FIRST
    earliest = tuple(state._replace(output_index=state.output_index - moved) for state in states)
    return _shared_node(earliest, rule, num_planes), moved


@cache
def _shared_node(states: tuple[RowState, ...], rule: ExitRule, num_planes: int) -> Outlook:
    depths = {state.loops_done for state in states}
    pendings = {state.is_exit_pending for state in states}
    indices = {state.output_index for state in states}
    return Outlook(
        states=states,
        depth=depths.pop() if len(depths) == 1 else None,
        is_certain_token=len(indices) == 1,
        is_exit_pending=pendings.pop() if len(pendings) == 1 else None,
        furthest=max(indices) - FIRST,
        may_leave=any(leaves_after(state, rule, num_planes) is not False for state in states),
        is_decided=len(possible_states(states, rule, num_planes)) > len(states),
        rule=rule,
        num_planes=num_planes,
    )
