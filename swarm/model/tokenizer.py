"""Text to token ids and back, and conversations to token ids, as transformers does it.

Reads the tokenizer's files and the chat templates of a Hugging Face directory; transformers itself is not
needed. A conversation is encoded without adding special tokens, because its template has written them.
Templates run in a process of their own, and so does encoding where it may take more than its text deserves.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from swarm.errors import BrokenModel, RequestError, UnsupportedModel
from swarm.model.chat_template import Json, Message, plain
from swarm.model.confined import Confined, ProcessLimits
from swarm.model.fields import read_text
from swarm.model.tokenizer_check import encodes_plainly, for_decoding, why_not_decodable
from swarm.model.tokenizer_file import (
    PULL_AGAIN,
    check_added,
    is_the_librarys,
    load_backend,
    read_companions,
    read_object,
    with_added,
)
from swarm.model.tokenizer_source import has_tokenizer_file, read_tokenizer, with_ends

MAX_TEMPLATES = 16
MAX_TEMPLATE_BYTES = 2**20
# A chat of 8 MB is rendered in a tenth of that time. The memory is that of its text, some ten times over.
_TEMPLATE_LIMITS = ProcessLimits(cpu_s=10, memory_bytes=2**30, wall_s=60.0, answer_bytes=2**27)
_TOKENIZER_LIMITS = ProcessLimits(cpu_s=30, memory_bytes=2**31, wall_s=120.0, answer_bytes=2**27)


class Tokenizer:
    """A tokenizer with its chat templates by name; ``default`` is the one for plain chats."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        named_tokens: Mapping[str, str],
        templates: Mapping[str, str],
        encoder: Confined | None = None,
    ) -> None:
        """With an `encoder`, `backend` only decodes."""
        self._backend = backend
        self._encoder = encoder
        self._named_tokens = dict(named_tokens)
        self._sources = dict(templates)
        self._templates = {
            name: Confined("The model's chat template", "template", {"source": source}, _TEMPLATE_LIMITS)
            for name, source in self._sources.items()
        }

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones too. The model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._sources)

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """The special tokens by role, for example ``{"bos_token": "<s>"}``."""
        return self._named_tokens

    def to_json(self) -> str:
        """The content of `tokenizer.json`, for libraries that read the vocabulary themselves.

        A decoder that names the space's sign is spelled out in steps, which more of them understand.
        """
        content = json.loads(self._backend.to_str())
        match content["decoder"]:
            case {"type": "Metaspace", "replacement": sign}:
                space = {"type": "Replace", "pattern": {"String": sign}, "content": " "}
                steps = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
                content["decoder"] = {"type": "Sequence", "decoders": steps}
        return json.dumps(content)

    def template_source(self, *, with_tools: bool) -> str:
        """The Jinja source of the template that such a chat is rendered with; empty without one."""
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        return self._sources.get(name, "")

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the control tokens, which are no part of a reply's text."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of the tokens ``<0x00>`` to ``<0xFF>`` that stand for one byte each (byte fallback)."""
        ids = (self._backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(token_id for token_id in ids if token_id is not None)

    @cached_property
    def special_tokens(self) -> frozenset[str]:
        """The control tokens as they are spelled."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(token.content for token in added.values() if token.special)

    @cached_property
    def _plain_backend(self) -> tokenizers.Tokenizer:
        """The same, to which control tokens are text like any other."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        return backend

    def encode(self, text: str, add_special_tokens: bool = True, *, plain: bool = False) -> list[int]:
        """Token ids of `text`; `plain`: what spells a control token in it is text.

        Raises `RequestError` when it is not valid Unicode, or takes too long.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"The text has half a surrogate pair at character {error.start}", "Send valid Unicode text."
            ) from error
        if self._encoder is not None:
            ids: list[int] = self._encoder.ask({"text": text, "special": add_special_tokens, "plain": plain})
            return ids
        with _library_errors("text"):
            # the batch call gives the same ids, and lets other threads run meanwhile
            backend = self._plain_backend if plain else self._backend
            return backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, ids that are no token nothing."""
        with _library_errors("reply"):
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def token_to_id(self, token: str) -> int | None:
        """The id of exactly this token, or None."""
        return self._backend.token_to_id(token)

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, or None: a model may have more ids than tokens."""
        return self._backend.id_to_token(token_id)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **variables: Json,
    ) -> str:
        """The conversation as the text the model was trained on. `variables` go to the template.

        Raises `RequestError` when the model has no chat template, or the template refuses the
        messages or takes too long or too much memory; `EmptyPrompt` when there are none.
        """
        question = {
            "messages": plain(messages),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": plain(tools),
            "variables": plain(self._named_tokens | variables),
        }
        text: str = self._template(with_tools=tools is not None).ask(question)
        return text

    def encode_chat(self, messages: Sequence[Message], **options: Json) -> list[int]:
        """Token ids of `render_chat(messages, **options)`."""
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    def _template(self, *, with_tools: bool) -> Confined:
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise RequestError(
                "The model has no chat template" + (f" named {name!r}" if self._sources else ""),
                "Use plain completion (swarm generate --raw), or a model that was tuned for chat.",
            )
        return self._templates[name]


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Turn whatever the library raises into a `RequestError`."""
    try:
        yield
    except BaseException as error:
        if not is_the_librarys(error):
            raise
        raise RequestError(
            f"The model's tokenizer fails on this {what}: {error}", "Send another text."
        ) from error


def load_tokenizer(directory: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face directory. Raises `BrokenModel` naming the file at fault.

    Raises `UnsupportedModel` when replies cannot be decoded with it in bounded time and memory.
    """
    path = directory / "tokenizer.json"
    config = read_object(directory / "tokenizer_config.json")
    content, named = read_tokenizer(directory, config)
    companions = read_companions(directory, named | config, content)
    content = with_added(content, companions.added)
    if not has_tokenizer_file(directory):
        content = with_ends(content, companions.named, config)
    if problem := why_not_decodable(content):
        raise UnsupportedModel(f"{path} cannot be used: {problem}")
    plain = encodes_plainly(content)
    backend = load_backend(content if plain else for_decoding(content), path)
    check_added(backend, companions.added)
    setup = {"content": content, "path": str(path)}
    encoder = None if plain else Confined("The model's tokenizer", "tokenizer", setup, _TOKENIZER_LIMITS)
    return Tokenizer(backend, companions.named, _chat_templates(directory, config), encoder)


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    paths = sorted((directory / "additional_chat_templates").glob("*.jinja"))
    if len(paths) > MAX_TEMPLATES:
        raise BrokenModel(f"{directory} has more than {MAX_TEMPLATES} chat templates", PULL_AGAIN)
    files = {path.stem: path for path in paths}
    if (directory / "chat_template.jinja").exists():
        files["default"] = directory / "chat_template.jinja"
    if files:
        return {name: read_text(path, MAX_TEMPLATE_BYTES) for name, path in files.items()}
    match config.get("chat_template"):
        case None:
            return {}
        case str(template):
            return {"default": template}
        case list(entries) if all(_is_named_template(entry) for entry in entries):
            return {entry["name"]: entry["template"] for entry in entries}
    path = directory / "tokenizer_config.json"
    raise BrokenModel(f"{path}: chat_template is neither text nor named templates", PULL_AGAIN)


def _is_named_template(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    )
