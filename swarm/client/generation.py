"""Generating one reply: feed, choose, decode, until something ends it.

`Generation` is what the library hands out: await it for the whole `Reply`, or iterate over its
`Piece`s as they come. Randomness is a function of seed and position only, so a reply that was
interrupted and resumed is the reply that was not.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypedDict

import torch

from swarm.client.context import Context
from swarm.client.reply import (
    FinishReason,
    HopReport,
    Piece,
    Reply,
    ResumeReport,
    report_hops,
    report_resumes,
)
from swarm.errors import ContextOverflow, EmptyPrompt
from swarm.model.detokenizer import StreamDecoder
from swarm.model.head import ScoredToken
from swarm.model.sampling import Constraint, Sampling, choose
from swarm.model.tokenizer import Tokenizer

Allowed = torch.Tensor | None  # tokens that may come next, [vocab] bool
Mask = Callable[[Sequence[int]], Allowed | Awaitable[Allowed]]  # of the output ids so far


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate, and when to stop."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    output_ids: tuple[int, ...] = ()  # of a reply that was begun before; it goes on after them
    max_tokens: int | None = None  # None: as much as the context holds
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    skip_special_tokens: bool = True
    top_logprobs: int = 0
    prompt_logprobs: int | None = None  # so many likeliest tokens with each of the prompt; None: not scored
    allowed: Mask | None = None


class Limits(TypedDict, total=False):
    """The fields of `Request` that may be given by name, to say when a reply ends and what it tells."""

    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    include_stop: bool
    skip_special_tokens: bool
    top_logprobs: int
    prompt_logprobs: int | None
    allowed: Mask | None
    output_ids: tuple[int, ...]


class Options(Limits, total=False):
    """All that may be given by name with a prompt."""

    sampling: Sampling | None


@dataclass(frozen=True, slots=True)
class Voice:
    """What turns a request into text: the model as the client has it."""

    model: str
    manifest: str
    tokenizer: Tokenizer
    context_length: int


def check_request(request: Request, voice: Voice) -> int:
    """How many tokens the reply may have. Raises `EmptyPrompt` or `ContextOverflow`."""
    prompt = len(request.prompt_ids)
    if not prompt:
        raise EmptyPrompt("The prompt is empty", "Give at least one token to continue from.")
    room = voice.context_length - prompt
    if room < (1 if request.max_tokens is None else request.max_tokens):
        wanted = f" and {request.max_tokens} for the reply" if request.max_tokens else ""
        raise ContextOverflow(
            f"The prompt has {prompt} tokens{wanted}; the model's context holds {voice.context_length}",
            "Shorten the prompt or ask for fewer tokens.",
        )
    return request.max_tokens if request.max_tokens is not None else room


class Generation:
    """One reply in the making. Await it for the `Reply`, or iterate over its pieces first.

    Nothing is computed before one of the two. `aclose` stops it early and frees its session.
    """

    def __init__(
        self,
        request: Request,
        voice: Voice,
        open_context: Callable[[], Awaitable[Context]],
        *,
        keep: bool = False,
    ) -> None:
        self.max_tokens = check_request(request, voice)
        self.request = request
        self.on_reply: Callable[[Reply], None] = lambda reply: None
        self._voice = voice
        self._open_context = open_context
        self._keep = keep
        self._token_ids = list(request.output_ids)
        self._texts: list[str] = []
        self._prompt_logprobs: tuple[ScoredToken, ...] = ()
        self._context: Context | None = None
        self._reply: Reply | None = None
        self._stream = self._run()

    @property
    def reply(self) -> Reply:
        """The whole reply, once the last piece is out."""
        if self._reply is None:
            raise RuntimeError("The reply is not complete yet: await the generation, or iterate to its end.")
        return self._reply

    @property
    def token_ids(self) -> Sequence[int]:
        """The tokens of the reply so far, those of an earlier process included."""
        return self._token_ids

    @property
    def prompt_logprobs(self) -> tuple[ScoredToken, ...]:
        """How likely each token of the prompt was, but the first; there when the first piece is."""
        return self._prompt_logprobs

    @property
    def hops(self) -> tuple[HopReport, ...]:
        """The chain as it is now; none before the first token and after the end."""
        return report_hops(self._context.session.hops) if self._context else ()

    @property
    def resumes(self) -> tuple[ResumeReport, ...]:
        """The losses survived so far."""
        session = self._context.session if self._context else None
        return report_resumes(session.resumes) if session else ()

    async def __aenter__(self) -> Self:
        """Use as a context manager to be sure that a reply left half-way is freed at once."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._stream

    def __await__(self) -> Generator[None, None, Reply]:
        return self._finish().__await__()

    async def aclose(self) -> None:
        """Stop, and free what the reply holds on the peers."""
        await self._stream.aclose()

    async def _finish(self) -> Reply:
        async for _ in self._stream:
            pass
        return self.reply

    async def _run(self) -> AsyncGenerator[Piece, None]:
        clock = asyncio.get_running_loop().time
        started_at = clock()
        context = self._context = await self._open_context()
        try:
            decoder = self._decoder()
            reason = self._reason_of_kept(decoder)
            if reason is None or self.request.prompt_logprobs is not None:
                logits = await self._read(context)
            if reason is not None:
                self._end(context, reason, 0.0, 0.0)
                return
            first_at = last_at = 0.0
            while True:
                piece = self._choose(logits, await self._allowed(), decoder)
                self._token_ids.append(piece.token_id)
                self._texts.append(piece.text)
                last_at = clock()
                first_at = first_at or last_at
                if piece.finish_reason is not None:
                    break
                yield piece
                logits = await context.feed([piece.token_id])
            self._end(context, piece.finish_reason, first_at - started_at, last_at - first_at)
            yield piece
        finally:
            if not self._keep:
                await context.close()

    async def _read(self, context: Context) -> torch.Tensor:
        """Feed all that there is; gives the logits that follow it."""
        request, ids = self.request, [*self.request.prompt_ids, *self._token_ids]
        if request.prompt_logprobs is None:
            return await context.move_to(ids)
        scored, logits = await context.score(ids, len(request.prompt_ids), request.prompt_logprobs)
        self._prompt_logprobs = tuple(scored)
        return logits

    def _decoder(self) -> StreamDecoder:
        request = self.request
        decoder = StreamDecoder(
            self._voice.tokenizer,
            request.prompt_ids,
            stop=request.stop,
            include_stop=request.include_stop,
            skip_special_tokens=request.skip_special_tokens,
        )
        self._texts = [decoder.push(token_id) for token_id in request.output_ids]
        return decoder

    async def _allowed(self) -> Allowed:
        """Which tokens may come next; computing it may take a while."""
        if self.request.allowed is None:
            return None
        allowed = self.request.allowed(self._token_ids)
        return await allowed if isinstance(allowed, Awaitable) else allowed

    def _choose(self, logits: torch.Tensor, allowed: Allowed, decoder: StreamDecoder) -> Piece:
        request = self.request
        output_ids = self._token_ids
        if len(output_ids) < request.min_tokens and request.stop_token_ids:
            logits = logits.index_fill(0, torch.tensor(sorted(request.stop_token_ids)), float("-inf"))
        choice = choose(
            logits,
            request.sampling,
            request.prompt_ids,
            output_ids,
            Constraint(allowed, request.top_logprobs),
        )
        text = decoder.push(choice.token_id)
        reason = self._finish_reason(choice.token_id, len(output_ids) + 1, decoder)
        if reason is not None and decoder.stopped_by is None:
            text += decoder.finish()
        return Piece(text, choice.token_id, choice.logprob, choice.top_logprobs, reason, decoder.stopped_by)

    def _reason_of_kept(self, decoder: StreamDecoder) -> FinishReason | None:
        """Why there is nothing to add: the process that began it had ended it, or no token is asked for."""
        kept = self.request.output_ids
        if not kept and self.max_tokens == 0:
            return "length"
        reason = self._finish_reason(kept[-1], len(kept), decoder) if kept else None
        if reason is not None and decoder.stopped_by is None:
            self._texts.append(decoder.finish())
        return reason

    def _finish_reason(self, token_id: int, produced: int, decoder: StreamDecoder) -> FinishReason | None:
        if token_id in self.request.stop_token_ids or decoder.stopped_by is not None:
            return "stop"
        return "length" if produced >= self.max_tokens else None

    def _end(self, context: Context, reason: FinishReason, ttft_s: float, decode_s: float) -> None:
        self._reply = self._report(context, reason, ttft_s, decode_s)
        self.on_reply(self._reply)

    def _report(self, context: Context, reason: FinishReason, ttft_s: float, decode_s: float) -> Reply:
        session = context.session
        token_ids = tuple(self._token_ids)
        steps = len(token_ids) - len(self.request.output_ids) - 1
        return Reply(
            model=self._voice.model,
            manifest=self._voice.manifest,
            text="".join(self._texts),
            token_ids=token_ids,
            finish_reason=reason,
            prompt_tokens=len(self.request.prompt_ids),
            completion_tokens=len(token_ids),
            ttft_s=round(ttft_s, 4),
            tokens_per_s=round(steps / decode_s, 2) if decode_s > 0 else 0.0,
            hops=report_hops(session.hops),
            resumes=report_resumes(session.resumes),
            prompt_logprobs=self._prompt_logprobs,
        )
