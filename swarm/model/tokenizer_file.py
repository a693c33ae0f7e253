"""tokenizer.json and the files beside it that name tokens, read and made into the library's tokenizer.

Tokens that only tokenizer_config.json, special_tokens_map.json or added_tokens.json name are put into what
was read of tokenizer.json, as transformers does it; one that would not get the id it is given is refused.
What the library gets is what was looked at, written anew: two parsers may read one file in two ways.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import tokenizers

from swarm.errors import BrokenModel
from swarm.model.fields import MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES, brief
from swarm.security.foreign import read_json

Content: TypeAlias = Mapping[str, Any]  # of a JSON file

PULL_AGAIN = "Pull the model again, or point to a complete directory."
MAX_ADDED_TOKENS = 2**15  # the most known are 6,415
MAX_ID_DIGITS = 9
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CONFIG, _MAP, _ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that a file beside tokenizer.json names. `flags` has all of them."""

    text: str
    flags: Mapping[str, bool]
    where: str  # the file and the key
    id: int | None = None  # None: that which it has, or the next


@dataclass(frozen=True, slots=True)
class Companions:
    """What the files beside tokenizer.json say of tokens."""

    named: Mapping[str, str]  # by name, as templates see them: "bos_token"
    added: tuple[AddedToken, ...]


def read_companions(directory: Path, config: Content, content: Content) -> Companions:
    """The tokens that the files beside tokenizer.json name. `config` is that of tokenizer_config.json.

    Raises `BrokenModel` naming file and key of what is none.
    """
    settings = {name: (directory / _CONFIG, value) for name, value in config.items()}
    legacy = "added_tokens_decoder" not in config  # only then does transformers read the older files
    if legacy:
        path = directory / _MAP
        settings |= {name: (path, value) for name, value in read_object(path).items()}
    named = dict(_named(settings))
    listed = list(_listed(settings))
    older = _older(directory / _ADDED, _special(settings), content) if legacy else ()
    numbered = sorted((*_numbered(directory / _CONFIG, config), *older), key=lambda token: token.id or 0)
    added = (*_as_named(numbered, named.values()), *named.values(), *listed)
    if len(added) + len(_entries(content)) > MAX_ADDED_TOKENS:
        raise BrokenModel(f"{directory} has more than {MAX_ADDED_TOKENS:,} added tokens", PULL_AGAIN)
    return Companions({name: token.text for name, token in named.items()}, added)


def with_added(content: Content, added: tuple[AddedToken, ...]) -> dict[str, Any]:
    """The tokenizer with those tokens too. What is there keeps its id, and its flags where no id is said."""
    if not added or not _is_list_of_tokens(content.get("added_tokens")):
        return dict(content)  # what is no such list the library refuses
    there = {entry["content"]: entry for entry in _entries(content)}
    for token in added:
        entry = there.get(token.text)
        if entry is None:
            there[token.text] = {"id": token.id or 0, "content": token.text, **token.flags}
        elif token.id is not None:
            special = entry.get("special") is True or token.flags["special"]  # the library never forgets it
            there[token.text] = {**entry, **token.flags, "special": special}
    return {**content, "added_tokens": [*there.values()]}


def named_beside(directory: Path, content: Content) -> dict[str, object]:
    """What the files beside tokenizer.json add to it, by part; nothing where they only repeat it."""
    companions = read_companions(directory, read_object(directory / _CONFIG), content)
    known = {entry["content"]: entry for entry in _entries(content)}
    entries = _entries(with_added(content, companions.added))
    more = [entry for entry in entries if known.get(entry["content"]) != entry]
    names = {name: text for name, text in companions.named.items() if name not in ROLES}
    return {name: part for name, part in (("added_tokens", more), ("named_tokens", names)) if part}


def check_added(backend: tokenizers.Tokenizer, added: tuple[AddedToken, ...]) -> None:
    """Raise `BrokenModel` unless every token has the id that it was given."""
    for token in added:
        if token.text and token.id is not None and (found := backend.token_to_id(token.text)) != token.id:
            holder = backend.id_to_token(token.id)
            problem = f"that is {brief(holder)}" if holder not in (None, token.text) else f"it has {found}"
            raise BrokenModel(
                f"{token.where} gives {brief(token.text)} the id {token.id}, but in the vocabulary {problem}",
                PULL_AGAIN,
            )


