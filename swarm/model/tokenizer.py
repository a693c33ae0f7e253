"""Text to token ids and back, and conversations to token ids, as transformers does it.

Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and the chat templates of a
Hugging Face directory; transformers itself is not needed. A conversation is encoded without adding
special tokens, because its template has written them.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from swarm.errors import BrokenModel, RequestError
from swarm.model.chat_template import ChatTemplate, Json, Message

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PULL_AGAIN = "Pull the model again, or point to a complete directory."


class Tokenizer:
    """A tokenizer with its chat templates by name; ``default`` is the one for plain chats."""

    def __init__(
        self, backend: tokenizers.Tokenizer, named_tokens: Mapping[str, str], templates: Mapping[str, str]
    ) -> None:
        self._backend = backend
        self._named_tokens = dict(named_tokens)
        self._sources = dict(templates)
        self._templates: dict[str, ChatTemplate] = {}  # compiled at first use

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
        """The content of `tokenizer.json`, for libraries that read the vocabulary themselves."""
        return self._backend.to_str()

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

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Raises `RequestError` when it is not valid Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"The text has half a surrogate pair at character {error.start}", "Send valid Unicode text."
            ) from error
        # the batch call gives the same ids, and lets other threads run meanwhile
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD, ids that are no token nothing."""
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

        Raises `RequestError` when the model has no chat template or the template refuses the
        messages, `EmptyPrompt` when there are none.
        """
        return self._template(with_tools=tools is not None).render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=self._named_tokens | variables,
        )

    def encode_chat(self, messages: Sequence[Message], **options: Json) -> list[int]:
        """Token ids of `render_chat(messages, **options)`."""
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    def _template(self, *, with_tools: bool) -> ChatTemplate:
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise RequestError(
                "The model has no chat template" + (f" named {name!r}" if self._sources else ""),
                "Use plain completion (swarm generate --raw), or a model that was tuned for chat.",
            )
        if name not in self._templates:
            self._templates[name] = ChatTemplate(self._sources[name])
        return self._templates[name]


def load_tokenizer(directory: Path) -> Tokenizer:
    """Read the tokenizer of a Hugging Face directory. Raises `BrokenModel` naming the file at fault."""
    backend = _load_backend(directory / "tokenizer.json")
    config = _read_json(directory / "tokenizer_config.json")
    return Tokenizer(backend, _named_tokens(directory, config), _chat_templates(directory, config))


def _load_backend(path: Path) -> tokenizers.Tokenizer:
    if not path.is_file():
        raise BrokenModel(f"{path} is missing", _PULL_AGAIN)
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower than Exception
        raise BrokenModel(f"{path} is not a tokenizer: {error}", _PULL_AGAIN) from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # not UTF-8, or not JSON
        raise BrokenModel(f"{path} is not JSON: {error}", _PULL_AGAIN) from error
    if not isinstance(value, dict):
        raise BrokenModel(f"{path} is not a JSON object", _PULL_AGAIN)
    return value


def _named_tokens(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    # transformers reads the older file only where the newer one does not list the added tokens.
    if "added_tokens_decoder" not in config:
        config = config | _read_json(directory / "special_tokens_map.json")
    tokens: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    files = {path.stem: path for path in (directory / "additional_chat_templates").glob("*.jinja")}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    template = config.get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    try:
        return {entry["name"]: entry["template"] for entry in template or []}
    except (TypeError, KeyError) as error:
        path = directory / "tokenizer_config.json"
        raise BrokenModel(
            f"{path}: chat_template is neither text nor named templates", _PULL_AGAIN
        ) from error
