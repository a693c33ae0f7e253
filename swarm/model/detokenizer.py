"""Streams a reply: token ids in, pieces of text out that will never have to be taken back.

Held back are an incomplete UTF-8 sequence and whatever could begin a stop string. Invariant: without
a stop string the pieces joined equal `Tokenizer.decode` of all ids, however the text is cut into tokens.
"""

from collections.abc import Sequence

from swarm.errors import UsageError
from swarm.model.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Decoded again with each token, because a decoder may treat the first tokens of a text differently.
_CONTEXT_TOKENS = 8


class StreamDecoder:
    """Decodes one reply, token by token.

    `stopped_by` is the stop string that ended the text, or None; after it, no more text comes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        """`include_stop` leaves the stop string in the text. Raises `UsageError` for an empty one."""
        self._text = _IncrementalText(tokenizer, skip_special_tokens)
        self._stops = _StopScanner(stop, include_stop)

    @property
    def stopped_by(self) -> str | None:
        return self._stops.found

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is certain by now, often none."""
        return self._stops.push(self._text.push(token_id))

    def finish(self) -> str:
        """The reply has ended; returns the text held back."""
        return self._stops.push(self._text.finish()) + self._stops.finish()


class _IncrementalText:
    """Token ids to text whose pieces joined equal the text of all ids.

    Decodes a short window of the last tokens again with each new one and gives what is new and
    settled. Unsettled is a last U+FFFD, which may be the beginning of a character (several never are:
    each but the last stands for bytes already refused), and a run of byte-fallback tokens, which the
    decoder judges as a whole.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._window: list[int] = []
        self._given = 0  # characters of the window's text that were returned

    def push(self, token_id: int) -> str:
        if token_id in self._skipped or self._tokenizer.id_to_token(token_id) is None:
            return ""
        self._window.append(token_id)
        if token_id in self._tokenizer.byte_ids:
            return ""
        text = self._decode(self._window)
        settled = len(text) - text.endswith(_REPLACEMENT)
        piece = text[self._given : settled]
        self._given = max(self._given, settled)
        if settled == len(text):
            self._shrink()
        return piece

    def finish(self) -> str:
        text = self._decode(self._window)
        piece = text[self._given :]
        self._given = len(text)
        return piece

    def _shrink(self) -> None:
        # The context is safe to begin with: every token in it is at least a byte, so it is longer than
        # a character cut at its front and than the space that a decoder strips there.
        if len(self._window) >= 2 * _CONTEXT_TOKENS:
            self._window = self._window[-_CONTEXT_TOKENS:]
            self._given = len(self._decode(self._window))

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


class _StopScanner:
    """Ends a text before (or after) the stop string that is completed first.

    Looks at characters only, so where the pieces of the text are cut makes no difference.
    """

    def __init__(self, stops: Sequence[str], include_stop: bool) -> None:
        if not all(stops):
            raise UsageError("A stop string is empty", "Leave it out, or give at least one character.")
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        if self.found is not None:
            return ""
        text = self._held + piece
        matches = [(text.index(stop) + len(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if matches:
            end, _, self.found = min(matches)
            self._held = ""
            return text[: end if self._include_stop else end - len(self.found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
