"""`/tokenize` and `/detokenize`: the served model's tokenizer, for clients that have none."""

import asyncio
from functools import partial

from fastapi import APIRouter, Response

from .backend import Backend
from .errors import ApiError
from .responses import ERRORS, DetokenizeResponse, TokenizeResponse
from .schema import DetokenizeRequest, TokenizeRequest


def make_router(backend: Backend) -> APIRouter:
    """The routes, for one served model."""
    router = APIRouter()

    @router.post("/tokenize", response_model=TokenizeResponse, responses={400: ERRORS[400]})
    async def tokenize(body: TokenizeRequest) -> Response:
        """Token ids of a text, or of messages in the chat template."""
        backend.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages", param="prompt")
        if body.messages is not None:
            token_ids = await backend.encode_chat(body.messages)
        else:
            assert body.prompt is not None
            (token_ids,) = await backend.encode([body.prompt])

        def answer() -> bytes:
            return (
                TokenizeResponse(
                    tokens=list(token_ids),
                    token_strs=list(map(backend.tokenizer.token_text, token_ids)),
                    count=len(token_ids),
                    max_model_len=backend.max_model_len,
                )
                .model_dump_json()
                .encode()
            )

        # Of a long text this takes seconds, in which streams would stand still.
        content = await asyncio.to_thread(answer)
        return Response(content, media_type="application/json")

    @router.post("/detokenize", response_model=DetokenizeResponse, responses={400: ERRORS[400]})
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids."""
        backend.check_model(body.model)
        backend.check_ids(body.tokens, "tokens")
        decode = partial(backend.tokenizer.decode, has_special=True)
        return DetokenizeResponse(prompt=await asyncio.to_thread(decode, body.tokens))

    return router
