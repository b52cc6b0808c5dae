"""Compiled steps that all engines of a test process share, however a test makes them.

A step is settled by the sizes, the kind of backend and layers, and the types of the parameters, so
a command that runs in this process, a server and an `LLM` need not compile what another test has.
Nobody can tell but by the clock: an engine still counts each step that it takes as one compiled.
"""

from typing import Any

import pytest

from looped.programs.compile_target import THIS_MACHINE
from looped.programs.executables import Executables, Rung

SLOT_WRITER = "slot writer"


class SharedSteps:
    """What was compiled for this machine so far, in the place of `Executables`' own compiling."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}
        self._get = Executables.get
        self._slot_writer = Executables.slot_writer.fget

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Lets every `Executables` look here first."""
        patch.setattr(Executables, "get", lambda own, rung: self.get(own, rung))
        patch.setattr(Executables, "slot_writer", property(self.slot_writer))

    def get(self, own: Executables, rung: Rung) -> Any:
        """The executable of a rung; counted where `own` has not had it yet."""
        if own.target is not THIS_MACHINE or rung in own._compiled:
            return self._get(own, rung)
        key = (*_sizes(own), rung)
        if key in self._compiled:
            own._compiled[rung] = self._compiled[key]
            own.num_compilations += 1
        else:
            self._compiled[key] = self._get(own, rung)
        return own._compiled[rung]

    def slot_writer(self, own: Executables) -> Any:
        """The same for the step that writes one request's logit edits."""
        key = (*_sizes(own), SLOT_WRITER)
        if own.target is THIS_MACHINE and own._slot_writer is None and key in self._compiled:
            own._slot_writer = self._compiled[key]
            own.num_compilations += 1
        compiled = self._slot_writer(own)
        if own.target is THIS_MACHINE:
            self._compiled.setdefault(key, compiled)
        return compiled


def _sizes(own: Executables) -> tuple[Any, ...]:
    types = tuple((leaf.shape, str(leaf.dtype)) for leaf in own._leaf_types)
    return own.shape, own.backend, own.layers, types
