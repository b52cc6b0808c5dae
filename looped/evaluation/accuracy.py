"""Right answers of how many."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Problems that were answered rightly."""

    num_right: int
    num_problems: int

    @classmethod
    def of(cls, verdicts: Iterable[bool]) -> "Accuracy":
        """One verdict a problem."""
        listed = list(verdicts)
        return cls(num_right=sum(listed), num_problems=len(listed))

    @property
    def share(self) -> float:
        """num_right / num_problems, 0 of none."""
        return self.num_right / self.num_problems if self.num_problems else 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "num_right": self.num_right,
            "num_problems": self.num_problems,
            "share": self.share,
        }
