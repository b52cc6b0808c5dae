"""Where a sequence ends: at any id that one of a checkpoint's files calls its end.

Published Ouro files disagree (0 in one, 2 in another), and a model that is stopped at one of them
only runs on into noise. A chat ends at the template's end of a turn as well.
"""

import logging
import math
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from looped.errors import LoopedError, brief
from looped.model_files import read_json

logger = logging.getLogger(__name__)

CHAT_END = "<|im_end|>"


def find_stop_token_ids(folder: Path, fast: FastTokenizer | None) -> frozenset[int]:
    """Union of what config, generation config and tokenizer config call end of sequence.

    Args:
        folder: a model folder; a file that is not there names nothing.
        fast: turns the token that tokenizer_config.json names into an id; None leaves it out.
    """
    named = {
        file: _token_ids(folder / file, read_json(folder / file).get("eos_token_id"))
        for file in ("config.json", "generation_config.json")
        if (folder / file).exists()
    }
    settings = folder / "tokenizer_config.json"
    if fast is not None and settings.exists():
        eos = read_json(settings).get("eos_token")
        text = eos.get("content") if isinstance(eos, dict) else eos
        token_id = fast.token_to_id(text) if isinstance(text, str) else None
        if token_id is not None and token_id >= _vocab_size(folder):
            logger.warning(
                "%s calls %s the end of a sequence, and the model has no token %d: nothing ends "
                "with it",
                settings.name,
                brief(repr(text), 50),
                token_id,
            )
            token_id = None
        named[settings.name] = _token_ids(settings, token_id)
    distinct = {frozenset(ids) for ids in named.values() if ids}
    union = frozenset[int]().union(*distinct)
    if len(distinct) > 1:
        said = ", ".join(f"{file} {sorted(ids)}" for file, ids in named.items() if ids)
        logger.info("end of sequence: %s; stopping at any of %s", said, sorted(union))
    return union


def _vocab_size(folder: Path) -> float:
    """Tokens of the folder's model; infinity without a configuration."""
    path = folder / "config.json"
    size = read_json(path).get("vocab_size") if path.exists() else None
    return size if isinstance(size, int) else math.inf


def _token_ids(path: Path, value: object) -> tuple[int, ...]:
    """Token ids as a file may spell them: one, several or none."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(token_id) is not int for token_id in values):
        raise LoopedError(f"{path}: eos_token_id must be a token id or a list, got {value!r}")
    return tuple(values)
