"""The `looped` command. Each command parses its arguments and calls a library function.

Modules here import nothing heavy at the top, so that `looped --help` answers at once: JAX, Flax
and the model are imported inside the commands.
"""

import logging
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from looped.errors import LoopedError
from looped.process.logs import configure_logging
from looped.sched import InterfaceError

from .aot import aot
from .bench import bench
from .bench_replay import replay
from .bench_serve import serve_load
from .bench_throughput import throughput
from .checkpoints import convert, export, inspect
from .eval import evaluation
from .generate import generate
from .interrupts import ended_by_second_interrupt
from .plot import plot
from .score import score
from .serve import serve
from .simulate import simulate
from .simulate_compare import compare
from .simulate_fit import fit, replay_log
from .simulate_sweep import sweep
from .train import train

app = typer.Typer(
    name="looped",
    help="Inference for looped language models: the same layers, several times per token.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,  # rich's tables cut off option names in 80 columns
)
for command in (generate, serve, score, convert, export, inspect, aot, plot):
    app.command()(command)
bench.command()(throughput)
bench.command("serve")(serve_load)
bench.command("replay")(replay)
for command in (sweep, compare, fit):
    simulate.command()(command)
simulate.command("replay")(replay_log)
app.add_typer(bench, name="bench")
app.add_typer(evaluation, name="eval")
app.add_typer(train, name="train")
app.add_typer(simulate, name="simulate")


def show_version(is_asked: bool) -> None:
    """Prints the installed version and ends the command."""
    if is_asked:
        print(version("looped"))
        raise typer.Exit


@app.callback()
def configure(
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings on stderr.")] = False,
    show: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=show_version, help="Show the version."),
    ] = False,
) -> None:
    """Options that come before the command's name."""
    configure_logging(logging.WARNING if quiet else logging.INFO)


def main() -> None:
    """Entry point: a user's mistake is one line on stderr, without a traceback.

    So is a policy's answer that breaks the protocol; what a policy raises keeps its traceback.
    """
    try:
        with ended_by_second_interrupt():
            app()
    except LoopedError as error:
        print(f"looped: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except InterfaceError as error:  # a policy's answer, most often; it names the policy
        print(f"looped: error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # The reader went away (`looped generate … | head`). Python flushes stdout at exit and
        # would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, RuntimeError, AssertionError) as error:
        reason = refused_environment(error)
        if reason is None:
            raise
        print(f"looped: error: {reason}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a full disk, a folder without permission
        print(f"looped: error: {error}", file=sys.stderr)
        sys.exit(1)


def refused_environment(error: Exception) -> str | None:
    """What is wrong with JAX's options in the environment, if that is what JAX has raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else trace.tb_frame.f_globals.get("__name__")
    if raised_in == "jax._src.config":
        return f"an option of JAX in the environment is refused: {error}"
    if raised_in == "jax._src.xla_bridge":
        told = os.environ.get("JAX_PLATFORMS", "")
        # A bare assertion where a GPU is asked for that the machine does not have.
        reason = f": {str(error).partition(' (')[0].rstrip('.')[:150]}" if str(error) else ""
        return (
            f"JAX finds no device to compute on (JAX_PLATFORMS is {told!r}){reason}; set it to "
            "cpu, or leave it out"
        )
    return None
