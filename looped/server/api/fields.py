"""Types of request fields that pydantic has no words for."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_SHOWN = 60
"""Characters of a client's value in a message."""
MAX_WHOLE = 2**53
"""Numbers up to here are whole or not as the client meant them, whatever it wrote them with."""


class Fields(BaseModel):
    """A part of a request's body: JSON types as they are, where 16.0 is 16, as clients without
    integers send it; unknown fields are dropped."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        # Field names such as model_… are not used; `model` itself is a field of OpenAI's.
        protected_namespaces=(),
    )

    @model_validator(mode="before")
    @classmethod
    def _with_whole_numbers(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: int(value) if is_whole(value) else value for name, value in body.items()}


class OpenFields(Fields):
    """Fields that keep unknown ones, in `model_extra`, for `FieldCheck` to judge."""

    # Without the schema's word for it, of which /docs would make a field of its example.
    model_config = ConfigDict(
        extra="allow", json_schema_extra=lambda schema: schema.pop("additionalProperties", None)
    )


def only(*allowed: Any) -> AfterValidator:
    """A check for fields that are not served: null and these values, which change nothing, pass."""

    def check(value: Any) -> Any:
        if is_one_of(value, allowed):
            return value
        raise PydanticCustomError("not_served", "{reason}", {"reason": not_served(value, allowed)})

    return AfterValidator(check)


def expecting(what: str) -> WrapValidator:
    """One message for a union, in place of one for each of its members."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticCustomError(
                "expected", "expected {what}, got {got}", {"what": what, "got": shown(value)}
            ) from None

    return WrapValidator(check)


def _parse_bias(value: Any) -> Any:
    """JSON has only text for keys: they become token ids."""
    if value == []:  # as other servers spell it
        return {}
    if not isinstance(value, dict):
        return value
    for key in value:
        if not (isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 20):
            raise PydanticCustomError(
                "token_id", "expected token ids for keys, got {got}", {"got": shown(key)}
            )
    return {int(key): bias for key, bias in value.items()}


LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(_parse_bias, json_schema_input_type=dict[str, float]),
    expecting('an object of numbers by token id, such as {"12": -3.5}'),
]


def is_whole(value: Any) -> bool:
    """Whether a value is a float that an integer says as well."""
    return isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE


def is_one_of(value: Any, allowed: Sequence[Any]) -> bool:
    """Whether a value is null, or one of these as JSON has them: 1 is 1.0, but not true."""
    return value is None or any(
        isinstance(value, bool) is isinstance(other, bool) and value == other for other in allowed
    )


def not_served(value: Any, allowed: Sequence[Any]) -> str:
    """Why a field is refused that passes at null and at some values."""
    said = " or ".join(shown(value) for value in (None, *allowed))
    return f"this server does not serve it: leave it out, or give {said}; got {shown(value)}"


def shown(value: Any) -> str:
    """A value as JSON would have it, more or less, and not too much of it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge number"
    if isinstance(value, list | dict) and len(value) > 20:
        return f"{type(value).__name__} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
