"""Arguments of `looped generate` that say what goes into the model, parsed."""

import sys

from looped.errors import UsageError


def read_standard_input() -> str:
    """All of standard input, without its final newline, "\\n" or "\\r\\n".

    Raises:
        UsageError: there is none, or nothing in it; it is not UTF-8.
    """
    no_prompt = "no prompt: give PROMPT, --prompt-ids, --requests or standard input"
    if sys.stdin.isatty():
        raise UsageError(no_prompt)
    try:
        text = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8: {error}") from None
    if not text:
        raise UsageError(f"{no_prompt}, which is empty")
    return text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")


def parse_token_ids(text: str) -> tuple[int, ...]:
    """Token ids from "1,2,3"."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--prompt-ids takes whole numbers such as 1,2,3; got {text!r}") from None


def parse_logit_bias(texts: list[str]) -> dict[int, float]:
    """Biases from "ID=VALUE" each."""
    biases: dict[int, float] = {}
    for text in texts:
        token_id, _, value = text.partition("=")
        try:
            parsed = int(token_id), float(value)
        except ValueError:
            raise UsageError(f"--logit-bias takes ID=VALUE such as 12=-3.5; got {text!r}") from None
        if parsed[0] in biases:
            raise UsageError(f"--logit-bias takes one value a token, got two for {parsed[0]}")
        biases[parsed[0]] = parsed[1]
    return biases
