"""Offline generation: prompts in, completions out, in order."""

import logging
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

from looped.convert import read_lookahead_gate, resolve_model_folder
from looped.engine.full_depth import check_default_depth
from looped.engine.generation_request import GenerationRequest
from looped.engine.llm_engine import LLMEngine
from looped.engine.observer import LaunchObserver
from looped.engine.options import EngineConfig
from looped.engine.outputs import Completion, StepOutput
from looped.engine.sizes import check_options
from looped.process.compilation_cache import use_compilation_cache
from looped.process.jax_options import log_left_aside
from looped.programs.lookahead import check_lookahead
from looped.text.stop_ids import find_stop_token_ids
from looped.text.text_outputs import TextOutputs
from looped.text.tokenizer import Tokenizer

from .errors import LoopedError, UsageError
from .loading import load_folder
from .models import read_config
from .progress import progress_bars
from .sampling_params import SamplingParams

logger = logging.getLogger(__name__)

Prompt = str | list[int] | tuple[int, ...]


def score_params(*, every_loop: bool, num_top: int) -> SamplingParams:
    """Options that score a text and generate nothing."""
    return SamplingParams(
        max_tokens=0, prompt_logprobs=num_top, prompt_logprobs_every_loop=every_loop
    )


class LLM:
    """A model with its tokenizer and an engine.

    Args:
        model: converted or Hugging Face folder, or a hub id.
        dtype: "float32" or "bfloat16"; None takes the checkpoint's.
        num_loops: run the model with this P, prompts included.
        eos_token_ids: ids that end a sequence; None takes what the checkpoint's files name.
        config: engine options; single ones can be given by keyword instead.
        observer: is told of every launch, for a log of them; None tells nobody.

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
        observer: LaunchObserver | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise UsageError(f"give config or single options, not both: {sorted(options)}")
        try:
            config = config or EngineConfig(**options)
        except TypeError as error:
            raise UsageError(str(error).replace("EngineConfig.__init__() ", "LLM: ")) from None
        self.model = model
        """The model's name, as it was given."""
        use_compilation_cache()
        log_left_aside()
        folder = resolve_model_folder(model)
        # Before the weights are read: what contradicts itself is refused at once.
        model_config = read_config(folder / "config.json")
        check_options(config, model_config, num_loops)
        num_planes = num_loops or model_config.num_loops
        if observer is not None and observer.records_gates:
            check_default_depth(config, replace(model_config, num_loops=num_planes))
        check_lookahead(config.exit_mode, read_lookahead_gate(folder, model_config), num_planes)
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
        self.engine = LLMEngine(loaded, config, eos_token_ids=eos_token_ids, observer=observer)

    def with_options(self, **changes: Any) -> "LLM":
        """Another `LLM` on the same weights and compiled steps; see `LLMEngine.with_options`."""
        other = copy(self)
        other.engine = self.engine.with_options(**changes)
        return other

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Completes all prompts, batched together; results come in the order of the prompts.

        The n samples of a prompt follow each other, by sample index.

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
        completions: list[Completion] = []
        limits = [
            self.engine.limited(request.params, len(request.prompt_token_ids)).max_tokens or 0
            for request in requests
        ]
        num_tokens = sum(
            limit * request.params.n for limit, request in zip(limits, requests, strict=True)
        )
        with progress_bars(is_shown=show_progress) as progress:
            task = progress.add_task("generating", total=num_tokens + len(requests))
            for output in self.run(requests):
                progress.advance(task, len(output.tokens) + len(output.completions))
                completions += output.completions
        return sorted(completions, key=lambda done: (int(done.request_id), done.sample_index))

    def score(
        self,
        texts: Sequence[Prompt],
        *,
        every_loop: bool = False,
        num_top: int = 0,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Scores given texts: completions without tokens, whose `prompt_scores` say how likely
        each token was; `looped.perplexities` sums them up.

        Args:
            texts: texts (encoded as they are) or token ids, at least two tokens each.
            every_loop: score after every loop, not after the last alone.
            num_top: most likely tokens to list at each position, up to 20.
            show_progress: a progress bar on stderr.

        Raises:
            UsageError: a text that cannot be scored; then none has been.
        """
        prompts = [self.encode(text) for text in texts]
        for index, prompt in enumerate(prompts):
            if len(prompt) < 2:
                raise UsageError(
                    f"text {index}: expected at least 2 tokens, since the first has no score; "
                    f"got {len(prompt)}"
                )
        params = score_params(every_loop=every_loop, num_top=num_top)
        return self.generate(prompts, params, show_progress=show_progress)

    def run(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[StepOutput]:
        """Serves a closed set of requests, named "0", "1", …, and yields what each step brings.

        Text comes with it where there is a tokenizer; a request whose text reaches one of its stop
        strings is over at once.
        All are checked before the first runs. Leaving the iterator early aborts the rest.

        Args:
            requests: what to serve.
            should_stop: asked before each compilation and each step; the rest is aborted then.
        """
        if not requests:
            return
        if self.engine.has_unfinished_requests():
            raise LoopedError("this LLM is already generating; wait for it, or make another")
        texts = TextOutputs(
            self.tokenizer, self.engine.abort, vocab_size=self.engine.model_config.vocab_size
        )
        names = [str(index) for index in range(len(requests))]
        named = {
            name: replace(request, params=texts.register(name, request.params))
            for name, request in zip(names, requests, strict=True)
        }
        try:
            self.engine.add_requests(named)
            self.engine.warm_up(
                [
                    len(request.prompt_token_ids)
                    for request in named.values()
                    for _ in range(request.params.n)
                ],
                has_scores=any(request.params.prompt_logprobs is not None for request in requests),
                should_stop=should_stop,
            )
            while self.engine.has_unfinished_requests() and not should_stop():
                yield texts.add(self.engine.step())
        finally:
            for name in names:
                self.engine.abort(name)
            self.engine.settle()

    def encode(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of a prompt.

        Raises:
            UsageError: text without a tokenizer, or with a token that only the tokenizer knows.
        """
        if not isinstance(prompt, str):
            if not isinstance(prompt, list | tuple) or any(type(i) is not int for i in prompt):
                raise UsageError(f"a prompt must be text or a list of token ids, got {prompt!r}")
            return tuple(prompt)
        if self.tokenizer is None:
            raise UsageError("this model has no tokenizer.json: give token ids, not text")
        return self._checked(self.tokenizer.encode(prompt))

    def encode_chat(self, chat: str | Sequence[dict[str, Any]]) -> tuple[int, ...]:
        """Token ids of a user's message, or of a conversation, in the chat template.

        Raises:
            LoopedError: there is no template, or none that can be used.
            UsageError: there is no tokenizer, or it has a token of the text to itself.
        """
        if self.tokenizer is None:
            raise UsageError("this model has no tokenizer.json, and so no chat template")
        messages = [{"role": "user", "content": chat}] if isinstance(chat, str) else chat
        return self._checked(self.tokenizer.encode_chat(messages))

    def _checked(self, token_ids: list[int]) -> tuple[int, ...]:
        vocab_size = self.engine.model_config.vocab_size
        assert self.tokenizer is not None
        if foreign := self.tokenizer.find_foreign(token_ids, vocab_size):
            raise UsageError(
                f"the text holds {foreign}, which only the tokenizer knows: the model has tokens 0 "
                f"to {vocab_size - 1}; leave it out, or take a checkpoint that was trained with it"
            )
        return tuple(token_ids)

    def with_chat_stop(self, request: GenerationRequest) -> GenerationRequest:
        """The request with the template's end of a turn among its stop ids.

        A request that ignores ends, or an `LLM` that was given its own, stays as it is.
        """
        if self.tokenizer is None or request.params.ignore_eos or self._has_own_ends:
            return request
        vocab_size = self.engine.model_config.vocab_size
        known = {token for token in self.tokenizer.chat_end_token_ids if token < vocab_size}
        ends = known | frozenset(request.params.stop_token_ids)
        return replace(request, params=replace(request.params, stop_token_ids=ends))
