"""Where the prompts of a load come from: made up at random, or out of a file of conversations."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from looped.errors import UsageError
from looped.measure.arrivals import Sample, random_prompts
from looped.text.tokenizer import Tokenizer

from .sharegpt import Lengths, draw_prompts, read_exchanges


@dataclass(frozen=True, kw_only=True)
class PromptSource:
    """Which prompts a run has, and how much each of them asks for."""

    num_requests: int = 200
    """Of a run."""
    prompt_tokens: int = 256
    """Length of a made-up prompt."""
    output_tokens: int = 128
    """Tokens that a made-up prompt's answer has, to the token."""
    dataset: Path | None = None
    """ShareGPT's JSON, instead of made-up prompts."""
    lengths: Lengths = field(default_factory=Lengths)
    """Which of its conversations are used."""

    def sampler(
        self,
        *,
        vocab_size: int | None,
        max_model_len: int | None,
        tokenizer: Path,
        seed: int,
    ) -> Callable[[str], Sample]:
        """What gives the prompts of a run, by its name.

        Args:
            vocab_size: of the model, for made-up prompts; None is not known.
            max_model_len: longest prompt and output that the server takes; None is not known.
            tokenizer: folder of the model's, for a dataset.
            seed: of the prompts.

        Raises:
            UsageError: what is needed is unknown or not there, or a request is too long.
        """
        if self.dataset is None:
            return self._made_up(vocab_size, max_model_len, seed)
        return self._of_dataset(self.dataset, tokenizer, max_model_len, seed)

    def _made_up(
        self, vocab_size: int | None, max_model_len: int | None, seed: int
    ) -> Callable[[str], Sample]:
        if max_model_len is not None and self.prompt_tokens + self.output_tokens > max_model_len:
            raise UsageError(
                f"prompt and output of a request have {self.prompt_tokens} + "
                f"{self.output_tokens} tokens, and the server takes {max_model_len} "
                "(max_model_len); lower --prompt-tokens or --output-tokens"
            )
        if vocab_size is None:
            raise UsageError(
                "the server does not say its vocabulary's size; give it: --vocab-size V"
            )
        return lambda name: Sample(
            random_prompts(
                self.num_requests,
                prompt_tokens=self.prompt_tokens,
                output_tokens=self.output_tokens,
                vocab_size=vocab_size,
                seed=seed,
                name=name,
            )
        )

    def _of_dataset(
        self, dataset: Path, tokenizer: Path, max_model_len: int | None, seed: int
    ) -> Callable[[str], Sample]:
        lengths = self.lengths.within(max_model_len)
        if not tokenizer.is_dir():
            raise UsageError(
                f"--dataset needs the model's tokenizer, and {tokenizer} is no folder; give it: "
                "--tokenizer DIR"
            )
        encode = Tokenizer.from_folder(tokenizer).encode
        exchanges = read_exchanges(dataset)
        return lambda name: draw_prompts(
            exchanges, encode, self.num_requests, lengths=lengths, seed=seed, name=name
        )
