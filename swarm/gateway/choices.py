"""One choice of a reply as it grows: from the client library's pieces to what is new for a reader.

Pure. What a stream tells is what the whole answer is made of, so that the two cannot differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from swarm.client.generation import Request
from swarm.client.reply import HopReport, Piece, ResumeReport
from swarm.gateway.schema import (
    ChatMessage,
    ChoiceProvenance,
    FinishReason,
    FunctionCall,
    PromptLogprob,
    SwarmHop,
    SwarmResume,
    TextLogprobs,
    TokenLogprob,
    ToolCall,
)
from swarm.gateway.scores import PromptScores, TokenBytes, characters, told
from swarm.gateway.tools import Call, ToolParser
from swarm.model.head import ScoredToken


@dataclass(frozen=True, slots=True)
class NumberedCall:
    """A call with its place in the reply."""

    index: int
    id: str
    call: Call


@dataclass(frozen=True, slots=True)
class News:
    """What one token added to a choice."""

    index: int
    first: bool = False
    echo: str = ""  # of the prompt, before the first text
    text: str = ""
    calls: tuple[NumberedCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    echo_logprobs: TextLogprobs | None = None  # of its tokens
    offset: int = 0  # characters of the tokens before
    finish_reason: FinishReason | None = None


@dataclass(slots=True)
class Choice:
    """One choice: what it is to be, and what there is of it."""

    index: int
    request: Request
    new_call_id: Callable[[], str]
    echo: str = ""  # of the prompt
    parser: ToolParser | None = None
    token_bytes: TokenBytes | None = None  # None: no log probabilities are told
    prompt_scores: PromptScores | None = None  # None: none of the prompt's
    echo_logprobs: TextLogprobs | None = None  # of the prompt's tokens, where it is repeated with them
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET  # of them, by vLLM's name
    output_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    calls: list[NumberedCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_chars: int = 0  # of the tokens whose log probabilities are told
    finish_reason: FinishReason | None = None
    stopped_by: str | None = None  # a stop string
    hops: tuple[HopReport, ...] = ()
    resumes: tuple[ResumeReport, ...] = ()
    ttft_s: float | None = None
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def text(self) -> str:
        """The text so far, without calls."""
        return "".join(self.texts)

    def message(self) -> ChatMessage:
        """What was said, as a chat that goes on tells it."""
        calls = [
            ToolCall(id=each.id, function=FunctionCall(name=each.call.name, arguments=each.call.arguments))
            for each in self.calls
        ]
        return ChatMessage(role="assistant", content=self.text, tool_calls=calls or None)

    def push(self, piece: Piece) -> News:
        """Take a piece in; gives what is new."""
        first = not self.output_ids
        if first:
            self.token_chars = len(self.echo)
        self.output_ids.append(piece.token_id)
        logprobs = (
            (told(self.token_bytes, piece.token_id, piece.logprob, piece.top_logprobs),)
            if self.token_bytes
            else ()
        )
        offset = self.token_chars
        self.token_chars += sum(map(characters, logprobs))
        parts = self.parser.push(piece.text) if self.parser else [piece.text]
        if piece.finish_reason is not None and self.parser:
            parts += self.parser.finish()
        text = "".join(part for part in parts if isinstance(part, str))
        calls = tuple(
            NumberedCall(len(self.calls) + place, self.new_call_id(), call)
            for place, call in enumerate(part for part in parts if isinstance(part, Call))
        )
        self.texts.append(text)
        self.calls += calls
        self.logprobs += logprobs
        self.finish_reason, self.stopped_by = self._finish_reason(piece), piece.stopped_by
        echo, echo_logprobs = (self.echo, self.echo_logprobs) if first else ("", None)
        return News(self.index, first, echo, text, calls, logprobs, echo_logprobs, offset, self.finish_reason)

    def end_empty(self, reason: FinishReason) -> News:
        """It is over without a token; gives what is to be told."""
        self.finish_reason = reason
        return News(self.index, True, self.echo, echo_logprobs=self.echo_logprobs, finish_reason=reason)

    def take_scores(self, scored: Sequence[ScoredToken]) -> None:
        """The prompt is scored. Making what is told of a long one may take a second."""
        if self.prompt_scores is not None:
            self.echo_logprobs = self.prompt_scores.of_echo(scored)
            self.prompt_logprobs = self.prompt_scores.by_id(scored)

    def provenance(self) -> ChoiceProvenance:
        """How it came about so far."""
        steps = len(self.output_ids) - 1
        spent_s = self.last_at - self.first_at
        return ChoiceProvenance(
            index=self.index,
            hops=[
                SwarmHop(
                    peer=hop.peer,
                    blocks=hop.blocks,
                    dtype=hop.dtype,
                    quant=hop.quant,
                    compute_ms=hop.compute_ms,
                    network_ms=hop.network_ms,
                    bytes_per_token=hop.bytes_per_token,
                )
                for hop in self.hops
            ],
            resumes=[
                SwarmResume(
                    at_token=resume.at_token,
                    lost_peer=resume.lost_peer,
                    reason=resume.reason,
                    replayed_tokens=resume.replayed_tokens,
                    stall_s=resume.stall_s,
                )
                for resume in self.resumes
            ],
            ttft_s=self.ttft_s,
            tokens_per_s=round(steps / spent_s, 2) if steps > 0 and spent_s > 0 else None,
        )

    def _finish_reason(self, piece: Piece) -> FinishReason | None:
        if piece.finish_reason == "stop" and self.calls:
            return "tool_calls"
        return piece.finish_reason


def completion_tokens(choices: Sequence[Choice]) -> int:
    """Tokens of all choices."""
    return sum(len(choice.output_ids) for choice in choices)
