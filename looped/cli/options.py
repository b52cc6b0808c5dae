"""Fields of configuration classes as command-line options: one source for every command."""

import ast
import inspect
import logging
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from looped.engine.options import EngineConfig
from looped.errors import UsageError

logger = logging.getLogger(__name__)

Command = Callable[..., None]

OptionalModel = Annotated[
    str | None,
    typer.Option(
        help="Converted or Hugging Face folder, or a hub id; by default the demo model that is "
        "installed with looped."
    ),
]
LaunchLogFile = Annotated[
    Path | None,
    typer.Option("--launch-log", help="Write a line of JSON for every launch, for `looped plot`."),
]
LaunchLogWaits = Annotated[
    bool,
    typer.Option(
        "--launch-log-waits",
        help="Wait for every launch, so that the log has the device's times; slower.",
    ),
]
RecordTraceFile = Annotated[
    Path | None,
    typer.Option(
        "--record-trace",
        help="Write the loops of every token as JSON, a list for every sample, for --exit-trace.",
    ),
]
RecordGatesFile = Annotated[
    Path | None,
    typer.Option(
        "--record-gates",
        help="Write the gate's probability after every loop of every token, as .npz. All tokens "
        "run all loops.",
    ),
]
ProfileFolder = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="DIR",
        help="Write a jax.profiler trace of all launches after the warm-up; they run slower.",
    ),
]
BenchProfileFolder = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="DIR",
        help="When all is measured, play everything once more, short, for a jax.profiler trace.",
    ),
]


def chosen_model(model: str | None) -> str:
    """The model that was named, or the demo model's folder, which is said.

    Raises:
        LoopedError: none was named, and no demo model is installed.
    """
    if model is not None:
        return model
    from looped.demo.shipped import shipped_model

    folder = shipped_model()
    logger.info("no --model given: using the demo model, %s", folder)
    return str(folder)


def with_config_options(**configs: type[Any]) -> Callable[[Command], Command]:
    """Replaces parameters of a command by an option for every field of their classes.

    Names, types, defaults and help are those of the class, whose checks give the errors. A field
    whose metadata has an `envvar` can be given in the environment, too. One that looks different on
    a command line has metadata `option_name`, `option_type` and `metavar`, and `read`, which makes
    the field's value of what was typed. A field that the command itself has an option for keeps its
    default.

    Args:
        configs: the class, by the parameter's name.
    """

    def decorate(command: Command) -> Command:
        parameters = inspect.signature(command).parameters
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in parameters.values()
            if parameter.name not in configs
        ]
        by_parameter = {
            name: [option for option in _options_of(config) if option.name not in parameters]
            for name, config in configs.items()
        }
        added = [option for options in by_parameter.values() for option in options]

        @wraps(command)
        def with_configs(**values: Any) -> None:
            built = {
                parameter: configs[parameter](
                    **_field_values(
                        configs[parameter],
                        {option.name: values.pop(option.name) for option in options},
                    )
                )
                for parameter, options in by_parameter.items()
            }
            command(**values, **built)

        with_configs.__signature__ = inspect.Signature(own + added)  # type: ignore[attr-defined]
        with_configs.__annotations__ = {
            parameter.name: parameter.annotation for parameter in own + added
        }
        return with_configs

    return decorate


def _options_of(config: type[Any]) -> list[inspect.Parameter]:
    hints, documented = get_type_hints(config), field_docstrings(config)
    return [
        inspect.Parameter(
            field.metadata.get("option_name", field.name),
            inspect.Parameter.KEYWORD_ONLY,
            default=None if "read" in field.metadata else field.default,
            annotation=Annotated[
                field.metadata.get("option_type", hints[field.name]),
                typer.Option(
                    help=documented[field.name],
                    envvar=field.metadata.get("envvar"),
                    metavar=field.metadata.get("metavar"),
                ),
            ],
        )
        for field in fields(config)
    ]


def _field_values(config: type[Any], typed: dict[str, Any]) -> dict[str, Any]:
    """Values of the fields, of what was typed by options' names."""
    values = {}
    for field in fields(config):
        name = field.metadata.get("option_name", field.name)
        if name in typed:
            read = field.metadata.get("read", _unchanged)
            values[field.name] = read(typed[name])
    return values


def _unchanged(value: Any) -> Any:
    return value


def check_launch_log(file: Path | None, *, waits: bool, profile: Path | None) -> None:
    """UsageError for options about a log that there is none of, and for a log beside a profile."""
    if waits and file is None:
        raise UsageError("--launch-log-waits is about a launch log; add --launch-log FILE")
    if file is not None and profile is not None:
        raise UsageError(
            "--launch-log has times that --profile makes longer; leave one of the two for another "
            "run"
        )


def check_recordings(
    launch_log: Path | None, record_trace: Path | None, record_gates: Path | None
) -> None:
    """UsageError for a place of a recording that will not do, before any of them is begun."""
    from looped.record.exit_trace import check_exit_trace_file
    from looped.record.gate_record import check_gate_file
    from looped.record.launch_log import check_launch_log_file

    check_launch_log_file(launch_log)
    check_exit_trace_file(record_trace)
    check_gate_file(record_gates)
    places = [path.resolve() for path in (launch_log, record_trace, record_gates) if path]
    for place in places:
        if places.count(place) > 1:
            raise UsageError(f"{place} is named for two recordings; give each a file of its own")


def refuse_whole_prompts(config: EngineConfig, flag: str) -> None:
    """UsageError for a score of every loop under a policy whose launches run all loops at once."""
    policy = config.resolved_policy
    if policy.runs_all_depths:
        raise UsageError(
            f"{flag} needs launches of one loop, and --policy {policy.name} runs every loop in "
            "one; choose another policy, or leave it out to score the last loop"
        )


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """The string under each annotated field of a class and its bases, as one line."""
    documented = {}
    for base in reversed([base for base in cls.__mro__ if base is not object]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for statement, following in zip(definition.body, definition.body[1:], strict=False):
            if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
                assert isinstance(statement.target, ast.Name)
                assert isinstance(following.value, ast.Constant)
                text = " ".join(str(following.value.value).split())
                # A command line has no None; leaving the option out is what it means there.
                text = text.replace("None: ", "By default: ")
                documented[statement.target.id] = text
    return documented
