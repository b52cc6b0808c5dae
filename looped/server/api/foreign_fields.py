"""Fields that other servers know and this one does not serve, and unknown ones.

Clients written for vLLM, SGLang, TGI, llama.cpp or transformers send their fields with every
request, most of them at values that change nothing. Those pass; a value that would change the
answer is refused by its field's name, since ignoring it would be silently wrong. Fields that are in
no table are ignored with a warning, or refused where the server was started with `--strict-fields`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ApiError, field_name
from .fields import OpenFields, is_one_of, not_served, shown

logger = logging.getLogger(__name__)

MOST_WARNINGS = 100
"""Names of unknown fields that are remembered and logged; a client may invent any number."""
PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Penalties that are served, at the values that change nothing."""


@dataclass(frozen=True)
class ForeignField:
    """One that is refused unless it is off.

    Args:
        off: values that change nothing, besides null.
        instead: what a client may give here in its place; empty for nothing.
        is_idle: whether the rest of a body leaves the field without effect, at any value.
    """

    off: tuple[Any, ...] = ()
    instead: str = ""
    is_idle: Callable[[OpenFields], bool] = lambda body: False


def off(*values: Any, instead: str = "") -> ForeignField:
    """A field that is off at null and these values."""
    return ForeignField(values, instead)


def is_greedy(body: OpenFields) -> bool:
    """Whether nothing is drawn."""
    return getattr(body, "temperature", None) == 0


def has_no_penalty(body: OpenFields) -> bool:
    """Whether no penalty of the body's changes a draw."""
    return all(is_one_of(getattr(body, name, None), (value,)) for name, value in PENALTIES.items())


FOREIGN_FIELDS: dict[str, ForeignField] = {
    # Output of a given form.
    "guided_json": off(""),
    "guided_regex": off(""),
    "guided_choice": off([]),
    "guided_grammar": off(""),
    "guided_json_object": off(False),
    "structured_outputs": off({}),
    "structural_tag": off(""),
    "grammar": off(""),
    "grammar_triggers": off([]),
    "json_schema": off(""),
    "regex": off(""),
    "ebnf": off(""),
    # Draws.
    "do_sample": ForeignField((True,), "temperature 0", is_greedy),
    "typical_p": off(1),
    "tfs_z": off(1),
    "top_a": off(0),
    "top_n_sigma": off(-1, 0),
    "epsilon_cutoff": off(0),
    "eta_cutoff": off(0),
    "smoothing_factor": off(0),
    "adaptive_target": off(-1),
    "min_keep": off(0),
    "mirostat": off(0, False),
    "dynatemp_range": off(0),
    "xtc_probability": off(0),
    "dry_multiplier": off(0),
    "no_repeat_ngram_size": off(0),
    "repeat_penalty": off(1, instead="repetition_penalty"),
    "repeat_last_n": ForeignField((-1,), is_idle=has_no_penalty),
    "samplers": off(),
    "penalty_alpha": off(0),
    "guidance_scale": off(1),
    "num_beams": off(1),
    "use_beam_search": off(False),
    "length_penalty": off(1),
    "bad_words": off([]),
    "allowed_token_ids": off(),
    "logits_processors": off([]),
    "custom_logit_processor": off(),
    "custom_params": off({}),
    "vllm_xargs": off({}),
    "watermark": off(False),
    "watermarking": off(False),
    # Ends and lengths.
    "max_new_tokens": off(instead="max_tokens"),
    "n_predict": off(instead="max_tokens"),
    "max_length": off(instead="max_tokens"),
    "max_completion_tokens": off(instead="max_tokens"),
    "min_new_tokens": off(0, instead="min_tokens"),
    "min_length": off(0, instead="min_tokens"),
    "n_cmpl": off(1, instead="n"),
    "best_of": off(1),
    "stop_sequences": off([], instead="stop"),
    "stop_strings": off("", [], instead="stop"),
    "stop_regex": off("", []),
    "no_stop_trim": off(False, instead="include_stop_str_in_output"),
    "n_indent": off(0),
    "t_max_predict_ms": off(-1, 0),
    "repetition_detection": off(),
    "thinking_token_budget": off(-1),
    # Prompts.
    "prompt": off("", [], instead="messages"),
    "messages": off([], instead="prompt, or call /v1/chat/completions"),
    "input_ids": off(),
    "prompt_embeds": off(),
    "image_data": off([]),
    "suffix": off(""),
    "truncate": off(),
    "truncate_prompt_tokens": off(),
    "add_special": off(False),
    "parse_special": off(True),
    "chat_template": off(),
    "chat_template_kwargs": off({}),
    "add_generation_prompt": off(True),
    "continue_final_message": off(False),
    "documents": off([]),
    "guideline": off(),
    "task": off(),
    "session_params": off({}),
    "lora": off([]),
    "lora_path": off(),
    "lora_request": off(),
    "adapter_id": off(),
    # What an answer says.
    "skip_special_tokens": off(True),
    "echo": off(False),
    "return_full_text": off(False, instead="echo, at /v1/completions"),
    "include_reasoning": off(True),
    "reasoning_format": off("none", "auto"),
    "top_logprobs": off(0, instead="logprobs"),
    "n_probs": off(0, instead="logprobs"),
    "top_n_tokens": off(0, instead="logprobs"),
    "post_sampling_probs": off(False),
    "response_fields": off([]),
    "prompt_logprobs": off(False, instead="echo and logprobs, at /v1/completions"),
    "prompt_logprobs_every_loop": off(False),
    "decoder_input_details": off(False),
    "logprob_token_ids": off(),
    "return_tokens_as_token_ids": off(False),
    "return_token_ids": off(False),
    "return_tokens": off(False),
    "return_prompt_token_ids": off(False),
    "return_prompt_text": off(False),
    "return_token_offsets": off(False),
    "return_hidden_states": off(False),
    "return_routed_experts": off(False),
    "return_meta_info": off(False),
    "with_pieces": off(False),
    # This project's own, where the command line has them and requests do not.
    "exit_trace": off(),
}
"""Those that change an answer, by name; a field that an endpoint serves is not looked up here."""

