"""Texts to token ids, refused before they are tokenised whole when they are too long for the model.

Tokenising takes a second and some hundred megabytes for a few megabytes of text. What has more bytes than
the longest tokens could hold is refused unseen; a long text is counted piece by piece first.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from swarm.errors import ContextOverflow
from swarm.model.guarded_text import Part
from swarm.model.tokenizer import Tokenizer

PIECE_CHARS = 2**16
COSTLY_BYTES = 2**20
DENSE_TOKEN_BYTES = 16  # on average, over a text of more than that: only runs of spaces have more
CUT_TOKENS = 64  # by which the pieces on both sides of a cut may differ from the whole


@dataclass(frozen=True, slots=True)
class Encoder:
    """The tokenizer of a model with room for so many tokens."""

    tokenizer: Tokenizer
    context_length: int
    longest_token_bytes: int

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids. Raises `ContextOverflow` when it does not fit, `RequestError` for broken Unicode."""
        if len(text.encode(errors="surrogatepass")) > self._max_bytes:
            raise self._too_long(f"more than {self._max_bytes} bytes")
        if len(text) > PIECE_CHARS:
            self._count(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def encode_parts(self, parts: Iterable[Part]) -> list[int]:
        """Token ids of a prompt in parts. Raises as `encode`."""
        parts = list(parts)
        if sum(len(part.text.encode(errors="surrogatepass")) for part in parts) > self._max_bytes:
            raise self._too_long(f"more than {self._max_bytes} bytes")
        ids: list[int] = []
        for part in parts:
            if len(part.text) > PIECE_CHARS:
                self._count(part.text)
            ids += self.tokenizer.encode(part.text, add_special_tokens=False, plain=part.plain)
            if len(ids) > self.context_length:
                raise self._too_long(f"more than {self.context_length} tokens")
        return ids

    @property
    def _max_bytes(self) -> int:
        """More than the context can hold; and for a costly text, more than language or code fits into it."""
        costly = max(COSTLY_BYTES, self.context_length * DENSE_TOKEN_BYTES)
        return min(self.context_length * self.longest_token_bytes, costly)

    def _count(self, text: str) -> None:
        tokens, allowed = 0, self.context_length
        for start in range(0, len(text), PIECE_CHARS):
            piece = text[start : start + PIECE_CHARS]
            tokens += len(self.tokenizer.encode(piece, add_special_tokens=False))
            allowed += CUT_TOKENS
            if tokens > allowed:
                raise self._too_long(f"more than {self.context_length} tokens")

    def _too_long(self, size: str) -> ContextOverflow:
        return ContextOverflow(
            f"The prompt has {size}; the model's context holds {self.context_length}", "Shorten the prompt."
        )


def encoder_of(tokenizer: Tokenizer, context_length: int) -> Encoder:
    """Looks at every token once. A spelling is never shorter than the bytes it stands for."""
    spellings = (tokenizer.id_to_token(token_id) or "" for token_id in range(tokenizer.vocab_size))
    return Encoder(tokenizer, context_length, max((len(each.encode()) for each in spellings), default=1))
