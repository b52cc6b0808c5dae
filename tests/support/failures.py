"""Failures inside a running engine, wherever a test wants one."""

from collections.abc import Callable
from typing import Any

import pytest

from looped.engine.runner import Runner


class InjectedError(Exception):
    """Raised by tests inside the engine."""


def fail_once(
    monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[[Any], bool]
) -> dict[str, bool]:
    """Makes a Runner method raise the first time `when(argument)` holds."""
    original, state = getattr(Runner, method), {"has_failed": False}

    def maybe_fail(runner: Runner, argument: Any) -> Any:
        if not state["has_failed"] and when(argument):
            state["has_failed"] = True
            raise InjectedError(f"injected into {method}")
        return original(runner, argument)

    monkeypatch.setattr(Runner, method, maybe_fail)
    return state
