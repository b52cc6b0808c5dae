"""`looped serve`: an OpenAI-compatible server."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from looped.engine.options import EngineConfig
from looped.server.config import ServerConfig

from .checkpoints import Dtype
from .options import (
    LaunchLogFile,
    LaunchLogWaits,
    OptionalModel,
    RecordGatesFile,
    RecordTraceFile,
    check_launch_log,
    check_recordings,
    chosen_model,
    with_config_options,
)


@with_config_options(server_config=ServerConfig, engine_config=EngineConfig)
def serve(
    *,
    model: OptionalModel = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Type to run in; by default the checkpoint's.")
    ] = None,
    num_loops: Annotated[
        int | None, typer.Option(min=1, help="Load the model with this P, prompts included.")
    ] = None,
    eos_token_id: Annotated[
        list[int] | None, typer.Option(help="Stop at these ids instead of the checkpoint's.")
    ] = None,
    launch_log: LaunchLogFile = None,
    launch_log_waits: LaunchLogWaits = False,
    record_trace: RecordTraceFile = None,
    record_gates: RecordGatesFile = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write a jax.profiler trace that begins with the first request and ends after "
            "--profile-launches, or with the server; they run slower, and the server stands still "
            "for a moment while the trace is written.",
        ),
    ] = None,
    profile_launches: Annotated[
        int, typer.Option(min=1, help="Launches in the trace of --profile.")
    ] = 256,
    server_config: ServerConfig,
    engine_config: EngineConfig,
) -> None:
    """Serve a model over HTTP, with OpenAI's API; the interactive page is at /docs."""
    from looped.demo import shipped
    from looped.llm import LLM
    from looped.record.exit_trace import recording_exits
    from looped.record.gate_record import recording_gates
    from looped.record.launch_log import recording
    from looped.record.profiling import check_profile_folder, profiling
    from looped.server.listening import taken_sockets
    from looped.server.run import leave_at_once
    from looped.server.run import serve as run

    check_launch_log(launch_log, waits=launch_log_waits, profile=profile)
    check_profile_folder(profile)
    check_recordings(launch_log, record_trace, record_gates)
    if model is None and server_config.served_model_name is None:
        server_config = replace(server_config, served_model_name=shipped.NAME)
    name = chosen_model(model)
    with (
        taken_sockets(server_config.host, server_config.port) as sockets,
        recording(launch_log, waits_for_device=launch_log_waits) as log,
        recording_exits(record_trace, log) as exits,
        recording_gates(record_gates, exits, model=name) as gates,
        profiling(profile, gates, max_launches=profile_launches) as observer,
    ):
        llm = LLM(
            name,
            dtype=dtype,
            num_loops=num_loops,
            eos_token_ids=eos_token_id or None,
            config=engine_config,
            observer=observer,
        )
        has_threads = run(llm, server_config, sockets)
    if has_threads:
        leave_at_once()
