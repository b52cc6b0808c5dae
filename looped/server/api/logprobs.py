"""Log-probabilities in the two forms of OpenAI's: lists beside each other, or an object a token."""

import codecs
from collections.abc import Sequence

from looped.engine.outputs import LoopScores
from looped.sched import TopLogprobs
from looped.text.tokenizer import Tokenizer

from .responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob


class TextOffsets:
    """Where the tokens of a text begin in it, as they come.

    A token inside a character begins where the character does.

    Args:
        tokenizer: the model's.
        start: characters before the first token.
        has_special: whether special tokens are in the text, by name.
    """

    def __init__(self, tokenizer: Tokenizer, start: int, *, has_special: bool) -> None:
        self._tokenizer = tokenizer
        self._has_special = has_special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def add(self, token_id: int) -> int:
        """The offset of the next token."""
        offset = self._offset
        if not self._has_special and self._tokenizer.is_special(token_id):
            return offset
        spelled = self._tokenizer.token_bytes(token_id)
        if spelled is None:
            self._offset += len(self._tokenizer.token_text(token_id))
            return offset
        unfinished, _ = self._decoder.getstate()
        self._offset += len(self._decoder.decode(spelled))
        # The token's first byte belongs to the last character of this, whole, unfinished or broken.
        so_far = (unfinished + spelled[:1]).decode("utf-8", "replace")
        return offset + max(len(so_far) - 1, 0)


class CompletionLogprobsBuilder:
    """Lists for the tokens of one choice, in one piece or in several.

    Args:
        tokenizer: the model's.
        start: characters of the choice's text before the first token.
        is_prompt: whether the tokens are those of an echoed prompt.
    """

    def __init__(self, tokenizer: Tokenizer, *, start: int = 0, is_prompt: bool = False) -> None:
        self._tokenizer = tokenizer
        self._offsets = TextOffsets(tokenizer, start, has_special=is_prompt)

    def add(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float | None],
        tops: Sequence[TopLogprobs],
    ) -> CompletionLogprobs:
        """Lists for the next tokens; `tops` is () for tokens that ask for no others."""
        tops = tops or [()] * len(token_ids)
        texts = [self._tokenizer.token_text(token_id) for token_id in token_ids]
        return CompletionLogprobs(
            tokens=texts,
            token_logprobs=list(logprobs),
            top_logprobs=[
                None if logprob is None else self._alternatives(top, text, logprob)
                for top, text, logprob in zip(tops, texts, logprobs, strict=True)
            ],
            text_offset=[self._offsets.add(token_id) for token_id in token_ids],
        )

    def _alternatives(self, top: TopLogprobs, text: str, logprob: float) -> dict[str, float]:
        listed: dict[str, float] = {}
        for token_id, other in top:
            listed.setdefault(self._tokenizer.token_text(token_id), other)
        listed.setdefault(text, logprob)
        return listed


def prompt_logprobs(
    tokenizer: Tokenizer, prompt: Sequence[int], scores: Sequence[LoopScores]
) -> CompletionLogprobs:
    """Lists for an echoed prompt, whose first token nothing is known about.

    Args:
        tokenizer: the model's.
        prompt: its token ids.
        scores: of the last loop; none for a prompt of one token.
    """
    logprobs: list[float | None] = [None]
    tops: list[TopLogprobs] = [()]
    for last in scores:
        logprobs += last.logprobs
        tops += last.top_logprobs or [()] * len(last.logprobs)
    return CompletionLogprobsBuilder(tokenizer, is_prompt=True).add(prompt, logprobs, tops)


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """The lists of a prompt, and of what came after it."""
    return CompletionLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[TopLogprobs],
) -> ChatLogprobs:
    """An object for each token; `tops` is () for tokens that ask for no others."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_token(tokenizer, token_id, logprob).model_dump(),
                top_logprobs=[_token(tokenizer, *other) for other in top],
            )
            for token_id, logprob, top in zip(
                token_ids, logprobs, tops or [()] * len(token_ids), strict=True
            )
        ]
    )


def _token(tokenizer: Tokenizer, token_id: int, logprob: float) -> TopLogprob:
    spelled = tokenizer.token_bytes(token_id)
    return TopLogprob(
        token=tokenizer.token_text(token_id),
        logprob=logprob,
        bytes=None if spelled is None else list(spelled),
    )
