"""A broken rule of validity, of any benchmark: how it is told, and what it does to a command."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from looped.errors import LoopedError


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that was broken."""

    rule: str
    run: str
    """Which run, or `all` for a rule about the set of them."""
    message: str
    """Expected, and got."""

    def __str__(self) -> str:
        return f"{self.rule}, {self.run}: {self.message}"


def violation_lines(violations: Sequence[Violation]) -> Iterator[str]:
    """Broken rules in a page, if there are any, and an empty line."""
    if violations:
        yield f"**INVALID**: {len(violations)} broken rules."
        yield ""
        yield from (f"* {violation}" for violation in violations)
        yield ""


def check_valid(violations: Sequence[Violation]) -> None:
    """LoopedError if a rule is broken: the last thing that a benchmark's command does."""
    if violations:
        raise LoopedError(
            f"the benchmark is invalid, {len(violations)} broken rules: {violations[0]}"
        )
