"""`/tokenize` and `/detokenize`: the served model's tokenizer, for clients that have none."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from ..errors import ApiError
from ..streams import NOBODY, ClientGoneError, unless_gone
from .backend import Backend
from .responses import ERRORS, DetokenizeResponse, TokenizeResponse
from .schema import DetokenizeRequest, TokenizeRequest

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: ERRORS[status] for status in (400, 408, 429, 503)
}


def make_router(backend: Backend) -> APIRouter:
    """The routes, for one served model."""
    router = APIRouter()

    @router.post("/tokenize", response_model=TokenizeResponse, responses=REFUSALS)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Token ids of a text, or of messages in the chat template."""
        backend.check_body(body)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if body.messages is not None:
            return await answer(request, backend.with_chat_text(body.messages, tokens_of))
        assert body.prompt is not None
        job = partial(tokens_of, body.prompt)
        return await answer(request, backend.text_work.run(len(body.prompt), job))

    def tokens_of(text: str) -> bytes:
        token_ids = backend.tokenizer.encode(text)
        response = TokenizeResponse(
            tokens=token_ids,
            token_strs=list(map(backend.tokenizer.token_text, token_ids)),
            count=len(token_ids),
            max_model_len=backend.max_model_len,
        )
        return response.model_dump_json().encode()

    @router.post("/detokenize", response_model=DetokenizeResponse, responses=REFUSALS)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """The text of token ids."""
        backend.check_body(body)
        backend.check_ids(body.tokens, "tokens")
        job = partial(text_of, body.tokens)
        return await answer(request, backend.text_work.run(len(body.tokens), job))

    def text_of(token_ids: list[int]) -> bytes:
        text = backend.tokenizer.decode(token_ids, has_special=True)
        return DetokenizeResponse(prompt=text).model_dump_json().encode()

    return router


async def answer(request: Request, content: Coroutine[Any, Any, bytes]) -> Response:
    """The work's JSON; what has not begun is dropped when the client goes away."""
    try:
        return Response(await unless_gone(request, content), media_type="application/json")
    except ClientGoneError:
        return NOBODY
