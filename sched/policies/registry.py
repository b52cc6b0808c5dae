"""Policies by name: the shipped ones, then those that installed packages bring.

A package brings one by an entry point of the group `looped.policies`, whose object is a `Policy` or
a factory: a function that returns one from keyword options. It gets them as the strings that a user
typed, and annotations change nothing: it converts and checks them, and raises ConfigError for what
will not do. In the package's pyproject.toml:

    [project.entry-points."looped.policies"]
    newest-first = "my_package.newest:NEWEST_FIRST"
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .atomic import ATOMIC
from .deepest_first import DEEPEST_FIRST
from .mixed import MIXED
from .no_refill import NO_REFILL
from .policy import Policy
from .separate import SEPARATE
from .shallowest_first import SHALLOWEST_FIRST
from .shortest_blind import SHORTEST_BLIND
from .shortest_lookahead import SHORTEST_LOOKAHEAD
from .shortest_oracle import SHORTEST_ORACLE
from .slack import slack_from_options
from .wavefront import wavefront_from_options

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "looped.policies"
"""Entry points of this group are policies, or factories of one."""

PolicyFactory = Callable[..., Policy]
PolicyOptions = tuple[tuple[str, str], ...]
"""Keys and values of a factory's options, as a user typed them."""

POLICIES = {
    policy.name: policy
    for policy in (
        MIXED,
        SEPARATE,
        ATOMIC,
        DEEPEST_FIRST,
        SHALLOWEST_FIRST,
        SHORTEST_ORACLE,
        SHORTEST_LOOKAHEAD,
        SHORTEST_BLIND,
        NO_REFILL,
    )
}
"""The shipped policies that take no options. Not to be written to."""
FACTORIES: dict[str, PolicyFactory] = {
    "wavefront": wavefront_from_options,
    "slack": slack_from_options,
}
"""The shipped policies that are made from options. Not to be written to."""


def policy_names() -> tuple[str, ...]:
    """Every name that `policy_named` knows, the shipped ones first."""
    shipped = (*POLICIES, *FACTORIES)
    return (*shipped, *sorted(name for name in installed() if name not in shipped))


def policy_named(name: str, options: PolicyOptions = ()) -> Policy:
    """Return a policy by its name.

    Args:
        name: of a shipped policy, or of one that an installed package brings.
        options: for its factory; a policy that is not made by one takes none.

    Raises:
        ConfigError: no policy has that name or several have it, its package cannot be imported, or
            it does not take these options.
    """
    source = _source_of(name)
    policy = source if isinstance(source, Policy) else _made(name, source, options)
    if isinstance(source, Policy) and options:
        raise ConfigError(f"policy {name} takes no options, got {_typed(options)}; leave them out")
    if policy.name != name:
        raise ConfigError(
            f"policy {name}: expected a Policy of that name from its entry point, got one that "
            f"calls itself {policy.name!r}"
        )
    return policy


def resolve_policy(policy: str | Policy, options: PolicyOptions = ()) -> Policy:
    """Return the policy that a configuration means: by name and options, or the object itself.

    Raises:
        ConfigError: see `policy_named`; or options beside a Policy, which is made already.
    """
    if isinstance(policy, str):
        return policy_named(policy, options)
    if options:
        raise ConfigError(
            f"policy_options are for a policy that is given by name; {policy.name} is a Policy, "
            f"got {_typed(options)}"
        )
    return policy


@cache
def installed() -> dict[str, list[EntryPoint]]:
    """Entry points by name. Searched for once, since it takes milliseconds."""
    from importlib.metadata import entry_points  # slow to import, and needed for names alone

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        found.setdefault(point.name, []).append(point)
    return found


def _source_of(name: str) -> Policy | PolicyFactory:
    points = installed().get(name, [])
    shipped = POLICIES.get(name) or FACTORIES.get(name)
    if shipped is not None and points:
        raise ConfigError(
            f"policy {name} is shipped with looped, and an entry point of {_packages(points)} has "
            "the same name; rename that one, or uninstall it"
        )
    if shipped is not None:
        return shipped
    if not points:
        raise ConfigError(f"policy must be one of {', '.join(policy_names())}, got {name!r}")
    if len(points) > 1:
        raise ConfigError(
            f"policy {name} is an entry point of {_packages(points)}; uninstall all but one"
        )
    return _loaded(points[0])


def _loaded(point: EntryPoint) -> Policy | PolicyFactory:
    place = f"policy {point.name}, {point.value} of {_packages([point])}"
    try:
        source = point.load()
    except Exception as error:  # whatever a package does when it is imported
        raise ConfigError(f"{place}, cannot be imported: {error!r}") from error
    if not callable(source) and not isinstance(source, Policy):
        raise ConfigError(f"{place}: expected a Policy or a factory of one, got {source!r}")
    return source


def _made(name: str, factory: PolicyFactory, options: PolicyOptions) -> Policy:
    given = dict(options)
    if len(given) < len(options):
        raise ConfigError(f"policy {name}: each option may be given once, got {_typed(options)}")
    _check_options(name, factory, given)
    try:
        policy = factory(**given)
    except ConfigError as error:
        raise ConfigError(f"policy {name}: {error}") from None
    except ValueError as error:  # a number that is none
        raise ConfigError(f"policy {name}: {error}{_told(options)}") from error
    except TypeError as error:  # text where a number was expected
        raise ConfigError(
            f"policy {name}: its factory failed with TypeError: {error}{_told(options)}; a factory "
            "gets the text that was typed, and converts it"
        ) from error
    if not isinstance(policy, Policy):
        raise ConfigError(f"policy {name}: expected a Policy from its factory, got {policy!r}")
    return policy


def _check_options(name: str, factory: PolicyFactory, given: Iterable[str]) -> None:
    parameters = inspect.signature(factory).parameters.values()
    named = [one for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD]
    known = ", ".join(one.name for one in named)
    takes_any = len(named) < len(parameters)
    for key in given:
        if not takes_any and key not in [one.name for one in named]:
            raise ConfigError(f"policy {name}: options are {known or 'none'}, got {key!r}")
    missing = [
        f"{one.name}=VALUE"
        for one in named
        if one.default is inspect.Parameter.empty and one.name not in given
    ]
    if missing:
        added = " ".join(f"--policy-option {word}" for word in missing)
        raise ConfigError(
            f"policy {name} needs {', '.join(missing)} (its options are {known}); add {added}, in "
            f"`looped simulate` --policy {name}:{','.join(missing)}"
        )


def _typed(options: PolicyOptions) -> str:
    return ", ".join(f"{key}={value}" for key, value in options)


def _told(options: PolicyOptions) -> str:
    return f" (options {_typed(options)})" if options else ""


def _packages(points: Iterable[EntryPoint]) -> str:
    return ", ".join(
        f"package {point.dist.name}" if point.dist else "a package" for point in points
    )
