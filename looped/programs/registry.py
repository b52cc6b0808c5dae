"""The program of each launch kind: the engine's half of what `looped.sched.launches` registers.

`head` follows them and uploads nothing, so it is no `Program`.
"""

from typing import Any

from looped.sched import LaunchKind

from .prefill import PREFILL
from .program import Program
from .recurrent import RECURRENT
from .score import SCORE

PROGRAMS: dict[LaunchKind, Program[Any]] = {
    LaunchKind.RECURRENT: RECURRENT,
    LaunchKind.PREFILL: PREFILL,
    LaunchKind.SCORE: SCORE,
}
"""All of them. Not to be written to."""
