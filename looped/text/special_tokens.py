"""Special tokens that a tokenizer's settings name, and the ids that transformers gives them.

A fine-tune may name tokens in tokenizer_config.json that its tokenizer.json does not have.
transformers appends them to the vocabulary when it loads the tokenizer; so does `add_to`, in the
same order, so that a text that holds one has the ids that the model was trained with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from looped.errors import LoopedError, brief
from looped.model_files import read_json

NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
"""What transformers calls its own, in the order in which it adds them; others follow."""

SETTINGS_FILE, MAP_FILE, ADDED_FILE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """Tokens by what the settings say of them."""

    numbered: Mapping[int, AddedToken]
    """By the id that the settings give them; they need not be special."""
    named: Mapping[str, AddedToken]
    """By names such as `eos_token`."""
    listed: tuple[AddedToken, ...]
    """Additional ones."""
    source: Path
    """The file that gives ids."""

    @classmethod
    def from_folder(cls, folder: Path, settings: Mapping[str, Any]) -> Self:
        """Reads what a folder's settings name.

        Args:
            folder: of the tokenizer. Its two older files count only if the settings number no
                tokens.
            settings: its tokenizer_config.json.

        Raises:
            LoopedError: a token that is neither a text nor an object with a `content`, or a setting
                that should hold several tokens and does not.
        """
        source, older = folder / SETTINGS_FILE, {}
        if (numbered := settings.get("added_tokens_decoder")) is None:
            older = read_optional_json(folder / MAP_FILE)
            source = folder / ADDED_FILE
            numbered = read_optional_json(source)
        values = {**settings, **older}
        reader = _TokenReader(folder)
        extra = reader.several(values, "extra_special_tokens", list, dict)
        listed = reader.several(values, "additional_special_tokens", list)
        if isinstance(extra, list):
            listed = extra or listed
        others = {name: token for name, token in values.items() if _names_another(name, token)}
        others |= extra if isinstance(extra, dict) else {}
        named = {name: values[name] for name in NAMES if values.get(name)} | others
        tokens = {name: reader.special(name, token) for name, token in named.items()}
        additional = tuple(reader.special("additional_special_tokens", token) for token in listed)
        special = {token.content for token in (*tokens.values(), *additional)}
        return cls(
            numbered=reader.numbered(source, numbered, special),
            named=tokens,
            listed=additional,
            source=source,
        )

    @property
    def texts(self) -> dict[str, str | list[str]]:
        """What a chat template may call by name."""
        texts: dict[str, str | list[str]] = {
            name: token.content for name, token in self.named.items()
        }
        if self.listed:
            texts["additional_special_tokens"] = [token.content for token in self.listed]
        return texts

    def add_to(self, fast: FastTokenizer) -> None:
        """Appends the tokens that the tokenizer does not have; those that it has and that the
        settings number take the settings' form: what they strip, and whether they are special.

        Raises:
            LoopedError: a token's id is not the one that the settings give it.
        """
        known = {token.content for token in fast.get_added_tokens_decoder().values()}
        wanted = [token for _, token in sorted(self.numbered.items())]
        known |= {token.content for token in wanted}
        for token in (*self.named.values(), *self.listed):
            if token.content not in known:
                known.add(token.content)
                wanted.append(token)
        fast.add_tokens(wanted)
        for token_id, token in sorted(self.numbered.items()):
            found = fast.token_to_id(token.content)
            if found != token_id:
                raise LoopedError(
                    f"{brief(repr(token.content), 50)} has id {token_id} in {self.source.name} and "
                    f"{found} in tokenizer.json, or where transformers appends it; correct the one "
                    f"that the model was not trained with: {self.source.parent}"
                )


class _TokenReader:
    """Turns tokens as files spell them into the library's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def special(self, name: str, value: object) -> AddedToken:
        """A token that is special because of where it stands."""
        if isinstance(value, str):
            return AddedToken(value, special=True)
        return self._token(name, value, special=True)

    def several(self, values: Mapping[str, Any], name: str, *kinds: type) -> Any:
        """Tokens in a list, or by name in an object; an empty list if the setting is left out."""
        tokens = values.get(name) or []
        if not isinstance(tokens, kinds):
            expected = "a list or an object" if dict in kinds else "a list"
            raise LoopedError(
                f"{self._folder / SETTINGS_FILE}: {name} must be {expected} of tokens, got "
                f"{brief(repr(tokens))}"
            )
        return tokens

    def numbered(self, source: Path, values: object, special: set[str]) -> Mapping[int, AddedToken]:
        """Tokens by id: of `added_tokens_decoder`, or of the older file, which has ids by token."""
        if not isinstance(values, Mapping):
            raise LoopedError(
                f"{source}: added_tokens_decoder must be an object, got {brief(repr(values))}"
            )
        if source.name == ADDED_FILE:
            return {
                _token_id(source, token_id): AddedToken(
                    text, special=text in special, normalized=text not in special
                )
                for text, token_id in values.items()
            }
        return {
            _token_id(source, token_id): self._token(
                token_id, token, special=_is_in(token, special)
            )
            for token_id, token in values.items()
        }

    def _token(self, name: str, value: object, *, special: bool) -> AddedToken:
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise LoopedError(
                f"{self._folder / SETTINGS_FILE}: {brief(name)} must be a text or an object with a "
                f"content, got {brief(repr(value))}"
            )
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        given = {flag: bool(value[flag]) for flag in flags if flag in value}
        return AddedToken(value["content"], **given | ({"special": True} if special else {}))


def read_optional_json(path: Path) -> dict[str, Any]:
    """A JSON file's object; an empty one if there is no file."""
    return read_json(path) if path.exists() else {}


def _names_another(name: str, value: object) -> bool:
    """Whether a setting names a special token beyond transformers' own: `image_token` and such.

    An object is one only if it says so; without that, transformers leaves it out.
    """
    is_token = isinstance(value, Mapping) and value.get("__type") == "AddedToken"
    is_named = is_token or (isinstance(value, str) and value != "")
    return is_named and name.endswith("_token") and name not in NAMES


def _is_in(token: object, special: set[str]) -> bool:
    return isinstance(token, Mapping) and token.get("content") in special


def _token_id(source: Path, value: object) -> int:
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
        return int(value)
    raise LoopedError(f"{source}: expected a token id, got {brief(repr(value))}")
