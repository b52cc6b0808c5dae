"""Failures in the form that OpenAI's clients read: a status, and a JSON object that says why."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from .api.fields import shown

RETRY_SECONDS = 1
"""What `Retry-After` says: work of this engine is over in seconds, so that clients may ask soon."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
"""The error's `type` by status; `server_error` for all others."""


class ApiError(Exception):
    """An answer that is not what was asked for.

    Args:
        status: of the HTTP response.
        message: what was expected, what came, what to do.
        param: the field of the request that is to blame, None for none.
        code: OpenAI's name for the case, where there is one.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    def to_json(self) -> dict[str, Any]:
        """The body of the response, and of the event that ends a stream."""
        return {
            "error": {
                "message": self.message,
                "type": TYPES.get(self.status, "server_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    def to_response(self) -> JSONResponse:
        """The whole response."""
        is_passing = self.status in (429, 503)
        headers = {"Retry-After": str(RETRY_SECONDS)} if is_passing else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.to_json(), status_code=self.status, headers=headers)


def bad_field(message: str, fields: Mapping[str, str], default: str | None = None) -> ApiError:
    """A refusal by the engine's own checks, whose messages begin with the option's name.

    Args:
        message: of a UsageError.
        fields: the request's fields by the engine's names.
        default: the field to blame if the message names none.
    """
    # The request's id is ours and tells the client nothing.
    message = re.sub(r"^request '[^']*': ", "", message)
    message = re.sub(r"^exit (threshold|mode)", r"exit_\1", message)
    message = re.sub(r"[a-z_]+", lambda word: fields.get(word[0], word[0]), message)
    names = set(fields.values())
    named = (word for word in re.findall(r"[a-z_]+", message) if word in names)
    return ApiError(400, message, param=next(named, default))


def install(app: FastAPI) -> None:
    """Makes every failure of the app's routes an answer of this form."""

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> JSONResponse:
        return error.to_response()

    @app.exception_handler(RequestValidationError)
    async def refuse_fields(request: Request, error: RequestValidationError) -> JSONResponse:
        if isinstance(error.body, bytes):  # it was not parsed
            given = request.headers.get("content-type")
            got = "none" if given is None else ascii(given[:100])
            message = f"the body must be JSON: expected Content-Type: application/json, got {got}"
            return ApiError(400, message).to_response()
        return from_validation(error.errors()).to_response()

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path}: {error.detail}"
        response = ApiError(error.status_code, message).to_response()
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it once more, for the log; what it says is of no use to a client.
        return ApiError(500, "the server failed; its log says why").to_response()


def from_validation(errors: Iterable[Mapping[str, Any]]) -> ApiError:
    """The first thing that is wrong with a body, by the name of its field."""
    first = next(iter(errors))
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "")
        return ApiError(400, f"the body must be JSON: {reason}")
    place = first["loc"][1:]
    param = field_name(place) or None
    if first["type"] == "missing":
        message = f"{param or 'the body'}: a value is needed, got none"
        return ApiError(400, message, param=param)
    message = first["msg"]
    if message.startswith("Input should be "):  # pydantic's own, which do not say what came
        message = (
            f"expected {message.removeprefix('Input should be ')}, got {shown(first['input'])}"
        )
    return ApiError(400, f"{param or 'the body'}: {message}", param=param)


def field_name(place: Iterable[str | int]) -> str:
    """A path such as messages[0].content; text of the client's own is kept printable."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            shown = part.encode("ascii", "backslashreplace").decode()[:100]
            name += f".{shown}" if name else shown
    return name