WITHOUT_EFFECT = frozenset(
    {
        # How to do what is refused unless it is off.
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "grammar_lazy",
        "mirostat_tau",
        "mirostat_eta",
        "dynatemp_exponent",
        "xtc_threshold",
        "dry_base",
        "dry_allowed_length",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "adaptive_decay",
        "penalize_nl",
        "early_stopping",
        "truncation_side",
        "spaces_between_special_tokens",
        "tool_prompt",
        "parse_tool_calls",
        # About reasoning that is apart from an answer, images and sound: there are none.
        "separate_reasoning",
        "stream_reasoning",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "images_config",
        "max_dynamic_patch",
        "min_dynamic_patch",
        "use_audio_in_video",
    }
)
"""Those that change nothing here, at any value."""


class FieldCheck:
    """Judges the fields of bodies that their schema does not have.

    Args:
        is_strict: refuse unknown ones, in place of one warning for each name.
    """

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._warned: set[str] = set()

    def check(self, body: OpenFields, *, prefix: str = "") -> None:
        """Passes what changes nothing.

        Args:
            body: the request's, or a part of it.
            prefix: what comes before the part's names.

        Raises:
            ApiError: a field is refused, by its name.
        """
        unknown = []
        for name, value in (body.model_extra or {}).items():
            known = None if prefix else FOREIGN_FIELDS.get(name)
            if known is not None:
                if not (is_one_of(value, known.off) or known.is_idle(body)):
                    instead = f"; instead, give {known.instead}" if known.instead else ""
                    reason = not_served(value, known.off)
                    raise ApiError(400, f"{name}: {reason}{instead}", param=name)
            elif prefix or name not in WITHOUT_EFFECT:
                unknown.append(prefix + name)
        for name in unknown:
            if self._is_strict:
                param = field_name([name])
                message = f"{param}: this server knows no such field (--strict-fields refuses it)"
                raise ApiError(400, message, param=param)
            self._warn(shown(name))

    def _warn(self, name: str) -> None:
        if name in self._warned or len(self._warned) > MOST_WARNINGS:
            return
        self._warned.add(name)
        if len(self._warned) > MOST_WARNINGS:
            logger.warning("requests have more unknown fields, which are ignored without warnings")
            return
        logger.warning(
            "requests have a field %s, which this server does not know: it is ignored "
            "(--strict-fields refuses such requests)",
            name,
        )
