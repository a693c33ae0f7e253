"""From an HTTP body to what the client library generates; every refusal happens here, before a byte is sent.

Knows OpenAI's fields and the model's limits, and no HTTP.
"""

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from swarm.client.generation import Request, check_request
from swarm.errors import ContextOverflow, EmptyPrompt, RequestError
from swarm.gateway import tools
from swarm.gateway.models import HostedModel
from swarm.gateway.prompts import encode_chat, tool_style
from swarm.gateway.refusal import bad
from swarm.gateway.schema import (
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    Tool,
)
from swarm.gateway.scores import PromptScores, TokenBytes, offsets_of
from swarm.gateway.structured_output import OutputFormat, form_of, form_of_chat
from swarm.model.sampling import Sampling

Result = TypeVar("Result")

COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
MAX_CHOICES = 64
MAX_SCORES = 2**18  # of a request's prompts: what is told of them takes up to 200 MB
_BYTES_PER_NUMBER = 36  # and its place in a list
_SAMPLED = (
    "temperature", "top_p", "top_k", "min_p", "seed",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that one HTTP request asks for: a request of the client library for each choice."""

    requests: tuple[Request, ...]
    prompt_tokens: int  # of all prompts, each once
    top_logprobs: int | None = None  # None: no log probabilities
    form: OutputFormat | None = None
    tool_style: tools.Style | None = None  # None: calls are not looked for
    tool_names: frozenset[str] = frozenset()
    echoes: tuple[str, ...] = ()  # the prompt of each choice, where it is to be repeated
    echo_offsets: tuple[tuple[int, ...], ...] = ()  # where its tokens begin, where these are told
    prompt_logprobs: int | None = None  # as `top_logprobs`, of the prompt by vLLM's name
    prompt_field: str = "messages"

    @property
    def tells_logprobs(self) -> bool:
        """Whether tokens are told with how likely they were."""
        return self.top_logprobs is not None or self.prompt_logprobs is not None

    def prompt_scores(self, index: int, token_bytes: TokenBytes) -> PromptScores | None:
        """How the scores of a choice's prompt are told, where they are."""
        request = self.requests[index]
        if request.prompt_logprobs is None:
            return None
        offsets = self.echo_offsets[index] if self.echo_offsets else ()
        echo_top = self.top_logprobs if offsets else None
        return PromptScores(token_bytes, request.prompt_ids, echo_top, offsets, self.prompt_logprobs)

    @property
    def size_bytes(self) -> int:
        """The memory that it holds, about; prompt and settings are the same for all choices of a prompt."""
        request = self.requests[0]
        texts = sum(map(sys.getsizeof, (*request.stop, *self.echoes)))
        numbers = self.prompt_tokens + len(request.sampling.logit_bias)
        return texts + _BYTES_PER_NUMBER * (numbers + sum(map(len, set(self.echo_offsets))))


class Runner(Protocol):
    """Runs a function off the event loop, when there is room for one more."""

    def __call__(self, work: Callable[[], Result]) -> Awaitable[Result]: ...


async def chat_task(body: ChatRequest, hosted: HostedModel, run: Runner) -> Task:
    """Read a chat. Raises a `Refusal` or another `SwarmError` for what cannot be done."""
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs", "top_logprobs is set without logprobs", "Set logprobs to true.")
    _check_whole(body)
    return await run(lambda: _read_chat(body, hosted))


async def completion_task(body: CompletionRequest, hosted: HostedModel, run: Runner) -> Task:
    """Read a plain completion. Raises as `chat_task`."""
    if body.suffix:
        raise bad("suffix", "The model cannot fill a gap before a suffix", "Leave suffix out.", "unsupported")
    if body.best_of not in (None, body.n or 1):
        raise bad("best_of", "best_of other than n is not supported", "Leave it out.", "unsupported")
    _check_whole(body)
    return await run(lambda: _read_completion(body, hosted))


async def tokenize(body: TokenizeRequest, hosted: HostedModel, run: Runner) -> list[int]:
    """The token ids of a prompt or a chat. Raises a `Refusal`."""
    if (body.prompt is None) == (body.messages is None):
        raise bad("prompt", "Either prompt or messages must be given", "Send one of them.")
    if body.prompt is not None:
        prompt, special = body.prompt, body.add_special_tokens is not False
        return await run(lambda: _encoded(prompt, hosted, add_special_tokens=special))
    chat = ChatRequest(
        model=body.model,
        messages=body.messages or [],
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    return await run(lambda: _chat_ids(chat, hosted, body.tools or []))


async def count_chat(body: ChatRequest, hosted: HostedModel, run: Runner) -> int:
    """How many tokens the prompt of a chat has. Raises a `Refusal`."""
    return len(await run(lambda: _chat_ids(body, hosted, _offered(body))))


async def detokenize(body: DetokenizeRequest, hosted: HostedModel, run: Runner) -> str:
    """The text of token ids, control tokens too. Raises a `Refusal`."""
    config, tokenizer = hosted.client.model.config, hosted.client.model.tokenizer
    ids = _known(body.tokens, "tokens", config.vocab_size)
    return await run(lambda: tokenizer.decode(ids, skip_special_tokens=False))


def _check_whole(body: CommonRequest) -> None:
    if body.stream and body.prompt_logprobs is not None:
        raise bad(
            "prompt_logprobs",
            "prompt_logprobs are not told in a stream",
            "Leave stream out, or ask a completion for echo and logprobs.",
            "unsupported",
        )


def _encoded(prompt: str, hosted: HostedModel, *, add_special_tokens: bool) -> list[int]:
    try:
        return hosted.encoder.encode(prompt, add_special_tokens=add_special_tokens)
    except RequestError as error:
        raise bad("prompt", error.what, error.fix, error.code) from error


def _read_chat(body: ChatRequest, hosted: HostedModel) -> Task:
    offered = _offered(body)
    style = tool_style(hosted.client.model.tokenizer, offered)
    form = form_of_chat(body, offered, style)
    prompt_ids = _chat_ids(body, hosted, offered)
    wanted = body.max_completion_tokens or body.max_tokens
    template = _request(body, hosted, prompt_ids, wanted, body.top_logprobs or 0)
    first, *others = _copies(template, body.n or 1)
    task = Task(
        requests=(replace(first, prompt_logprobs=body.prompt_logprobs), *others),  # all have one prompt
        prompt_tokens=len(prompt_ids),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=form,
        tool_style=style,
        tool_names=frozenset(tool.function.name for tool in offered),
        prompt_logprobs=body.prompt_logprobs,
    )
    _check(task, hosted)
    return task


def _offered(body: ChatRequest) -> list[Tool]:
    return [] if body.tool_choice == "none" else body.tools or []


def _read_completion(body: CompletionRequest, hosted: HostedModel) -> Task:
    n = body.n or 1
    prompts = read_prompts(body.prompt, hosted, "prompt", n=n)
    wanted = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    tops = [body.prompt_logprobs, body.logprobs if body.echo else None]
    scored = max((top for top in tops if top is not None), default=None)
    requests: list[Request] = []
    for prompt in prompts:
        request = _request(body, hosted, prompt, wanted, body.logprobs or 0)
        requests += _copies(replace(request, prompt_logprobs=scored), n)
    tokenizer = hosted.client.model.tokenizer
    task = Task(
        requests=tuple(requests),
        prompt_tokens=sum(map(len, prompts)),
        top_logprobs=body.logprobs,
        form=form_of(body.structured_outputs) if body.structured_outputs else None,
        echoes=_echoes(requests, hosted) if body.echo else (),
        echo_offsets=_each((offsets_of(prompt, tokenizer) for prompt in prompts), n)
        if body.echo and body.logprobs is not None
        else (),
        prompt_logprobs=body.prompt_logprobs,
        prompt_field="prompt",
    )
    _check(task, hosted)
    return task


def _echoes(requests: Sequence[Request], hosted: HostedModel) -> tuple[str, ...]:
    """The prompt of each as text, to which the reply's is what follows."""
    decode = hosted.client.model.tokenizer.decode
    return tuple(decode(each.prompt_ids, skip_special_tokens=each.skip_special_tokens) for each in requests)


def _request(
    body: CommonRequest,
    hosted: HostedModel,
    prompt_ids: Sequence[int],
    max_tokens: int | None,
    top_logprobs: int,
) -> Request:
    config = hosted.client.model.config
    stop_ids = set(body.stop_token_ids or ())
    if not body.ignore_eos:
        stop_ids |= set(config.stop_token_ids)
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise bad(
            "min_tokens", f"min_tokens is {body.min_tokens}, more than the {max_tokens} tokens asked for"
        )
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return hosted.client.request(
        tuple(prompt_ids),
        _sampling(body, hosted),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=tuple(stop),
        stop_token_ids=frozenset(_known(stop_ids, "stop_token_ids", config.vocab_size)),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        top_logprobs=top_logprobs,
    )


def _sampling(body: CommonRequest, hosted: HostedModel) -> Sampling:
    """The model's own defaults with what the body sets."""
    given: dict[str, Any] = {
        name: getattr(body, name) for name in _SAMPLED if getattr(body, name) is not None
    }
    if given.get("top_k") == -1:
        given["top_k"] = 0
    if body.logit_bias:
        given["logit_bias"] = _logit_bias(body.logit_bias, hosted.client.model.config.vocab_size)
    return replace(hosted.client.model.sampling, **given)


def _logit_bias(biases: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    if not all(text.isascii() and text.isdecimal() and len(text) < 11 for text in biases):
        raise bad("logit_bias", "A key of logit_bias is not a token id", 'Write ids as text: {"504": -100}.')
    return {_known([int(text)], "logit_bias", vocab_size)[0]: bias for text, bias in biases.items()}


def _known(ids: Sequence[int] | set[int], param: str, vocab_size: int) -> list[int]:
    for token_id in ids:
        if token_id >= vocab_size:
            raise bad(param, f"{param} names the token {token_id}; the model has {vocab_size}")
    return list(ids)


def _copies(request: Request, n: int) -> tuple[Request, ...]:
    """The same for each choice, with a seed of its own."""
    seed = request.sampling.seed or 0
    seeds = [(seed + index + 2**63) % 2**64 - 2**63 for index in range(n)]
    return tuple(replace(request, sampling=replace(request.sampling, seed=each)) for each in seeds)


def _each(values: Iterable[Result], n: int) -> tuple[Result, ...]:
    """Of every prompt, for each of its `n` choices."""
    return tuple(value for value in values for _ in range(n))


def _check(task: Task, hosted: HostedModel) -> None:
    """What can be known before the first token."""
    scores = sum(
        len(request.prompt_ids) * (request.prompt_logprobs + 1)
        for request in task.requests
        if request.prompt_logprobs is not None
    )
    if scores > MAX_SCORES:
        raise bad(
            task.prompt_field,
            f"The prompts have {scores} log probabilities; {MAX_SCORES} are told at once",
            "Send fewer prompts in one request, or ask for fewer of each token.",
        )
    for request in task.requests:
        try:
            check_request(request, hosted.client.voice)
        except (ContextOverflow, EmptyPrompt) as error:
            raise bad(task.prompt_field, error.what, error.fix, error.code) from error


def _chat_ids(body: ChatRequest, hosted: HostedModel, offered: Sequence[Tool]) -> list[int]:
    try:
        return encode_chat(body, hosted.encoder, offered, hosted.manners)
    except RequestError as error:  # too long, or the template's own words
        raise bad("messages", error.what, error.fix, error.code) from error


def read_prompts(
    prompt: str | list[Any], hosted: HostedModel, param: str, limit: int = MAX_CHOICES, n: int = 1
) -> list[list[int]]:
    """Texts or token ids as lists of token ids, counted before they are looked at. Raises a `Refusal`."""
    kinds = {str} if isinstance(prompt, str) else {type(item) for item in prompt}
    if kinds == {int}:
        return [_ids(prompt, hosted, param)]
    if len(kinds) != 1 or not all(prompt):
        raise bad(param, "The list mixes texts and token ids, or holds an empty list", "Send one kind.")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if len(prompts) * n > limit:
        times = f" with n = {n}" if n > 1 else ""
        raise bad(param, f"{len(prompts)} of {param}{times} are more than {limit}", "Send fewer at once.")
    return [_ids(each, hosted, param) for each in prompts]


def _ids(prompt: str | list[int], hosted: HostedModel, param: str) -> list[int]:
    try:
        if isinstance(prompt, str):
            return hosted.encoder.encode(prompt)
        room = hosted.client.model.config.context_length
        if len(prompt) > room:
            raise ContextOverflow(
                f"The prompt has {len(prompt)} tokens; the model's context holds {room}",
                "Shorten the prompt.",
            )
    except RequestError as error:
        raise bad(param, error.what, error.fix, error.code) from error
    return _known(prompt, param, hosted.client.model.config.vocab_size)
