"""A prompt with its options, before an engine has it."""

from dataclasses import dataclass

from looped.sampling_params import SamplingParams


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt, as token ids, with its options."""

    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
