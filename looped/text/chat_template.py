"""A checkpoint's chat template, rendered in a sandbox: it is code that came with the weights."""

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from looped.errors import LoopedError, brief
from looped.model_files import read_json, read_text

logger = logging.getLogger(__name__)

# What a template can raise on its own: it computes with the messages, and with None, if one is.
TEMPLATE_FAILURES = (
    TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
)
# What Jinja raises for a source: `break` outside of a loop is Python's to refuse, and a number of
# five thousand digits, and parentheses in a thousand others.
PARSE_FAILURES = (TemplateError, SyntaxError, ValueError, OverflowError, RecursionError)


class GenerationBlock(Extension):
    """`{% generation %}…{% endgeneration %}` marks what to train on; here it is only its body."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own, which a variable set in it does not leave."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatTemplate:
    """A Jinja template over `messages`, with all that transformers gives to chat templates.

    Args:
        source: the template's text.
        special_tokens: names such as `bos_token` that the template may use, and their text.

    Raises:
        LoopedError: it cannot be parsed.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str | list[str]]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", GenerationBlock],
        )
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except PARSE_FAILURES as error:
            raise LoopedError(f"the chat template cannot be parsed: {brief(error, 150)}") from None
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The conversation as text, ending where the assistant is to answer.

        Raises:
            LoopedError: the template refuses the messages.
        """
        variables = {"messages": messages, "tools": None, "documents": None}
        try:
            return self._template.render(
                {**self._special_tokens, **variables, "add_generation_prompt": True}
            )
        except TEMPLATE_FAILURES as error:
            reason = brief(error, 1000)
            raise LoopedError(f"the chat template refused the messages: {reason}") from None


class BrokenTemplate:
    """A template that cannot be used: it refuses every chat, and nothing else.

    Args:
        reason: a sentence.
    """

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def render(self, messages: Sequence[dict[str, Any]]) -> NoReturn:
        """LoopedError, for any messages."""
        raise LoopedError(self._reason)


def find_template(
    folder: Path, settings: Mapping[str, Any], special_tokens: Mapping[str, str | list[str]]
) -> ChatTemplate | BrokenTemplate | None:
    """The folder's template: a file of its own, or an entry of tokenizer_config.json.

    Args:
        folder: a model folder.
        settings: its tokenizer_config.json.
        special_tokens: as of `ChatTemplate`.
    """
    try:
        source = _find_source(folder, settings)
        return None if source is None else ChatTemplate(source, special_tokens)
    except LoopedError as error:
        logger.warning("%s; chats are refused", error)
        return BrokenTemplate(str(error))


def _find_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    own_file, own_json = folder / "chat_template.jinja", folder / "chat_template.json"
    source: Any = settings.get("chat_template")
    if own_file.exists():
        source = read_text(own_file)
    elif own_json.exists():
        source = read_json(own_json).get("chat_template")
    if isinstance(source, list):
        named = [entry for entry in source if isinstance(entry, dict)]
        source = {str(entry.get("name")): entry.get("template") for entry in named}
    if isinstance(source, dict) and source:
        if "default" not in source:
            names = brief(", ".join(map(repr, source)))
            raise LoopedError(f"the chat template has no default, and only {names}")
        source = source["default"]
    if source is None or isinstance(source, str):
        return source
    raise LoopedError(f"the chat template must be text, got {brief(repr(source))}")


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. Jinja's own `tojson` is for HTML, and would spell `<` as an escape."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
