"""From an HTTP body to what the client library generates; every refusal happens here, before a byte is sent.

Knows OpenAI's fields and the model's limits, and no HTTP.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from swarm.client.generation import Request, check_request
from swarm.gateway import constrain, tools
from swarm.gateway.models import HostedModel
from swarm.gateway.refusal import bad
from swarm.gateway.schema import (
    ChatMessage,
    ChatRequest,
    CommonRequest,
    CompletionRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    StructuredOutputs,
    Tool,
)
from swarm.model.sampling import Sampling

COMPLETION_TOKENS = 16  # OpenAI's default for plain completions
MAX_CHOICES = 64
_SAMPLED = (
    "temperature", "top_p", "top_k", "min_p", "seed",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """The grammar a reply must follow, and the field that asked for it."""

    grammar: str
    param: str


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that one HTTP request asks for: a request of the client library for each choice."""

    requests: tuple[Request, ...]
    prompt_tokens: int  # of all prompts, each once
    top_logprobs: int | None = None  # None: no log probabilities
    form: Form | None = None
    tool_style: tools.Style | None = None  # None: calls are not looked for
    tool_names: frozenset[str] = frozenset()
    echo: bool = False


async def chat_task(body: ChatRequest, hosted: HostedModel) -> Task:
    """Read a chat. Raises a `Refusal` or another `SwarmError` for what cannot be done."""
    if body.top_logprobs and not body.logprobs:
        raise bad("top_logprobs", "top_logprobs is set without logprobs", "Set logprobs to true.")
    offered = [] if body.tool_choice == "none" else body.tools or []
    style = _tool_style(hosted, offered)
    form = _form_of_chat(body, offered, style)
    prompt_ids = await asyncio.to_thread(_render, body, hosted, offered)
    wanted = body.max_completion_tokens or body.max_tokens
    template = _request(body, hosted, prompt_ids, wanted, body.top_logprobs or 0)
    task = Task(
        requests=_copies(template, body.n or 1),
        prompt_tokens=len(prompt_ids),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=form,
        tool_style=style,
        tool_names=frozenset(tool.function.name for tool in offered),
    )
    await _check(task, hosted)
    return task


async def completion_task(body: CompletionRequest, hosted: HostedModel) -> Task:
    """Read a plain completion. Raises as `chat_task`."""
    if body.suffix:
        raise bad("suffix", "The model cannot fill a gap before a suffix", "Leave suffix out.", "unsupported")
    if body.best_of not in (None, body.n or 1):
        raise bad("best_of", "best_of other than n is not supported", "Leave it out.", "unsupported")
    prompts = _prompts(body.prompt, hosted)
    wanted = body.max_tokens or COMPLETION_TOKENS
    n = body.n or 1
    if len(prompts) * n > MAX_CHOICES:
        raise bad("prompt", f"{len(prompts)} prompts with n = {n} are more than {MAX_CHOICES} choices")
    requests: list[Request] = []
    for prompt in prompts:
        requests += _copies(_request(body, hosted, prompt, wanted, body.logprobs or 0), n)
    form = _form_of(body.structured_outputs) if body.structured_outputs else None
    prompt_tokens = sum(map(len, prompts))
    task = Task(tuple(requests), prompt_tokens, body.logprobs, form, echo=bool(body.echo))
    await _check(task, hosted)
    return task


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


async def _check(task: Task, hosted: HostedModel) -> None:
    """What can be known before the first token."""
    for request in task.requests:
        check_request(request, hosted.client.voice)
    if task.form is not None:
        vocabulary = await hosted.vocabulary()
        await asyncio.to_thread(vocabulary.check, task.form.grammar, task.form.param)
    if task.top_logprobs is not None:
        await hosted.vocabulary()


def _prompts(prompt: str | list[Any], hosted: HostedModel) -> list[list[int]]:
    """The prompts of a completion, as token ids."""
    tokenizer, vocab_size = hosted.client.model.tokenizer, hosted.client.model.config.vocab_size
    if isinstance(prompt, str):
        return [tokenizer.encode(prompt)]
    kinds = {type(item) for item in prompt}
    if kinds == {str}:
        return [tokenizer.encode(text) for text in prompt]
    if kinds == {int}:
        return [_known(prompt, "prompt", vocab_size)]
    if kinds == {list} and all(prompt):
        return [_known(ids, "prompt", vocab_size) for ids in prompt]
    raise bad("prompt", "The list mixes texts and token ids, or holds an empty list", "Send one kind.")


