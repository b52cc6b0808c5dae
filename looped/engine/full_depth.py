"""Gates are recorded at full depth: what would let a token leave early is refused."""

from looped.config import ModelConfig
from looped.errors import UsageError
from looped.sched import ExitMode, ExitOptions, ExitRule, RequestError, resolve_exit

from .options import EngineConfig


def check_full_depth(name: str, rule: ExitRule, config: ModelConfig) -> None:
    """UsageError for a request, by its name, some of whose tokens may not run every loop."""
    if rule.mode is not ExitMode.OURO:
        got, flag = f"exit mode {rule.mode}", "--exit-mode ouro"
    elif rule.threshold < 1.0:
        got, flag = f"exit threshold {rule.threshold:g}", "--exit-threshold 1"
    elif rule.max_loops < config.num_loops:
        got, flag = f"max_loops {rule.max_loops}", f"--max-loops {config.num_loops}"
    else:
        return
    raise UsageError(
        f"{name}: gates are recorded at full depth (exit mode ouro, threshold 1, "
        f"{config.num_loops} loops), got {got}; try {flag}"
    )


def check_default_depth(config: EngineConfig, model: ModelConfig) -> None:
    """UsageError for an engine whose requests may exit early if they say nothing themselves."""
    try:
        rule = resolve_exit(ExitOptions(), config.exit_defaults(model), model.num_loops)
    except RequestError as error:
        raise UsageError(str(error)) from None
    check_full_depth("a request without exit options", rule, model)
