"""Types of request fields that pydantic has no words for."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

MAX_SHOWN = 60
"""Characters of a client's value in a message."""


class Fields(BaseModel):
    """A request's body or a part of it: JSON types as they are, and no unknown fields."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        # Field names such as model_… are not used; `model` itself is a field of OpenAI's.
        protected_namespaces=(),
    )


def only(*allowed: Any) -> AfterValidator:
    """A check for fields that are not served: null and these values, which change nothing, pass."""
    said = " or ".join(_shown(value) for value in (None, *allowed))

    def check(value: Any) -> Any:
        if value is None or any(_is_same(value, other) for other in allowed):
            return value
        raise PydanticCustomError(
            "not_served",
            "this server does not serve it: leave it out, or give {allowed}; got {got}",
            {"allowed": said, "got": _shown(value)},
        )

    return AfterValidator(check)


def expecting(what: str) -> WrapValidator:
    """One message for a union, in place of one for each of its members."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError(
                "expected", "expected {what}, got {got}", {"what": what, "got": _shown(value)}
            ) from None

    return WrapValidator(check)


def _parse_bias(value: Any) -> Any:
    """JSON has only text for keys: they become token ids."""
    if not isinstance(value, dict):
        return value
    for key in value:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20):
            raise PydanticCustomError(
                "token_id", "expected token ids for keys, got {got}", {"got": _shown(key)}
            )
    return {int(key): bias for key, bias in value.items()}


LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(_parse_bias, json_schema_input_type=dict[str, float]),
    expecting('an object of numbers by token id, such as {"12": -3.5}'),
]


def _is_same(value: Any, other: Any) -> bool:
    # In Python 1 == True == 1.0; in JSON they differ.
    return type(value) is type(other) and bool(value == other)


def _shown(value: Any) -> str:
    """A value as JSON would have it, more or less, and not too much of it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge number"
    if isinstance(value, list | dict) and len(value) > 20:
        return f"{type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
