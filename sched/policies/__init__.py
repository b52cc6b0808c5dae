"""Scheduling policies by name: what runs next, as two pure functions over an immutable view.

`choose(view)` names a stage and says whether to admit waiting requests first; `take(view, stage)`
picks the items. One file each; `POLICIES` lists the shipped ones, and a `Policy` built elsewhere
is handed to the Scheduler as an object.
"""

from ..errors import ConfigError
from .atomic import ATOMIC
from .mixed import MIXED
from .packing import pack_whole
from .policy import Policy
from .separate import SEPARATE
from .wavefront import wavefront_from_options, wavefront_policy

POLICIES = {policy.name: policy for policy in (MIXED, SEPARATE, ATOMIC)}
"""The shipped policies. Not to be written to."""


def policy_named(name: str) -> Policy:
    """Return a shipped policy.

    Raises:
        ConfigError: no policy has that name.
    """
    if name not in POLICIES:
        raise ConfigError(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    return POLICIES[name]


__all__ = [
    "POLICIES",
    "Policy",
    "pack_whole",
    "policy_named",
    "wavefront_from_options",
    "wavefront_policy",
]
