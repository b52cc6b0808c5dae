"""Compiled steps that all engines of a test process share, however a test makes them.

A step is settled by the sizes, the kind of backend and layers, and the types of the parameters, so
a command that runs in this process, a server and an `LLM` need not compile what another test has.
Nobody can tell but by the clock: an engine still counts each step that it takes as one compiled.
"""

from typing import Any

import pytest

from looped.programs.compile_target import THIS_MACHINE
from looped.programs.executables import Executables, Step


class SharedSteps:
    """What was compiled for this machine so far, in the place of `Executables`' own compiling."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}
        self._get = Executables.get
        self._writer = Executables.writer

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Lets every `Executables` look here first."""
        patch.setattr(Executables, "get", lambda own, step: self.get(own, step))
        patch.setattr(Executables, "writer", lambda own, name: self.writer(own, name))

    def get(self, own: Executables, step: Step) -> Any:
        """The executable of a step; counted where `own` has not had it yet."""
        return self._shared(own, step, own._compiled, self._get)

    def writer(self, own: Executables, name: str) -> Any:
        """The same for a writer of the request table."""
        return self._shared(own, name, own._writers, self._writer)

    def _shared(self, own: Executables, name: Any, known: dict[Any, Any], compiled: Any) -> Any:
        if own.target is not THIS_MACHINE or name in known:
            return compiled(own, name)
        key = (*_sizes(own), name)
        if key in self._compiled:
            known[name] = self._compiled[key]
            own.num_compilations += 1
        else:
            self._compiled[key] = compiled(own, name)
        return known[name]


def _sizes(own: Executables) -> tuple[Any, ...]:
    types = tuple((leaf.shape, str(leaf.dtype)) for leaf in own._leaf_types)
    return own.shape, own.backend, own.layers, types
