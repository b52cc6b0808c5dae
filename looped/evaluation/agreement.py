"""Whether policies give the same answers: token ids and exit depths of every problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from looped.engine.outputs import Completion
from looped.measure.divergence import Divergence

Measure = Callable[[Completion, Completion], Divergence]
"""Where the second completion parts from the first."""


@dataclass(frozen=True, kw_only=True)
class PolicyDivergence:
    """The first problem that a policy answers differently."""

    policy: str
    problem_index: int
    divergence: Divergence

    def __str__(self) -> str:
        """In one line."""
        found = self.divergence
        words = [f"{self.policy}, problem {self.problem_index}"]
        if found.token_index is not None:
            words.append(f"token {found.token_index}")
        if found.margin is not None:
            words.append(f"where the best two logits are {found.margin:.3g} apart")
        if found.exit_index is not None:
            words.append(f"exit of token {found.exit_index}")
        return ", ".join(words)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Answers of several policies to the same problems, under the same exits."""

    exits: str
    """When tokens could leave, in words."""
    policies: tuple[str, ...]
    """The first is the one that the others are compared with."""
    num_problems: int
    num_identical: int
    """Problems whose token ids and exit depths are equal under all policies."""
    divergences: tuple[PolicyDivergence, ...]
    """The first of each policy that differs anywhere."""

    @property
    def is_full(self) -> bool:
        return self.num_identical == self.num_problems

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_policies(
    exits: str, runs: Mapping[str, Sequence[Completion]], measure: Measure
) -> Agreement:
    """Compares the completions of each policy with those of the first one.

    Args:
        exits: when tokens could leave, in words.
        runs: completions in the order of the problems, by policy.
        measure: looks closer at the first pair that differs.
    """
    (_, expected), *others = runs.items()
    is_identical = [True] * len(expected)
    divergences = []
    for policy, completions in others:
        pairs = list(zip(expected, completions, strict=True))
        differing = [index for index, pair in enumerate(pairs) if not _are_identical(*pair)]
        for index in differing:
            is_identical[index] = False
        if differing:
            first = differing[0]
            divergences.append(
                PolicyDivergence(
                    policy=policy, problem_index=first, divergence=measure(*pairs[first])
                )
            )
    return Agreement(
        exits=exits,
        policies=tuple(runs),
        num_problems=len(expected),
        num_identical=sum(is_identical),
        divergences=tuple(divergences),
    )


def _are_identical(one: Completion, other: Completion) -> bool:
    return (one.token_ids, one.exit_depths) == (other.token_ids, other.exit_depths)