def read_object(path: Path, limit_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file. Raises `BrokenModel`."""
    try:
        value = read_json(path, limit_bytes)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BrokenModel(f"{path} is not JSON: {error}", PULL_AGAIN) from error
    if not isinstance(value, dict):
        raise BrokenModel(f"{path} is not a JSON object", PULL_AGAIN)
    return value


def read_tokenizer_file(path: Path) -> dict[str, Any]:
    """The object in it. Raises `BrokenModel` when it is missing, too large, too deep, or not an object."""
    try:
        content = read_json(path, MAX_TOKENIZER_BYTES)
    except FileNotFoundError as error:
        raise BrokenModel(f"{path} is missing", PULL_AGAIN) from error
    except (OSError, ValueError) as error:
        raise _broken(path, error) from error
    if not isinstance(content, dict):
        raise _broken(path, "it does not hold an object")
    return content


def load_backend(content: Content, path: Path | str) -> tokenizers.Tokenizer:
    """The library's tokenizer, which neither cuts nor pads. Raises `BrokenModel` naming `path`."""
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    except BaseException as error:
        if not is_the_librarys(error):
            raise
        raise _broken(path, error) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def is_the_librarys(error: BaseException) -> bool:
    """Whether the library raised it: nothing narrower than Exception, or a panic, which is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _named(settings: Mapping[str, tuple[Path, Any]]) -> Iterator[tuple[str, AddedToken]]:
    """The tokens with a name: the usual ones first, then those that the model has besides."""
    more = [name for name in settings if name.endswith("_token") and name not in ROLES]
    for name in (*ROLES, *more):
        path, value = settings.get(name, (Path(), None))
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) or (name in ROLES and content is not None):
            yield name, _token(value, f"{path}: {name}", special=True)
    path, value = settings.get("extra_special_tokens", (Path(), None))
    for name, token in value.items() if isinstance(value, dict) else ():
        yield name, _token(token, f"{path}: extra_special_tokens.{brief(name)}", special=True)


def _listed(settings: Mapping[str, tuple[Path, Any]]) -> Iterator[AddedToken]:
    """Control tokens without a name."""
    for name in _LISTS:
        path, value = settings.get(name, (Path(), None))
        for place, token in enumerate(value if isinstance(value, list) else ()):
            yield _token(token, f"{path}: {name}[{place}]", special=True)


def _numbered(path: Path, config: Content) -> Iterator[AddedToken]:
    """The tokens that tokenizer_config.json gives ids."""
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict):
        raise BrokenModel(f"{path}: added_tokens_decoder is {brief(decoder)}, no object", PULL_AGAIN)
    for key, value in decoder.items():
        where = f"{path}: added_tokens_decoder[{brief(key)}]"
        if not (key.isascii() and key.isdecimal() and len(key) <= MAX_ID_DIGITS):
            raise BrokenModel(f"{where} is not the id of a token", PULL_AGAIN)
        yield _token(value, where, token_id=int(key))


def _as_named(numbered: list[AddedToken], named: Collection[AddedToken]) -> Iterator[AddedToken]:
    """The same, where a token that has a name is a control token, whatever its flags say."""
    texts = {token.text for token in named}
    for token in numbered:
        yield replace(token, flags={**token.flags, "special": True}) if token.text in texts else token


def _special(settings: Mapping[str, tuple[Path, Any]]) -> set[str]:
    """What transformers takes for control tokens in added_tokens.json: not the list in the oldest map."""
    known = {name: entry for name, entry in settings.items() if name in (*ROLES, *_LISTS)}
    if known.get(_LISTS[1], (Path(), None))[0].name == _MAP:
        del known[_LISTS[1]]
    return {token.text for token in (*dict(_named(known)).values(), *_listed(known))}


def _older(path: Path, special: set[str], content: Content) -> Iterator[AddedToken]:
    """The tokens of added_tokens.json, but those whose ids tokenizer.json has."""
    taken = {entry["id"] for entry in _entries(content) if isinstance(entry.get("id"), int)}
    for text, token_id in read_object(path).items():
        where = f"{path}: {brief(text)}"
        if type(token_id) is not int or not 0 <= token_id < 10**MAX_ID_DIGITS:
            raise BrokenModel(f"{where} has {brief(token_id)}, not the id of a token", PULL_AGAIN)
        if token_id not in taken:
            yield _token({"content": text, "special": text in special}, where, token_id=token_id)


def _token(value: object, where: str, *, special: bool = False, token_id: int | None = None) -> AddedToken:
    """A token, written as a text or as an object; what this leaves out is as in the library."""
    fields = {"content": value} if isinstance(value, str) else value
    if not isinstance(fields, dict) or not isinstance(text := fields.get("content"), str):
        raise BrokenModel(f"{where} is {brief(value)}, not a token with its text as content", PULL_AGAIN)
    given = {name: fields[name] for name in _FLAGS if name in fields}
    if not all(isinstance(flag, bool) for flag in given.values()):
        raise BrokenModel(f"{where} has a flag that is neither true nor false", PULL_AGAIN)
    special = special or given.get("special", False)
    flags = dict.fromkeys(_FLAGS, False) | {"normalized": not special} | given | {"special": special}
    return AddedToken(text, flags, where, token_id)


def _entries(content: Content) -> list[dict[str, Any]]:
    """The added tokens of tokenizer.json."""
    entries = content.get("added_tokens")
    return entries or [] if _is_list_of_tokens(entries) else []


def _is_list_of_tokens(value: object) -> TypeGuard[list[dict[str, Any]] | None]:
    if value is None:
        return True
    return isinstance(value, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("content"), str) for entry in value
    )


def _broken(path: Path | str, problem: object) -> BrokenModel:
    return BrokenModel(f"{path} is not a tokenizer: {problem}", PULL_AGAIN)