def _render(body: ChatRequest, hosted: HostedModel, offered: Sequence[Tool]) -> list[int]:
    tokenizer = hosted.client.model.tokenizer
    variables = dict(body.chat_template_kwargs or {})
    if {"messages", "tools", "add_generation_prompt", "continue_final_message"} & variables.keys():
        raise bad("chat_template_kwargs", "chat_template_kwargs sets what has a field of its own")
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    has_place = tools.style_of(tokenizer.template_source(with_tools=True)) is not None
    messages = [
        _message(message, place, as_text=not has_place) for place, message in enumerate(body.messages)
    ]
    listed = [msgspec.to_builtins(tool) for tool in offered]
    if listed and not has_place:
        messages = _with_tool_prompt(messages, listed)
    ids: list[int] = tokenizer.encode_chat(
        messages,
        tools=listed if listed and has_place else None,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        **variables,
    )
    return ids


def _message(message: ChatMessage, place: int, *, as_text: bool) -> dict[str, Any]:
    """A message as templates read it. `as_text`: the template knows no tools, so calls become text."""
    content = _content(message, place)
    role = "system" if message.role == "developer" else message.role
    told: dict[str, Any] = {"role": role, "content": content}
    calls = [(call.function.name, _arguments(call.function.arguments)) for call in message.tool_calls or []]
    if as_text and role == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    if as_text and calls:
        told["content"] = "\n".join([content or "", *(tools.write_call(*call) for call in calls)]).strip()
    elif calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call, (name, arguments) in zip(message.tool_calls or [], calls, strict=True)
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if getattr(message, name) is not None:
            told[name] = getattr(message, name)
    return told


def _content(message: ChatMessage, place: int) -> str | None:
    param = f"messages[{place}].content"
    if message.content is None:
        if message.role == "assistant" and message.tool_calls:
            return None
        raise bad(param, f"The {message.role}'s message has no content", "Send text.", "missing_field")
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise bad(
                param, f"The model reads text only, not {part.type!r}", "Send text parts.", "unsupported"
            )
    return "\n".join(part.text or "" for part in message.content)


def _arguments(text: str) -> Any:  # noqa: ANN401 - any JSON; templates expect an object
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _with_tool_prompt(messages: list[dict[str, Any]], listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first, prompt = messages[0], tools.hermes_prompt(listed)
    if first["role"] == "system":
        return [{**first, "content": f"{first['content']}\n\n{prompt}"}, *messages[1:]]
    return [{"role": "system", "content": prompt}, *messages]


def _tool_style(hosted: HostedModel, offered: Sequence[Tool]) -> tools.Style | None:
    if not offered:
        return None
    return tools.style_of(hosted.client.model.tokenizer.template_source(with_tools=True)) or "hermes"


def _form_of_chat(body: ChatRequest, offered: Sequence[Tool], style: tools.Style | None) -> Form | None:
    """The one form that a chat asks for; several are refused."""
    forms = []
    if body.structured_outputs is not None:
        forms.append(_form_of(body.structured_outputs))
    if isinstance(body.response_format, JsonObjectFormat):
        forms.append(Form(constrain.json_grammar({"type": "object"}), "response_format"))
    if isinstance(body.response_format, JsonSchemaFormat):
        schema = body.response_format.json_schema.schema or {"type": "object"}
        forms.append(Form(constrain.json_grammar(schema), "response_format"))
    forced = _forced(body, offered)
    if forced and style:
        schemas = {tool.function.name: tool.function.parameters or {} for tool in forced}
        forms.append(Form(constrain.call_grammar(style, schemas), "tools"))
    if len(forms) > 1:
        raise bad(
            forms[1].param, f"{forms[0].param} and {forms[1].param} exclude each other", "Leave one out."
        )
    return forms[0] if forms else None


def _forced(body: ChatRequest, offered: Sequence[Tool]) -> Sequence[Tool]:
    """The tools of which one must be called; none when the model is free."""
    choice = body.tool_choice
    if choice in (None, "none", "auto"):
        return []
    if not offered:
        raise bad("tool_choice", "tool_choice asks for a call, and there are no tools", "Send tools.")
    if isinstance(choice, NamedToolChoice):
        named = [tool for tool in offered if tool.function.name == choice.function.name]
        if not named:
            raise bad(
                "tool_choice", f"There is no tool named {choice.function.name!r}", "Name one of the tools."
            )
        return named
    return offered


def _form_of(wanted: StructuredOutputs) -> Form:
    param = "structured_outputs"
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise bad(param, f"structured_outputs sets {len(given)} forms", "Set exactly one.")
    if wanted.json is not None:
        return Form(constrain.json_grammar(wanted.json), f"{param}.json")
    if wanted.regex is not None:
        return Form(constrain.regex_grammar(wanted.regex), f"{param}.regex")
    if wanted.choice is not None:
        return Form(constrain.choice_grammar(wanted.choice), f"{param}.choice")
    return Form(constrain.lark_grammar(wanted.grammar or ""), f"{param}.grammar")
