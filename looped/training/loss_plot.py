"""A run's losses as a picture."""

import json
import logging

from looped.errors import UsageError
from looped.plots.figures import axes_for, require_matplotlib

from .run_folder import RunFolder

logger = logging.getLogger(__name__)


def draw_losses(run: RunFolder) -> None:
    """Draws the loss, and each loop's where there are several; without matplotlib, says so."""
    try:
        require_matplotlib("the numbers are in metrics.jsonl")
    except UsageError as error:
        logger.warning("no loss plot: %s", error)
        return
    lines = run.metrics_file.read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    steps = [line["step"] for line in metrics]
    with axes_for(run.loss_plot, f"{run.path.name}: loss") as axes:
        axes.plot(steps, [line["loss"] for line in metrics], color="black", label="loss", lw=1)
        num_loops = len(metrics[0].get("loop_losses", ())) if metrics else 0
        for loop in range(num_loops):
            values = [line["loop_losses"][loop] for line in metrics]
            axes.plot(steps, values, label=f"cross-entropy after loop {loop + 1}", lw=1)
        axes.set_xlabel("step")
        axes.set_yscale("symlog", linthresh=0.01)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
