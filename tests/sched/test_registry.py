"""Policies by name: shipped, made from options, and brought by packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from known_policies import known_policies
from plug_ins import InstallPlugIn, install_plug_in
from scheduler_rig import rig
from whole_run import run_many

from looped.sched import (
    POLICIES,
    ConfigError,
    Policy,
    SchedulerConfig,
    policy_named,
    policy_names,
    resolve_policy,
)
from looped.sched.policies import FACTORIES, registry

SIZES = {"num_planes": 4, "vocab_size": 50, "num_blocks": 64, "max_model_len": 64}
NEWEST = """
    from dataclasses import replace

    from looped.sched import Policy, Selection, Stage, pack_whole, policy_named

    def take(view, stage):
        decodes = view.decode_items[::-1][: view.max_decode_rows]
        prompts = pack_whole(view.prompt_items[::-1], view.max_num_batched_tokens - len(decodes))
        return Selection(decodes + prompts)

    NEWEST = replace(
        policy_named("mixed"), name="newest-first", take=take, uses_prompt_shortcut=False
    )

    def sized(*, tokens, unused="0"):
        if not tokens.isdecimal():
            raise ValueError(f"tokens must be a number, got {tokens!r}")
        return replace(NEWEST, name="sized", item_size=lambda view, request: int(tokens))

    def shared(share: float = 1.0, least="0"):
        int(least)
        if not 0 < share <= 1:
            raise ValueError("no share")
        return replace(NEWEST, name="shared")

    def any_options(**options):
        return replace(NEWEST, name="any-options")

    NUMBER = 3
    MISNAMED = replace(NEWEST, name="other")

    def makes_a_number():
        return 3
