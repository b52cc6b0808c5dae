"""A checkpoint's chat template, rendered in a sandbox: it is code that came with the weights."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from looped.config import read_json
from looped.errors import LoopedError

# What a template can raise by itself: it computes with the messages, and with None, if one is.
TEMPLATE_FAILURES = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError)


class ChatTemplate:
    """A Jinja template over `messages`, with the helpers that Hugging Face templates expect.

    Args:
        source: the template's text.
        special_tokens: names such as `bos_token` that the template may use, and their text.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise LoopedError(f"the chat template cannot be parsed: {error}") from None
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The conversation as text, ending where the assistant is to answer."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, **self._special_tokens
            )
        except TEMPLATE_FAILURES as error:
            raise LoopedError(f"the chat template refused the messages: {error}") from None


def find_template(folder: Path, tokenizer_settings: dict[str, Any]) -> ChatTemplate | None:
    """The folder's template: a file of its own, or an entry of tokenizer_config.json."""
    own_file, own_json = folder / "chat_template.jinja", folder / "chat_template.json"
    source: Any = tokenizer_settings.get("chat_template")
    if own_file.exists():
        source = own_file.read_text(encoding="utf-8")
    elif own_json.exists():
        source = read_json(own_json).get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict)]
        source = {entry.get("name"): entry.get("template") for entry in named}.get("default")
    if source is None:
        return None
    if not isinstance(source, str):
        raise LoopedError(f"{folder}: the chat template must be text, got {source!r}")
    return ChatTemplate(source, _special_tokens(tokenizer_settings))


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    found = {name: settings[name] for name in names if settings.get(name)}
    return {
        name: str(token.get("content", "") if isinstance(token, dict) else token)
        for name, token in found.items()
    }


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
