"""looped: inference for looped language models in JAX.

A looped model runs the same stack of layers several times per token, so prompt rows and decode
rows at any loop depth read the same weights and can share a launch.

    looped.LLM              offline generation; looped.LLMEngine, one launch a step
    looped.models           the model in Flax NNX: what people open first
    looped.convert          checkpoints in and out
    looped.sched            who runs next; pure Python
    looped.pallas_kernels   attention over a paged cache
    looped.server           an OpenAI-compatible server around one engine
    looped.reference        slow, obvious generation that everything else is tested against

Names below are loaded on first use, so that the scheduler and `looped --help` need no JAX.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looped.engine.llm_engine import LLMEngine
    from looped.engine.options import EngineConfig
    from looped.engine.outputs import Completion, LoopScores, StepOutput, TokenEvent
    from looped.text.detokenizer import Detokenizer
    from looped.text.perplexity import perplexities
    from looped.text.tokenizer import Tokenizer

    from .config import ModelConfig
    from .engine.generation_request import GenerationRequest
    from .errors import LoopedError, UsageError
    from .llm import LLM
    from .loading import LoadedModel, load_folder
    from .sampling_params import SamplingParams

_HOMES = {
    "Completion": ".engine.outputs",
    "Detokenizer": ".text.detokenizer",
    "EngineConfig": ".engine.options",
    "GenerationRequest": ".engine.generation_request",
    "LLM": ".llm",
    "LLMEngine": ".engine.llm_engine",
    "LoadedModel": ".loading",
    "LoopScores": ".engine.outputs",
    "LoopedError": ".errors",
    "ModelConfig": ".config",
    "SamplingParams": ".sampling_params",
    "StepOutput": ".engine.outputs",
    "TokenEvent": ".engine.outputs",
    "Tokenizer": ".text.tokenizer",
    "UsageError": ".errors",
    "load_folder": ".loading",
    "perplexities": ".text.perplexity",
}

__all__ = [
    "LLM",
    "Completion",
    "Detokenizer",
    "EngineConfig",
    "GenerationRequest",
    "LLMEngine",
    "LoadedModel",
    "LoopScores",
    "LoopedError",
    "ModelConfig",
    "SamplingParams",
    "StepOutput",
    "TokenEvent",
    "Tokenizer",
    "UsageError",
    "load_folder",
    "perplexities",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version(__name__)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
