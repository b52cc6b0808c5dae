"""Engine options as command-line options: one source, `EngineConfig`, for every command."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from looped.engine_config import EngineConfig
from looped.errors import UsageError

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


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's parameter `engine_config` by an option for every field of it.

    Names, types, defaults and help are those of `EngineConfig`, whose checks give the errors.
    """
    hints, documented = get_type_hints(EngineConfig), field_docstrings(EngineConfig)
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[
                hints[field.name],
                typer.Option(help=documented[field.name], rich_help_panel="Engine"),
            ],
        )
        for field in fields(EngineConfig)
    ]
    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command).parameters.values()
        if parameter.name != "engine_config"
    ]

    @wraps(command)
    def with_config(**values: Any) -> None:
        options = {parameter.name: values.pop(parameter.name) for parameter in added}
        command(**values, engine_config=EngineConfig(**options))

    with_config.__signature__ = inspect.Signature(own + added)  # type: ignore[attr-defined]
    with_config.__annotations__ = {
        parameter.name: parameter.annotation for parameter in own + added
    }
    return with_config


def refuse_whole_prompts(config: EngineConfig, flag: str) -> None:
    """UsageError for a score of every loop under a policy whose launches run all loops at once."""
    from looped.sched import policy_named

    policy = policy_named(config.policy_name)
    if policy.runs_all_depths:
        raise UsageError(
            f"{flag} needs launches of one loop, and --policy {policy.name} runs every loop in "
            "one; choose another policy, or leave it out to score the last loop"
        )


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """The string under each annotated field of a class, as one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    documented = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            assert isinstance(following.value, ast.Constant)
            text = " ".join(str(following.value.value).split())
            # A command line has no None; leaving the option out is what it means there.
            documented[statement.target.id] = text.replace("None: ", "By default: ")
    return documented
