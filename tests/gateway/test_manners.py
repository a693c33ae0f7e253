"""Templates that take messages in a form of their own get them in it."""

import json
import re
import shutil

import msgspec
import pytest

from swarm.gateway.manners import Manners
from swarm.gateway.prompts import encode_chat, encoder_of, learn_manners
from swarm.gateway.schema import ChatRequest
from swarm.model.tokenizer import load_tokenizer
from swarm.testing.tiny_models import CHAT_TEMPLATE

EACH, END = "{% for m in messages %}", "{% endfor %}"
PARTS = (
    EACH
    + "[{{ m.role }}{% for p in m.content %}{% if p.type == 'text' %} {{ p.text }}{% endif %}{% endfor %}]"
    + END
)
PARTS_OF_USER = (
    EACH + "[{{ m.role }} {% if m.role == 'user' %}{% for p in m.content %}{{ p['text'] }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}]" + END
)
EITHER = (
    EACH + "{% if m.content is string %}s:{{ m.content }}{% else %}p:{{ m.content[0].text }}{% endif %}" + END
)
NO_SYSTEM = (
    EACH
    + "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.role }} {{ m.content }}]"
    + END
)
DROPS_SYSTEM = EACH + "{% if m.role != 'system' %}[{{ m.role }} {{ m.content }}]{% endif %}" + END
ALTERNATES = (
    EACH
    + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}"
    "[{{ m.role }} {{ m.content }}]" + END
)
NINE = (
    "{% if tools %}T{% endif %}" + EACH + "{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}<{{ c.id }}>{% endfor %}"
    "[{{ m.role }} {{ m.content }}{% if m.tool_call_id %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('nine') }}{% endif %}<{{ m.tool_call_id }}>{% endif %}]" + END
)
USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be kind"}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = [
    USER,
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
]


@pytest.fixture
def prompt(tiny, tmp_path):
    """The prompt that a template makes of messages."""

    def make(template, messages, **fields):
        directory = shutil.copytree(tiny, tmp_path / "model")
        (directory / "chat_template.jinja").write_text(template)
        tokenizer = load_tokenizer(directory)
        body = msgspec.convert({"model": "tiny", "messages": messages, **fields}, ChatRequest)
        ids = encode_chat(body, encoder_of(tokenizer, 4000), body.tools or [], learn_manners(tokenizer))
        return tokenizer.decode(ids, skip_special_tokens=False)

    return make


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (PARTS, "[system Be kind][user Hi]"),
        (PARTS_OF_USER, "[system Be kind][user Hi]"),
        (EITHER, "s:Be kinds:Hi"),
    ],
)
@pytest.mark.parametrize("as_parts", [False, True])
def test_content_comes_in_the_form_that_the_template_reads(prompt, template, text, as_parts):
    messages = [SYSTEM, USER]
    if as_parts:
        messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
    assert prompt(template, messages) == text


def test_parts_stay_apart_where_the_template_walks_over_them(prompt):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert prompt(PARTS, [{"role": "user", "content": parts}]) == "[user a b]"


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_system_that_the_template_does_not_take_stands_before_the_user(prompt, template):
    assert prompt(template, [SYSTEM, USER]) == "[user Be kind\n\nHi]"


def test_tools_reach_a_template_that_refuses_the_system_and_knows_none(prompt):
    text = prompt(NO_SYSTEM, [SYSTEM, USER], tools=TOOLS)
    assert re.fullmatch(r"\[user Be kind\n\n# Tools\n.*\n\nHi\]", text, re.DOTALL)


def test_neighbours_of_one_role_are_joined_where_roles_must_alternate(prompt):
    assert prompt(ALTERNATES, [USER, {"role": "user", "content": "there"}]) == "[user Hi\n\nthere]"


def test_results_of_calls_are_joined_where_roles_must_alternate(prompt):
    text = prompt(ALTERNATES, [*CALLED, {**CALLED[2], "content": "43"}, USER])
    results = "\n\n".join(f"<tool_response>\n{each}\n</tool_response>" for each in (42, 43))
    assert text.endswith(f"[user {results}\n\nHi]")


def test_neighbours_stay_apart_where_they_may(prompt):
    text = prompt(CHAT_TEMPLATE, [USER, USER], add_generation_prompt=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n" * 2


def test_ids_of_calls_get_the_form_that_the_template_demands(prompt):
    text = prompt(NINE, CALLED, tools=TOOLS)
    call, result = re.findall("<(.*?)>", text)
    assert call == result
    assert re.fullmatch("[A-Za-z0-9]{9}", call)


def test_ids_of_calls_in_the_right_form_stay(prompt):
    messages = json.loads(json.dumps(CALLED).replace("call_1", "abcDEF123"))
    assert re.findall("<(.*?)>", prompt(NINE, messages, tools=TOOLS)) == ["abcDEF123"] * 2


def test_the_usual_template_has_the_usual_manners(tiny):
    assert learn_manners(load_tokenizer(tiny)) == Manners()
