"""An engine as a target that a workload can be played on."""

from collections.abc import Sequence

from looped.engine.llm_engine import LLMEngine
from looped.sampling_params import SamplingParams
from looped.sched import ExitMode, ExitOptions

from .workload import DECODER, WorkItem, kind_of


class EngineTarget:
    """Serves work items on an engine, greedily and to their full length.

    Args:
        engine: without prefix caching, or equal rounds would find each other's prompts.
        live_threshold: threshold at which decoders decide their own exits, no matter what their
            items say; None goes by the items.
    """

    def __init__(self, engine: LLMEngine, *, live_threshold: float | None = None) -> None:
        self._engine = engine
        self._live_threshold = live_threshold

    def add_request(self, item: WorkItem) -> None:
        params = SamplingParams(
            max_tokens=item.max_tokens, ignore_eos=True, exit=self._exit_options(item)
        )
        self._engine.add_request(item.request_id, item.prompt_token_ids, params)

    def step(self) -> Sequence[str]:
        return [event.request_id for event in self._engine.step().tokens]

    def has_unfinished_requests(self) -> bool:
        return self._engine.has_unfinished_requests()

    def _exit_options(self, item: WorkItem) -> ExitOptions:
        if self._live_threshold is not None and kind_of(item.request_id) == DECODER:
            return ExitOptions(mode=ExitMode.OURO, threshold=self._live_threshold)
        if item.trace:
            return ExitOptions(trace=item.trace)
        return ExitOptions(mode=ExitMode.OURO, threshold=item.exit_threshold)
