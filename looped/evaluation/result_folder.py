"""An evaluation on disk: a folder that appears complete or not at all.

result.json, result.md     the evaluation, and its page
answers.jsonl              GSM8K: a line a problem
*.png                      pictures
"""

import json
from pathlib import Path
from typing import Any

from looped.convert.staging import staged_folder
from looped.measure.results_folder import write_results
from looped.plots.evaluation import (
    draw_accuracy_by_depth,
    draw_exit_depths,
    draw_loops_by_difficulty,
)

from .demo import DemoEvaluation
from .demo_report import demo_page, steps_in_words
from .gsm8k import GradeEvaluation
from .gsm8k_report import gsm8k_page
from .loop_use import exits_in_words


def write_demo(folder: Path, evaluation: DemoEvaluation, *, has_plots: bool) -> None:
    """Writes a demo evaluation."""
    with staged_folder(folder, source=None, overwrite=False) as staged:
        write_results(staged, _values(evaluation), demo_page(evaluation))
        if has_plots:
            _draw_demo(staged, evaluation)


def write_gsm8k(folder: Path, evaluation: GradeEvaluation, *, has_plots: bool) -> None:
    """Writes GSM8K's answers and what they come to."""
    with staged_folder(folder, source=None, overwrite=False) as staged:
        write_results(staged, _values(evaluation), gsm8k_page(evaluation))
        lines = (json.dumps(answer.to_json()) + "\n" for answer in evaluation.answers)
        (staged / "answers.jsonl").write_text("".join(lines), encoding="utf-8")
        if has_plots:
            counts = {"all": evaluation.loops.counts}
            draw_exit_depths(staged / "exit-depths.png", counts, exits=evaluation.exits)


def _values(evaluation: DemoEvaluation | GradeEvaluation) -> dict[str, Any]:
    return evaluation.to_json() | {"is_complete": True}


def _draw_demo(folder: Path, evaluation: DemoEvaluation) -> None:
    depths, full = evaluation.depths, evaluation.depths[-1]
    accuracies = {"all": [summary.accuracy.share for summary in depths]}
    for steps in full.accuracy_by_difficulty:
        accuracies[steps_in_words(steps)] = [
            summary.accuracy_by_difficulty[steps].share for summary in depths
        ]
    draw_accuracy_by_depth(folder / "accuracy-by-depth.png", accuracies)
    if not evaluation.thresholds:
        return
    rules = {exits_in_words(summary.threshold): summary for summary in evaluation.thresholds}
    draw_loops_by_difficulty(
        folder / "loops-by-difficulty.png",
        {
            name: {steps: use.mean for steps, use in summary.loops_by_difficulty.items()}
            for name, summary in rules.items()
        },
    )
    exits, first = next(iter(rules.items()))
    groups = {steps_in_words(steps): use.counts for steps, use in first.loops_by_difficulty.items()}
    groups["all"] = first.loops.counts
    draw_exit_depths(folder / "exit-depths.png", groups, exits=exits)