"""


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[InstallPlugIn]:
    yield partial(install_plug_in, monkeypatch, tmp_path)
    monkeypatch.undo()
    registry.installed.cache_clear()


def test_every_shipped_policy_is_found_by_its_name() -> None:
    assert policy_names()[:3] == ("mixed", "separate", "atomic")
    known = known_policies()
    assert set(known) == {*POLICIES, *FACTORIES} == set(policy_names())
    assert all(policy.name == name for name, policy in known.items())
    assert policy_named("mixed") is POLICIES["mixed"]


def test_a_configuration_keeps_the_policy_that_it_names() -> None:
    named = SchedulerConfig(**SIZES, policy="separate")
    assert named.chosen_policy is POLICIES["separate"]
    given = SchedulerConfig(**SIZES, policy=POLICIES["atomic"])
    assert given.chosen_policy is POLICIES["atomic"]
    scheduler, _ = rig(policy=POLICIES["atomic"])
    assert scheduler.policy is POLICIES["atomic"]
    options = (("window", "2"),)
    made = SchedulerConfig(**SIZES, policy="wavefront", policy_options=options)
    assert made.max_window(made.chosen_policy) == 2
    assert made == SchedulerConfig(**SIZES, policy="wavefront", policy_options=options)


def test_a_package_brings_policies_and_factories(install: InstallPlugIn) -> None:
    install("newest_package", NEWEST, newest_first="NEWEST", sized="sized")
    assert policy_names()[-2:] == ("newest-first", "sized")
    scheduler, _ = rig(policy="newest-first", max_num_batched_tokens=24)
    assert scheduler.policy.name == "newest-first"
    made = SchedulerConfig(**SIZES, policy="sized", policy_options=(("tokens", "3"),))
    assert made.chosen_policy.item_size is not None


def test_a_policy_of_a_package_passes_the_tests_of_the_shipped_ones(
    install: InstallPlugIn,
) -> None:
    install("newest_package", NEWEST, newest_first="NEWEST")
    run_many(policy_named("newest-first"), max_examples=60)


BAD: dict[str, tuple[Callable[[], Policy], str]] = {
    "an unknown name": (
        lambda: policy_named("fastest"),
        "must be one of mixed, separate, .*, slack, any-options, .*newest-first, .*got 'fastest'",
    ),
    "options for a policy that takes none": (
        lambda: policy_named("mixed", (("speed", "9"),)),
        "policy mixed takes no options, got speed=9",
    ),
    "options beside a Policy": (
        lambda: resolve_policy(POLICIES["mixed"], (("speed", "9"),)),
        "policy_options are for a policy that is given by name; mixed is a Policy",
    ),
    "an unknown option": (
        lambda: policy_named("sized", (("tokens", "9"), ("speed", "9"))),
        "policy sized: options are tokens, unused, got 'speed'",
    ),
    "an option that is missing": (
        lambda: policy_named("sized"),
        r"policy sized needs tokens=VALUE \(its options are tokens, unused\); add --policy-option "
        "tokens=VALUE, in `looped simulate` --policy sized:tokens=VALUE$",
    ),
    "an option twice": (
        lambda: policy_named("sized", (("tokens", "9"), ("tokens", "8"))),
        "policy sized: each option may be given once, got tokens=9, tokens=8",
    ),
    "a wrong value": (
        lambda: policy_named("sized", (("tokens", "many"),)),
        "policy sized: tokens must be a number, got 'many'",
    ),
    "a wrong window": (
        lambda: policy_named("wavefront", (("window", "0"),)),
        "policy wavefront: window must be >= 1, got 0",
    ),
    "a slack without target": (
        lambda: policy_named("slack", (("costs", "demo"),)),
        r"policy slack needs target=VALUE \(its options are target, costs\)",
    ),
    "a slack without anything": (
        lambda: policy_named("slack"),
        "add --policy-option target=VALUE --policy-option costs=VALUE, in `looped simulate` "
        "--policy slack:target=VALUE,costs=VALUE$",
    ),
    "a factory that takes text for a number": (
        lambda: policy_named("shared", (("share", "0.5"),)),
        r"policy shared: its factory failed with TypeError: .* \(options share=0\.5\); a factory "
        "gets the text that was typed",
    ),
    "a number that is none": (
        lambda: policy_named("shared", (("share", "half"), ("least", "few"))),
        r"policy shared: invalid literal .* \(options share=half, least=few\)$",
    ),
    "a target that is no number": (
        lambda: policy_named("slack", (("target", "soon"), ("costs", "demo"))),
        "policy slack: target must be a number of seconds, got 'soon'",
    ),
    "another object": (lambda: policy_named("number"), "newest_package:NUMBER .*got 3"),
    "a factory of another object": (
        lambda: policy_named("number-maker"),
        "policy number-maker: expected a Policy from its factory, got 3",
    ),
    "another name": (
        lambda: policy_named("misnamed"),
        "policy misnamed: expected a Policy of that name .* calls itself 'other'",
    ),
    "a name that is shipped": (
        lambda: policy_named("atomic"),
        "policy atomic is shipped with looped, and an entry point of package newest_package has",
    ),
    "a name of two packages": (
        lambda: policy_named("twice"),
        "policy twice is an entry point of package .*, package .*; uninstall all but one",
    ),
    "a package that cannot be imported": (
        lambda: policy_named("broken"),
        r"policy broken, broken_package:P of package broken_package, cannot be imported: "
        r"ModuleNotFoundError",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_had_is_one_clear_error(case: str, install: InstallPlugIn) -> None:
    points = {
        "newest_first": "NEWEST",
        "sized": "sized",
        "any_options": "any_options",
        "shared": "shared",
        "number": "NUMBER",
        "number_maker": "makes_a_number",
        "misnamed": "MISNAMED",
        "atomic": "NEWEST",
        "twice": "NEWEST",
    }
    install("newest_package", NEWEST, **points)
    install("other_package", "P = None", twice="P")
    install("broken_package", "import no_such_module", broken="P")
    call, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        call()
    any_options = policy_named("any-options", (("speed", "9"),))
    assert any_options.name == "any-options", "a factory may take whatever comes"
