"""Every policy that looped knows, and one that means harm, for tests that run over all of them."""

from collections.abc import Callable

from looped.sched import (
    LaunchWork,
    Policy,
    Selection,
    Stage,
    View,
    policy_named,
    policy_names,
    slack_policy,
    wavefront_policy,
)


class RowCosts:
    """A cost model in which a row takes a quarter of a second, padding included."""

    def seconds(self, work: LaunchWork) -> float:
        """Return the seconds of a launch."""
        return work.bucket * max(1, work.num_passes) / 4


MADE: dict[str, Callable[[], Policy]] = {"slack": lambda: slack_policy(RowCosts(), target=8.0)}
"""Policies that are not made without options. A launch takes a second in `Run`."""


def known_policies() -> dict[str, Policy]:
    """Return the policies of the registry by name; a new one is in it without further ado."""
    return {name: MADE.get(name, lambda n=name: policy_named(n))() for name in policy_names()}


def take_newest(view: View, stage: Stage) -> Selection:
    """Take one item of each kind, always that of the youngest request."""
    return Selection(view.decode_items[-1:] + view.prompt_items[-1:])


NEWEST = Policy(
    name="newest",
    choose=policy_named("mixed").choose,
    take=take_newest,
    is_mixing=True,
)
"""Lets everybody starve but the youngest."""


def policies_under_test() -> dict[str, Policy]:
    """Return the known ones, a narrow window, and the one that means harm."""
    return {**known_policies(), "wavefront of 2": wavefront_policy(2), NEWEST.name: NEWEST}
