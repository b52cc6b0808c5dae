"""Who runs next: the scheduler of looped, in pure Python, without a device and without a clock.

A request waits, is admitted with a slot and a promise of KV blocks, runs its prompt chunk by
chunk through all P depths (PREFILL), and then its row rides in every launch, a loop in each
(RECURRENT), until it is finished. Whether a token leaves the loop, and which one follows, the
device decides inside the launch; the scheduler reads of it `run_ahead` launches later.

    scheduler, progress        the class that ties it together; what a result changes
    config, sizes, exits, request, errors
                               what is asked, what follows where it is not, and what is refused
    items, states, results     the contract with the runner: launches out, results in
    view                       what could run, as a policy sees it
    outlook                    what a row can be when the launches that are out have run
    launches, buckets, ladders
                               the kinds of launch: rows, results and costs; row counts to compile
    memory/                    who enters, and what it holds
    policies/                  who decides
    choice/                    from what could run to the launch
    costing/                   what a launch has to do, in numbers and in seconds
    simulator/                 the same Scheduler on a clock and an executor of its own

The same Scheduler serves the engine, the tests' stub executor and the simulator.
"""

from .buckets import (
    Ladder,
    bucket_for,
    head_ladder,
    prefill_ladder,
    prefill_pads_no_more,
    recurrent_ladder,
    score_ladder,
)
from .config import SchedulerConfig, SchedulerOptions
from .costing.cost_model import CostModel, read_cost_table
from .costing.work import LaunchCosts, LaunchWork
from .errors import ConfigError, InterfaceError, RequestError
from .exits import (
    ExitDecision,
    ExitMode,
    ExitOptions,
    ExitRule,
    decide,
    is_deciding,
    resolve_exit,
)
from .items import Batch, ItemKind, PromptItem, ScheduledItem
from .ladders import Rung, all_rungs, ladders_for, reachable_rungs, rung_order
from .launches import (
    LAUNCH_KINDS,
    PROGRAM_KINDS,
    Calls,
    LaunchKind,
    calls_of,
    head_bucket,
    launch_kind,
)
from .policies import (
    POLICIES,
    Policy,
    PolicyOptions,
    pack_whole,
    policy_named,
    policy_names,
    resolve_policy,
    slack_policy,
    wavefront_from_options,
    wavefront_policy,
)
from .request import NO_INDEX, NO_SLOT, FinishReason, PromptScoring, Request, Stage
from .results import (
    HeadResult,
    LaunchResult,
    PromptScores,
    RowStatus,
    ScoreResult,
    StepUpdate,
    TokenOutput,
    TopLogprobs,
)
from .scheduler import Scheduler
from .simulator.arrivals import Arrival, Arrivals, ClosedArrivals, TimedArrivals
from .simulator.simulation import (
    Executor,
    SimulatedClock,
    SimulatedExecutor,
    SimulatedLaunch,
    SimulatedOutput,
    Simulation,
    SimulationCosts,
    SimulationListener,
)
from .sizes import budget_for, default_budget, default_chunk_size, useful_chunk_size
from .states import PromptStateHandle, PromptStateOwner
from .view import Choice, Selection, View

__all__ = [
    "LAUNCH_KINDS",
    "NO_INDEX",
    "NO_SLOT",
    "POLICIES",
    "PROGRAM_KINDS",
    "Arrival",
    "Arrivals",
    "Batch",
    "Calls",
    "Choice",
    "ClosedArrivals",
    "ConfigError",
    "CostModel",
    "Executor",
    "ExitDecision",
    "ExitMode",
    "ExitOptions",
    "ExitRule",
    "FinishReason",
    "HeadResult",
    "InterfaceError",
    "ItemKind",
    "Ladder",
    "LaunchCosts",
    "LaunchKind",
    "LaunchResult",
    "LaunchWork",
    "Policy",
    "PolicyOptions",
    "PromptItem",
    "PromptScores",
    "PromptScoring",
    "PromptStateHandle",
    "PromptStateOwner",
    "Request",
    "RequestError",
    "RowStatus",
    "Rung",
    "ScheduledItem",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerOptions",
    "ScoreResult",
    "Selection",
    "SimulatedClock",
    "SimulatedExecutor",
    "SimulatedLaunch",
    "SimulatedOutput",
    "Simulation",
    "SimulationCosts",
    "SimulationListener",
    "Stage",
    "StepUpdate",
    "TimedArrivals",
    "TokenOutput",
    "TopLogprobs",
    "View",
    "all_rungs",
    "bucket_for",
    "budget_for",
    "calls_of",
    "decide",
    "default_budget",
    "default_chunk_size",
    "head_bucket",
    "head_ladder",
    "is_deciding",
    "ladders_for",
    "launch_kind",
    "pack_whole",
    "policy_named",
    "policy_names",
    "prefill_ladder",
    "prefill_pads_no_more",
    "reachable_rungs",
    "read_cost_table",
    "recurrent_ladder",
    "resolve_exit",
    "resolve_policy",
    "rung_order",
    "score_ladder",
    "slack_policy",
    "useful_chunk_size",
    "wavefront_from_options",
    "wavefront_policy",
]
