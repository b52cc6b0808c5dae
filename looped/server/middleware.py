"""What happens to every request before a route sees it: the key, and the size of the body.

Plain ASGI: Starlette's BaseHTTPMiddleware would put a task of its own between a route and the
client, and hide when the client has gone.
"""

import asyncio
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError

ASSETS_PATH = "/docs/assets"
"""Where scripts and styles of the API pages are."""
OPEN_PATHS = frozenset({"/", "/health", "/docs", "/redoc", "/openapi.json"})
"""Need no key: pages that hold nothing of anybody, and what a load balancer asks."""


class HeadAsGet:
    """Answers HEAD as it would GET, without the body (RFC 9110, section 9.3.2), at every route."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        return await self._app({**scope, "method": "GET"}, receive, send_without_body)


class RequireKey:
    """Answers 401 unless the request brings the key; the comparison takes constant time."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope["path"]) or self._has_key(scope):
            return await self._app(scope, receive, send)
        error = ApiError(
            401,
            "expected the server's key as `Authorization: Bearer KEY`, got none or another one",
            code="invalid_api_key",
        )
        return await error.to_response()(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in OPEN_PATHS or path.startswith(ASSETS_PATH + "/")

    def _has_key(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
        return secrets.compare_digest(given, self._expected)


class LimitBody:
    """Reads bodies for the routes: up to a size (413), within a time (408).

    Args:
        app: what comes next.
        max_bytes: of a body, whatever `Content-Length` says.
        seconds: for all of a body to come.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            return await self._app(scope, receive, send)
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(receive)
        except TimeoutError:
            body = ApiError(408, f"the body did not come within {self._seconds:g} seconds")
        if isinstance(body, ApiError):
            response = body.to_response()
            response.headers["Connection"] = "close"  # what is left of the body is not read
            return await response(scope, receive, send)
        if body is None:
            return None

        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | ApiError | None:
        """The whole body; None if the client has gone."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                return ApiError(
                    413,
                    f"the body must be at most {self._max_bytes:,} bytes (--max-body-bytes), and "
                    "more came",
                )
            if not message.get("more_body", False):
                return b"".join(parts)
