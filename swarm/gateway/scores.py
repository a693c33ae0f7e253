"""Log probabilities as they are told: of a reply's tokens, and of a prompt's.

Pure. OpenAI's forms, and vLLM's `prompt_logprobs`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from msgspec import UNSET, UnsetType

from swarm.gateway.schema import PromptLogprob, TextLogprobs, TokenLogprob, TopLogprob
from swarm.model.detokenizer import StreamDecoder
from swarm.model.head import ScoredToken
from swarm.model.tokenizer import Tokenizer

TokenBytes = Callable[[int], bytes]

_LEAST = -9999.0  # JSON has no minus infinity; OpenAI's stand-in for it is this number
_CONTINUATION = range(0x80, 0xC0)  # bytes of UTF-8 with which no character begins


@dataclass(frozen=True, slots=True)
class PromptScores:
    """What is told of a prompt's tokens, and from what it is made."""

    token_bytes: TokenBytes
    prompt_ids: tuple[int, ...]
    echo_top: int | None = None  # likeliest tokens with each of the repeated prompt; None: these are not told
    echo_offsets: tuple[int, ...] = ()  # where each begins in the repeated text
    top: int | None = None  # as `echo_top`, of vLLM's `prompt_logprobs`

    def of_echo(self, scored: Sequence[ScoredToken]) -> TextLogprobs | None:
        """The tokens of a prompt that is repeated. Of the first no model says how likely it is."""
        if self.echo_top is None:
            return None
        text = cache(lambda token_id: self.token_bytes(token_id).decode(errors="replace"))
        name = cache(lambda token_id: _name(self.token_bytes(token_id)))
        tops: list[dict[str, float] | None] = [None]
        for each in scored:
            likeliest = (*each.top_logprobs[: self.echo_top], (each.token_id, each.logprob))
            tops.append(_by_name((name(token_id), logprob) for token_id, logprob in likeliest))
        return TextLogprobs(
            tokens=[text(token_id) for token_id in self.prompt_ids],
            token_logprobs=[None, *(max(each.logprob, _LEAST) for each in scored)],
            top_logprobs=tops,
            text_offset=list(self.echo_offsets),
        )

    def by_id(self, scored: Sequence[ScoredToken]) -> list[dict[str, PromptLogprob] | None] | UnsetType:
        """vLLM's form: the prompt's own token first, then the likeliest."""
        if self.top is None:
            return UNSET
        text = cache(lambda token_id: self.token_bytes(token_id).decode(errors="replace"))
        return [
            None,
            *(
                {
                    str(token_id): PromptLogprob(
                        logprob=max(logprob, _LEAST), rank=rank, decoded_token=text(token_id)
                    )
                    for token_id, logprob, rank in _ranked(each, self.top)
                }
                for each in scored
            ),
        ]


def spelled(token_bytes: TokenBytes, token_id: int, logprob: float) -> TopLogprob:
    """A token and how likely it was."""
    raw = token_bytes(token_id)
    return TopLogprob(token=raw.decode(errors="replace"), logprob=max(logprob, _LEAST), bytes=list(raw))


def told(
    token_bytes: TokenBytes, token_id: int, logprob: float, top: Sequence[tuple[int, float]]
) -> TokenLogprob:
    """A token, how likely it was, and what else was."""
    own = spelled(token_bytes, token_id, logprob)
    others = [spelled(token_bytes, *each) for each in top]
    return TokenLogprob(token=own.token, logprob=own.logprob, bytes=own.bytes, top_logprobs=others)


def text_logprobs(entries: Sequence[TokenLogprob], offsets: Sequence[int]) -> TextLogprobs:
    """Of a plain completion. A token that is not among the likeliest stands behind them."""
    return TextLogprobs(
        tokens=[entry.token for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[
            _by_name((_name(bytes(top.bytes)), top.logprob) for top in (*entry.top_logprobs, entry))
            for entry in entries
        ],
        text_offset=list(offsets),
    )


def joined(first: TextLogprobs | None, second: TextLogprobs | None) -> TextLogprobs | None:
    """One after the other."""
    if first is None or second is None:
        return first or second
    return TextLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


def characters(token: TopLogprob) -> int:
    """How many characters begin in a token: one that is cut into several tokens counts once."""
    return sum(byte not in _CONTINUATION for byte in token.bytes)


def offsets_of(ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Where each token begins in the text of all. Those that are no part of it begin where the next does."""
    decoder, offsets, length = StreamDecoder(tokenizer), [], 0
    for token_id in ids:
        offsets.append(length)
        length += len(decoder.push(token_id))
    return tuple(offsets)


def _ranked(scored: ScoredToken, top: int) -> Iterator[tuple[int, float, int]]:
    """The prompt's own token, then the likeliest: id, log probability and rank."""
    yield scored.token_id, scored.logprob, scored.rank
    for place, (token_id, logprob) in enumerate(scored.top_logprobs[:top]):
        if token_id != scored.token_id:
            yield token_id, logprob, place + 1


def _by_name(tops: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Of two that read the same, the likelier, which comes first."""
    named: dict[str, float] = {}
    for name, logprob in tops:
        named.setdefault(name, max(logprob, _LEAST))
    return named


def _name(raw: bytes) -> str:
    """A token's text; parts of characters, which have none, by their bytes, as OpenAI writes them."""
    text = raw.decode(errors="replace")
    return text if "\ufffd" not in text else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
