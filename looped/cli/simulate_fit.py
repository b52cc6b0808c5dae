"""`looped simulate fit` and `replay`: what a launch log of an engine says to a simulator."""

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from looped.errors import LoopedError, UsageError

from .results import AsJson, command_line, print_result
from .simulate import POLICY_FORM

logger = logging.getLogger(__name__)

LogFile = Annotated[Path, typer.Argument(metavar="LOG", help="Launch log of an engine.")]


def fit(
    log: LogFile,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Cost table to write; ends in .json.")],
    name: Annotated[
        str | None, typer.Option(help="What the table is called.  [the file's name]")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="How the log was made, for whoever reads the table.  [this command]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit a cost table to an engine's launch log, and say how well it meets what it has not seen.

    A log without --launch-log-waits says what launches cost a server, which overlap the host's
    work; with it, every launch has an end that the host sees, but all are slower where host and
    device share their cores. A fifth of the launches is held out, for R2 and the mean error.
    """
    from looped.record.launch_log import read_launch_log
    from looped.simulation.fitting.fit import LEAST_R_SQUARED, fit_costs
    from looped.simulation.report import fit_page

    if out.suffix != ".json":
        raise UsageError(f"{out} must end in .json, the form of a cost table")
    if out.exists():
        raise UsageError(f"{out} exists; choose another name for the cost table")
    if not out.parent.is_dir():
        raise UsageError(f"{out} cannot be written: {out.parent} is not a folder")
    fitted = fit_costs(read_launch_log(log), name=name or out.stem, source=source or command_line())
    if fitted.r_squared < LEAST_R_SQUARED:
        logger.warning(
            "held-out R2 is %.2f, below %g: the table hardly predicts its own log; log a longer "
            "run of the loads that matter, on a machine that does nothing else",
            fitted.r_squared,
            LEAST_R_SQUARED,
        )
    staged = out.with_name(f".{out.name}.partial")
    staged.write_text(json.dumps(fitted.costs.to_json(), indent=2) + "\n", encoding="utf-8")
    staged.replace(out)
    values = {"table": str(out), **fitted.to_json(), "costs": fitted.costs.to_json()}
    print_result(values, fit_page(fitted, out), as_json=as_json)


def replay_log(
    log: LogFile,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help=f"Instead of the log's policy: {POLICY_FORM}. Needed where its engine got the "
            "policy as an object, of which a log has the name alone.  [the log's]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a launch log through the scheduler: does it come to the same launches?

    Exits with 1 at the first launch that differs.
    """
    from looped.record.launch_log import read_launch_log
    from looped.sched import ConfigError, policy_named
    from looped.simulation.options import one_policy, parse_policy
    from looped.simulation.replay import replay

    policy = one_policy(policies, "replay the log once for each") if policies else None
    chosen = None
    if policy is not None:
        named = parse_policy(policy)
        try:
            chosen = policy_named(named["policy"], named["policy_options"])
        except ConfigError as error:
            raise UsageError(str(error)) from None
    results = replay(read_launch_log(log).events, policy=chosen)
    if not results:
        raise LoopedError(f"{log} holds no engine")
    values = {
        "engines": [
            {
                "policy": result.engine.policy,
                "replayed_under": policy or result.engine.policy,
                "num_launches": result.num_launches,
                "difference": result.difference,
                "fault": None if result.fault is None else result.fault.message,
            }
            for result in results
        ]
    }
    lines = []
    for result in results:
        under = "" if policy is None else f", replayed under {policy}"
        told = f"engine {result.engine.engine_index} ({result.engine.policy}{under}): "
        told += f"{result.num_launches} launches the same"
        if result.fault is not None:
            told += f", then a fault: {result.fault.message}"
        lines.append(told if result.difference is None else f"{told}, then {result.difference}")
    print_result(values, "\n".join(lines) + "\n", as_json=as_json)
    if any(result.difference is not None for result in results):
        raise LoopedError("the replay differs from the log")
