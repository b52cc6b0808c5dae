"""Evaluations: accuracy by depth, loops by difficulty, and where tokens left."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from .figures import axes_for, depth_colour


def draw_accuracy_by_depth(path: Path, accuracies: Mapping[str, Sequence[float]]) -> None:
    """A line a group of problems: the share answered rightly at P = 1, 2, …

    Args:
        path: the PNG to write.
        accuracies: shares in the order of P, by the group's name; the first is all of them.
    """
    with axes_for(path, "accuracy by depth") as axes:
        for index, (name, shares) in enumerate(accuracies.items()):
            style = {"color": "black", "linewidth": 2} if index == 0 else {"linewidth": 1}
            loops = range(1, len(shares) + 1)
            axes.plot(loops, [100 * share for share in shares], marker="o", label=name, **style)
            axes.set_xticks(loops)
        axes.set_ylim(0, 100)
        axes.set_xlabel("loops that the model is loaded with")
        axes.set_ylabel("right, %")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()


def draw_loops_by_difficulty(path: Path, means: Mapping[str, Mapping[int, float | None]]) -> None:
    """A line an exit rule: loops of a decode token on average, over steps of the problem.

    Args:
        path: the PNG to write.
        means: mean loops by number of steps, by the rule's name; None where there is no token.
    """
    with axes_for(path, "loops by difficulty") as axes:
        for name, by_steps in means.items():
            known = {steps: mean for steps, mean in by_steps.items() if mean is not None}
            axes.plot(list(known), list(known.values()), marker="o", label=name)
            axes.set_xticks(list(by_steps))
        axes.set_xlabel("steps of the problem")
        axes.set_ylabel("loops of a decode token")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()


def draw_exit_depths(path: Path, groups: Mapping[str, Sequence[int]], *, exits: str) -> None:
    """A bar a group, split by the loop after which tokens left.

    Args:
        path: the PNG to write.
        groups: tokens that left after loop 1, 2, …, by the group's name.
        exits: when tokens could leave, in words.
    """
    with axes_for(path, f"exit depths of decode tokens, {exits}") as axes:
        names = list(groups)
        num_loops = max(map(len, groups.values()))
        bottoms = [0.0] * len(names)
        for depth in range(num_loops):
            shares = [100 * counts[depth] / max(sum(counts), 1) for counts in groups.values()]
            colour = depth_colour(False, depth, num_loops)
            axes.bar(names, shares, bottom=bottoms, color=colour, label=f"loop {depth + 1}")
            bottoms = [bottom + share for bottom, share in zip(bottoms, shares, strict=True)]
        axes.set_ylabel("decode tokens, %")
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
