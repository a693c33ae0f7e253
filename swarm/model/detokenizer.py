"""Streams a reply: token ids in, pieces of text out that will never have to be taken back.

Held back are an incomplete UTF-8 sequence and whatever could begin a stop string. Invariant: without a stop
string the pieces joined are what `Tokenizer.decode` of prompt and reply together adds to that of the prompt,
however the text is cut into tokens. So a reply keeps the space it begins with, which many decoders strip from
the beginning of a text, and a character that the prompt begins and the reply ends is the reply's.
"""

from collections.abc import Sequence
from itertools import islice, takewhile

from swarm.errors import UsageError
from swarm.model.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
# Decoded again with each token, because a decoder may treat the first tokens of a text differently.
_CONTEXT_TOKENS = 8
# Of a run of bytes that a prompt ends with. The beginning of a longer one is taken to be whole characters.
_RUN_TOKENS = 1024
_CHARACTER_BYTES = 4


class StreamDecoder:
    """Decodes one reply to a prompt, token by token.

    `stopped_by` is the stop string that ended the text, or None; after it, no more text comes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        """`include_stop` leaves the stop string in the text. Raises `UsageError` for an empty one."""
        self._text = _IncrementalText(tokenizer, prompt_ids, skip_special_tokens)
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
    """Token ids to text whose pieces joined equal what the ids add to the text of the prompt.

    Decodes a short window of the last tokens again with each new one and gives what is new and
    settled. Unsettled is a last U+FFFD, which may be the beginning of a character (several never are:
    each but the last stands for bytes already refused), and a run of byte-fallback tokens, which the
    decoder judges as a whole. tokenizers' own `DecodeStream` takes a prompt too, but it fails on such a run
    that turns out to be no text, and never gives what it holds back at the end.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._window = self._end_of(prompt_ids)
        self._told = self._readings(self._window)  # text of the window that is the prompt's, or was given

    def push(self, token_id: int) -> str:
        if not self._has_text(token_id):
            return ""
        self._window.append(token_id)
        if token_id in self._tokenizer.byte_ids:
            return ""
        text = self._decode(self._window)
        settled = text.removesuffix(_REPLACEMENT)
        piece = self._tell(settled)
        if len(settled) == len(text):
            self._shrink()
        return piece

    def finish(self) -> str:
        return self._tell(self._decode(self._window))

    def _tell(self, text: str) -> str:
        """What `text` has beyond what was told."""
        if any(told.startswith(text) for told in self._told):
            return ""
        start = max(_shared(told, text) for told in self._told)
        self._told = [text]
        return text[start:]

    def _readings(self, prompt: list[int]) -> list[str]:
        """The text of a prompt, and that of it without the character that it may break off in.

        One byte that is missing makes a whole run of bytes something else.
        """
        texts = [self._decode(prompt)]
        if texts[0].endswith(_REPLACEMENT):
            broken = takewhile(self._tokenizer.byte_ids.__contains__, prompt[:-_CHARACTER_BYTES:-1])
            whole = (self._decode(prompt[:-count]) for count, _ in enumerate(broken, 1))
            texts += (text for text in whole if not text.endswith(_REPLACEMENT))
        return texts

    def _has_text(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._tokenizer.id_to_token(token_id) is not None

    def _end_of(self, ids: Sequence[int]) -> list[int]:
        """As much of the end of `ids` as matters to what follows: some tokens, or the run of bytes there."""
        texts = filter(self._has_text, reversed(ids))
        end = list(islice(texts, _CONTEXT_TOKENS))
        if self._tokenizer.byte_ids.issuperset(end):
            end += islice(takewhile(self._tokenizer.byte_ids.__contains__, texts), _RUN_TOKENS)
        whole = len(end) < _CONTEXT_TOKENS + _RUN_TOKENS
        return end[::-1] if whole else self._without_half(end[::-1])

    def _without_half(self, run: list[int]) -> list[int]:
        """A run that was cut, without the bytes at its front that go on with a character."""
        spelled = (self._tokenizer.id_to_token(token_id) or "" for token_id in run[:_CHARACTER_BYTES])
        begun = (place for place, byte in enumerate(spelled) if not "<0x80>" <= byte <= "<0xBF>")
        return run[next(begun, 0) :]

    def _shrink(self) -> None:
        # The context is safe to begin with: every token in it is at least a byte, so it is longer than
        # a character cut at its front and than the space that a decoder strips there.
        if len(self._window) >= 2 * _CONTEXT_TOKENS:
            self._window = self._window[-_CONTEXT_TOKENS:]
            self._told = [self._decode(self._window)]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _shared(told: str, text: str) -> int:
    """How many characters both begin with."""
    if text.startswith(told):
        return len(told)
    return next(place for place, (a, b) in enumerate(zip(told, text, strict=False)) if a != b)


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
