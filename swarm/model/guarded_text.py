"""Texts of strangers in a prompt: what spells a special token in them is plain text, not that token.

A conversation becomes one text before it is encoded, and nothing in it tells a marker of the template from
the same characters in what somebody wrote. So a character that occurs nowhere else is put into those that
somebody wrote, before the template is rendered; the parts of the text that hold it are encoded without
special tokens.
Pure.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from swarm.errors import RequestError

Json: TypeAlias = Any  # what `json.loads` may give

_GUARDS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # characters that are never any in a text


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a prompt. `plain`: special tokens in it are none."""

    text: str
    plain: bool


class Guard:
    """Marks special tokens that somebody wrote, and finds them again in the prompt."""

    def __init__(self, special_tokens: Collection[str]) -> None:
        texts = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._mark = ""

    def mark(self, value: Json) -> Json:
        """The same with every special token in its texts marked. Raises `RequestError` if it cannot be."""
        texts = list(_texts(value))
        if not any(self._special.search(text) for text in texts):
            return value
        self._mark = next((each for each in _GUARDS if not any(each in text for text in texts)), "")
        if not self._mark:
            raise RequestError("The conversation holds every character that is none", "Send valid text.")
        return self._marked(value)

    def parts(self, prompt: str) -> Iterator[Part]:
        """The prompt without marks, in parts whose ids one after the other are its own."""
        if not self._mark or self._mark not in prompt:
            yield Part(prompt, plain=False)
            return
        run, start = "", 0
        for end, after in [(m.start(), m.end()) for m in self._special.finditer(prompt)] + [
            (len(prompt),) * 2
        ]:
            written = prompt[start:end]
            if self._mark in written:
                if run:
                    yield Part(run, plain=False)
                yield Part(written.replace(self._mark, ""), plain=True)
                run = prompt[end:after]
            else:
                run += prompt[start:after]
            start = after
        if run:
            yield Part(run, plain=False)

    def _marked(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._special.sub(lambda found: found[0][0] + self._mark + found[0][1:], value)
        if isinstance(value, Mapping):
            return {self._marked(name): self._marked(item) for name, item in value.items()}
        return [self._marked(item) for item in value] if isinstance(value, list) else value


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield name
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
