"""Offline generation: prompts in, completions out, in order."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from looped.convert import resolve_model_folder

from .compilation_cache import use_compilation_cache
from .config import ModelConfig
from .engine import LLMEngine
from .engine_config import EngineConfig
from .errors import LoopedError, UsageError
from .loading import load_folder
from .outputs import Completion, StepOutput
from .planning import check_options
from .progress import progress_bars
from .sampling_params import SamplingParams
from .stops import find_stop_token_ids
from .tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Prompt = str | list[int] | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt, as token ids, with its options."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams


class LLM:
    """A model with its tokenizer and an engine.

    Args:
        model: converted or Hugging Face folder, or a hub id.
        dtype: "float32" or "bfloat16"; None takes the checkpoint's.
        num_loops: run the model with this P, prompts included.
        eos_token_ids: ids that end a sequence; None takes what the checkpoint's files name.
        config: engine options; single ones can be given by keyword instead.

    Raises:
        LoopedError: the model is not there or not sound, or options contradict each other.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str | None = None,
        num_loops: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise UsageError(f"give config or single options, not both: {sorted(options)}")
        try:
            config = config or EngineConfig(**options)
        except TypeError as error:
            raise UsageError(str(error).replace("EngineConfig.__init__() ", "LLM: ")) from None
        use_compilation_cache()
        folder = resolve_model_folder(model)
        # Before the weights are read: what contradicts itself is refused at once.
        check_options(config, ModelConfig.from_file(folder / "config.json"), num_loops)
        has_tokenizer = (folder / "tokenizer.json").exists()
        self.tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
        self._has_own_ends = eos_token_ids is not None
        if eos_token_ids is None:
            eos_token_ids = sorted(
                self.tokenizer.stop_token_ids
                if self.tokenizer is not None
                else find_stop_token_ids(folder, None)
            )
        loaded = load_folder(folder, dtype=dtype, num_loops=num_loops, layers=config.layers)
        if outside := [i for i in eos_token_ids if not 0 <= i < loaded.config.vocab_size]:
            raise UsageError(
                f"eos_token_ids must be 0 to {loaded.config.vocab_size - 1}, got {outside[0]}"
            )
        self.engine = LLMEngine(loaded, config, eos_token_ids=eos_token_ids)

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Completes all prompts, batched together; results come in the order of the prompts.

        Args:
            prompts: texts (encoded as they are) or token ids.
            params: options of all prompts, or of each; None is greedy.
            show_progress: a progress bar on stderr.

        Raises:
            UsageError: a request that could never run; then none has run.
        """
        if isinstance(prompts, str):
            raise UsageError("prompts must be a list, got one text; write [text]")
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(prompts)
        if any(not isinstance(options, SamplingParams) for options in params):
            raise UsageError("options must be SamplingParams")
        if len(params) != len(prompts):
            raise UsageError(f"expected options for {len(prompts)} prompts, got {len(params)}")
        if not prompts:
            return []
        requests = [
            GenerationRequest(prompt_token_ids=self.encode(prompt), params=options)
            for prompt, options in zip(prompts, params, strict=True)
        ]
        completions: dict[str, Completion] = {}
        with progress_bars(is_shown=show_progress) as progress:
            task = progress.add_task("generating", total=sum(r.params.max_tokens for r in requests))
            for output in self.run(requests):
                progress.advance(task, len(output.tokens))
                completions |= {done.request_id: done for done in output.completions}
        return [self.with_text(completions[str(index)]) for index in range(len(requests))]

    def run(self, requests: Sequence[GenerationRequest]) -> Iterator[StepOutput]:
        """Serves a closed set of requests, named "0", "1", …, and yields what each step brings.

        All are checked before the first runs. Leaving the iterator early aborts the rest.
        """
        if not requests:
            return
        if self.engine.has_unfinished_requests():
            raise LoopedError("this LLM is already generating; wait for it, or make another")
        names = [str(index) for index in range(len(requests))]
        try:
            for name, request in zip(names, requests, strict=True):
                self.engine.add_request(name, request.prompt_token_ids, request.params)
            self.engine.warm_up([len(request.prompt_token_ids) for request in requests])
            while self.engine.has_unfinished_requests():
                yield self.engine.step()
        finally:
            for name in names:
                self.engine.abort(name)

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt; UsageError for text without a tokenizer."""
        if not isinstance(prompt, str):
            if not isinstance(prompt, list | tuple) or any(type(i) is not int for i in prompt):
                raise UsageError(f"a prompt must be text or a list of token ids, got {prompt!r}")
            return tuple(prompt)
        if self.tokenizer is None:
            raise UsageError("this model has no tokenizer.json: give token ids, not text")
        return tuple(self.tokenizer.encode(prompt))

    def encode_chat(self, text: str) -> tuple[int, ...]:
        """Token ids of a user's message in the chat template; UsageError without a tokenizer."""
        if self.tokenizer is None:
            raise UsageError("this model has no tokenizer.json, and so no chat template")
        return tuple(self.tokenizer.encode_chat([{"role": "user", "content": text}]))

    def with_chat_stop(self, request: GenerationRequest) -> GenerationRequest:
        """The request with the template's end of a turn among its stop ids.

        A request that ignores ends, or an `LLM` that was given its own, stays as it is.
        """
        if self.tokenizer is None or request.params.ignore_eos or self._has_own_ends:
            return request
        ends = self.tokenizer.chat_end_token_ids | frozenset(request.params.stop_token_ids)
        return replace(request, params=replace(request.params, stop_token_ids=ends))

    def with_text(self, completion: Completion) -> Completion:
        """The completion with its tokens decoded, where there is a tokenizer."""
        if self.tokenizer is None:
            return completion
        return replace(completion, text=self.tokenizer.decode(completion.token_ids))
