"""Which form a reply must have, read from the fields that can ask for one.

Knows the fields and no grammar library; several forms at once are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.gateway import constrain, tools
from swarm.gateway.body import check_depth
from swarm.gateway.refusal import bad
from swarm.gateway.schema import (
    ChatRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    StructuredOutputs,
    Tool,
)

_SAYS_NOTHING = frozenset({"$schema", "additionalProperties", "description", "title", "type"})  # of arguments


@dataclass(frozen=True, slots=True)
class Form:
    """The grammar a reply must follow, and the field that asked for it."""

    grammar: str
    param: str


def form_of_chat(body: ChatRequest, offered: Sequence[Tool], style: tools.Style | None) -> Form | None:
    """The one form that a chat asks for; several are refused."""
    for place, tool in enumerate(offered):
        check_depth(tool.function.parameters, f"tools[{place}].function.parameters")
    forms = []
    if body.structured_outputs is not None:
        forms.append(form_of(body.structured_outputs))
    schema = _schema(body)
    forced = _forced(body, offered)
    if style and (forced or (offered and schema is not None)):
        # a form of the text says nothing about calls: OpenAI's own models may still make one, or must
        schemas = {tool.function.name: _parameters(tool) for tool in forced or offered}
        grammar = constrain.call_grammar(style, schemas, None if forced else schema)
        forms.append(Form(grammar, "tools" if forced else "response_format"))
    elif schema is not None:
        forms.append(Form(constrain.json_grammar(schema), "response_format"))
    if len(forms) > 1:
        raise bad(
            forms[1].param, f"{forms[0].param} and {forms[1].param} exclude each other", "Leave one out."
        )
    return forms[0] if forms else None


def _schema(body: ChatRequest) -> Mapping[str, Any] | None:
    """What the text of a reply must fit."""
    if isinstance(body.response_format, JsonObjectFormat):
        return {"type": "object"}
    if not isinstance(body.response_format, JsonSchemaFormat):
        return None
    schema = body.response_format.json_schema.schema or {"type": "object"}
    check_depth(schema, "response_format")
    return schema


def _parameters(tool: Tool) -> Mapping[str, Any]:
    """The schema of its arguments; of a tool that names none, that there are none."""
    schema = tool.function.parameters or {}
    says = {name for name, value in schema.items() if value} - _SAYS_NOTHING
    return schema if says else {"type": "object", "properties": {}, "additionalProperties": False}


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


def form_of(wanted: StructuredOutputs) -> Form:
    param = "structured_outputs"
    given = [name for name in wanted.__struct_fields__ if getattr(wanted, name) is not None]
    if len(given) != 1:
        raise bad(param, f"structured_outputs sets {len(given)} forms", "Set exactly one.")
    if wanted.json is not None:
        check_depth(wanted.json, f"{param}.json")
        return Form(constrain.json_grammar(wanted.json), f"{param}.json")
    if wanted.regex is not None:
        return Form(constrain.regex_grammar(wanted.regex), f"{param}.regex")
    if wanted.choice is not None:
        return Form(constrain.choice_grammar(wanted.choice), f"{param}.choice")
    return Form(constrain.lark_grammar(wanted.grammar or ""), f"{param}.grammar")
