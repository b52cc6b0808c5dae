"""Ahead-of-time compilation of the engine's steps for a GPU that is not there.

JAX's CUDA plugin compiles without a GPU and without NVIDIA's packages. What comes out is a
compiler's account of the very steps that an engine would launch: memory, launches, bytes,
registers. It is no measurement of a GPU, and times that are derived from it are estimates.

    targets         the GPUs, by name
    absent_engine   an engine's shapes from a config.json and options, without weights
    report          one compiled step: its numbers, failures and missed aims
    checks          those failures and aims
    hlo             XLA's optimized program as text, read into instructions
    launches        the launches of such a program and the bytes they move
    kernels         registers, spills and shared memory of the kernels that XLA makes
    embedded        the same of the kernels that jax-triton hands it
    table           the reports as a table
    floors          least bytes and operations of a step, by formula
"""

from .absent_engine import (
    AbsentEngine,
    default_rungs,
    make_absent_engine,
    parse_rungs,
    steps_to_compile,
)
from .kernels import Assembler
from .report import StepReport, compile_step
from .table import remarks_of, table_of, title_of
from .targets import DATA_SHEETS, Target, has_plugin, load_target

__all__ = [
    "DATA_SHEETS",
    "AbsentEngine",
    "Assembler",
    "StepReport",
    "Target",
    "compile_step",
    "default_rungs",
    "has_plugin",
    "load_target",
    "make_absent_engine",
    "parse_rungs",
    "remarks_of",
    "steps_to_compile",
    "table_of",
    "title_of",
]
