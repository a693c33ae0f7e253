"""Text and conversations to token ids, against transformers and against recorded ids."""

import json
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from swarm.errors import BrokenModel, EmptyPrompt, RequestError
from swarm.model.chat_template import ChatTemplate
from swarm.model.gguf import convert_gguf
from swarm.model.tokenizer import load_tokenizer

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "smollm2-135m.json").read_text())
HELLO = [{"role": "user", "content": "Hi  "}]
CALL = {"name": "f", "arguments": {"x": 1.5, "é": "<&>"}}
TALK = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Grüße, 世界 👩‍👩‍👧"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
    },
    {"role": "tool", "content": "\n42\n"},
    {"role": "assistant", "content": "So it is", "reasoning": "because"},
]
FUNCTION = {"name": "f", "description": "a <b>", "parameters": {"b": 1, "a": [None, True]}}
TOOLS = [{"type": "function", "function": FUNCTION}]
EACH, END = "{% for m in messages %}", "{% endfor %}"
TEMPLATES = {
    "special tokens": "{{ bos_token }}" + EACH + "{{ m.content }}{{ eos_token }}" + END,
    "trimmed blocks": EACH + "\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n" + END + "\n",
    "tojson": "{{ messages | tojson }}{{ tools | tojson(indent=2, sort_keys=true) }}",
    "separators": "{{ tools | tojson(separators=(',', ':'), ensure_ascii=true) }}",
    "loop controls": EACH + "{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.role }}" + END,
    "generation tag": EACH + "{% generation %}{{ m.role }}{% endgeneration %}" + END,
    "namespace": "{% set ns = namespace(n=0) %}" + EACH + "{% set ns.n = ns.n + 1 %}" + END + "{{ ns.n }}",
    "dict": "{{ dict(a=1).items() | list }}{{ dict.fromkeys('ab') }}",
    "nulls are left out": EACH + "{{ 'content' in m }}{{ m.content is defined }}" + END,
    "reasoning": EACH + "{{ m.reasoning_content }}|{{ m.thinking }}" + END,
    "prompt": "{{ add_generation_prompt }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "documents": "{{ documents is none }}{{ tools is none }}",
    "own variable": "{{ enable_thinking }}",
    "unset": "[{{ nowhere }}]",
}


@pytest.fixture
def directory(tiny_gguf, tmp_path):
    """A model directory with a byte-level tokenizer."""
    path = tmp_path / "model"
    path.mkdir()
    convert_gguf(tiny_gguf().write(tmp_path / "tiny.gguf"), path)
    return path


def with_template(directory, template):
    (directory / "chat_template.jinja").write_text(template)
    return directory


def edit_config(directory, **fields):
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.model
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['kind']}: {case['prompt'][:30]}")
def test_recorded_prompts_give_the_recorded_ids(case, smollm2):
    tokenizer = load_tokenizer(smollm2)
    if case["kind"] == "chat":
        ids = tokenizer.encode_chat([{"role": "user", "content": case["prompt"]}])
    else:
        ids = tokenizer.encode(case["prompt"], add_special_tokens=False)
    assert ids == case["prompt_ids"]
    assert tokenizer.decode(case["greedy_ids_fp32"], skip_special_tokens=False) == case["text"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [HELLO, TALK], ids=["hello", "talk"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_conversations_render_and_encode_as_in_transformers(
    name, messages, tools, add_generation_prompt, directory
):
    with_template(directory, TEMPLATES[name])
    options = {"add_generation_prompt": add_generation_prompt, "tools": tools, "enable_thinking": False}
    reference = PreTrainedTokenizerFast.from_pretrained(directory)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.render_chat(messages, **options) == reference.apply_chat_template(
        messages, tokenize=False, **options
    )
    assert tokenizer.encode_chat(messages, **options) == reference.apply_chat_template(
        messages, return_dict=False, **options
    )


def test_documents_and_odd_names_reach_the_template_as_in_transformers(directory):
    with_template(
        directory, "{{ documents | tojson }}{% for d in documents %}{{ d.title }}{% endfor %}{{ odd }}"
    )
    options = {"documents": [{"title": "Grüße", "text": "Hi"}], "odd": {"self": 1}}
    expected = PreTrainedTokenizerFast.from_pretrained(directory).apply_chat_template(
        HELLO, tokenize=False, **options
    )
    assert load_tokenizer(directory).render_chat(HELLO, **options) == expected


@pytest.mark.model
@pytest.mark.parametrize("text", ["", " ", "a  b\n\n c", "12345 6.7e8", "世界 👩‍👩‍👧 e\u0301", "<|im_end|>x"])
def test_text_encodes_and_decodes_as_in_transformers(text, smollm2):
    reference, tokenizer = PreTrainedTokenizerFast.from_pretrained(smollm2), load_tokenizer(smollm2)
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == reference.decode(ids)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "template",
    ["{% for m in messages %}[{{ m.content }}]{% endfor %}", "{{ messages[-1].content.strip() }}]"],
)
def test_final_message_is_continued_as_in_transformers(template, directory):
    with_template(directory, template)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    reference = PreTrainedTokenizerFast.from_pretrained(directory)
    messages = [*HELLO, {"role": "assistant", "content": "It is "}]
    expected = reference.apply_chat_template(messages, tokenize=False, **options)
    assert load_tokenizer(directory).render_chat(messages, **options) == expected
    assert not expected.endswith("]")


def test_template_file_wins_over_the_config(directory):
    edit_config(directory, chat_template="from the config")
    assert load_tokenizer(with_template(directory, "from the file")).render_chat(HELLO) == "from the file"


def test_template_in_the_config_is_used_without_a_file(directory):
    (directory / "chat_template.jinja").unlink()
    edit_config(directory, chat_template="from the config")
    assert load_tokenizer(directory).render_chat(HELLO) == "from the config"


def test_of_named_templates_the_one_for_tools_is_used_with_tools(directory):
    (directory / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    edit_config(directory, chat_template=named)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.render_chat(HELLO) == "plain"
    assert tokenizer.render_chat(HELLO, tools=TOOLS) == "with tools"


def test_further_template_files_are_found_by_name(directory):
    with_template(directory, "plain")
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert load_tokenizer(directory).render_chat(HELLO, tools=TOOLS) == "with tools"


def test_special_tokens_come_from_the_older_file_when_the_config_lacks_them(directory):
    (directory / "tokenizer_config.json").unlink()
    (directory / "special_tokens_map.json").write_text('{"bos_token": {"content": "<|im_start|>"}}')
    assert load_tokenizer(with_template(directory, "{{ bos_token }}!")).render_chat(HELLO) == "<|im_start|>!"


def test_truncation_in_the_file_does_not_cut_a_prompt(directory):
    path = directory / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": cut}))
    assert len(load_tokenizer(directory).encode("xyzxyz")) == 6


def test_clock_of_the_template_is_an_argument():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 2, 29))
    assert template.render(HELLO, add_generation_prompt=True, variables={}) == "29 Feb 2024"


def test_model_without_a_template_says_so(directory):
    (directory / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(directory)
    assert not tokenizer.has_chat_template
    with pytest.raises(RequestError, match="no chat template"):
        tokenizer.render_chat(HELLO)


def test_refusal_of_the_template_carries_its_words(directory):
    tokenizer = load_tokenizer(with_template(directory, "{{ raise_exception('Roles must alternate!') }}"))
    with pytest.raises(RequestError, match="Roles must alternate!"):
        tokenizer.render_chat(HELLO)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content % 1 }}",
        "{{ messages[7].content.x }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_template_that_fails_on_the_messages_is_a_request_error(template, directory):
    with pytest.raises(RequestError, match="refuses these messages"):
        load_tokenizer(with_template(directory, template)).render_chat(HELLO)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{{ dict.__call__.__globals__ }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_template_cannot_leave_the_sandbox(template, directory):
    with pytest.raises(RequestError):
        load_tokenizer(with_template(directory, template)).render_chat(HELLO)


def test_broken_template_is_a_broken_model(directory):
    with pytest.raises(BrokenModel, match="chat template has an error in line 2"):
        load_tokenizer(with_template(directory, "a\n{% if %}")).render_chat(HELLO)


def test_empty_conversation_is_an_empty_prompt(directory):
    with pytest.raises(EmptyPrompt):
        load_tokenizer(directory).render_chat([])


@pytest.mark.parametrize(
    "messages", [["hi"], [{"role": "user", "content": object()}], [{"role": "user", "content": b"x"}]]
)
def test_messages_that_are_not_json_are_refused(messages, directory):
    with pytest.raises(RequestError):
        load_tokenizer(directory).render_chat(messages)


def test_continuing_and_prompting_exclude_each_other(directory):
    with pytest.raises(RequestError, match="exclude each other"):
        load_tokenizer(directory).render_chat(HELLO, continue_final_message=True)


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        ("{{ messages[-1].content }}", [{"role": "assistant"}]),
        ("content", HELLO),
        ("{{ messages[-1].role }}", HELLO),
    ],
)
def test_final_message_without_a_place_to_continue_is_refused(template, messages, directory):
    tokenizer = load_tokenizer(with_template(directory, template))
    with pytest.raises(RequestError, match="final message"):
        tokenizer.render_chat(messages, add_generation_prompt=False, continue_final_message=True)


def test_rendering_does_not_change_the_messages(directory):
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    tokenizer = load_tokenizer(with_template(directory, "{{ messages[0].content[0].text }}."))
    assert (
        tokenizer.render_chat(messages, add_generation_prompt=False, continue_final_message=True) == "It is"
    )
    assert messages == [{"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]


def test_half_a_surrogate_pair_is_refused(directory):
    with pytest.raises(RequestError, match="surrogate pair at character 1"):
        load_tokenizer(directory).encode("a\ud83d")


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 1}'])
def test_damaged_tokenizer_file_is_named(content, directory):
    (directory / "tokenizer.json").write_text(content)
    with pytest.raises(BrokenModel, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(directory)


def test_missing_tokenizer_file_is_named(directory):
    (directory / "tokenizer.json").unlink()
    with pytest.raises(BrokenModel, match=r"tokenizer\.json is missing"):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    ("content", "what"),
    [("{", "is not JSON"), ("[]", "is not a JSON object"), ('{"chat_template": [1]}', "chat_template")],
)
def test_damaged_tokenizer_config_is_named(content, what, directory):
    (directory / "chat_template.jinja").unlink()
    (directory / "tokenizer_config.json").write_text(content)
    with pytest.raises(BrokenModel, match=rf"tokenizer_config\.json.*{what}"):
        load_tokenizer(directory)


def test_vocabulary_counts_added_tokens(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "copy")
    tokenizer = load_tokenizer(tmp_path / "copy")
    assert tokenizer.vocab_size == 3 + 256 + 3
    assert tokenizer.special_ids == {0, 1, 2}
    assert (tokenizer.token_to_id("<|im_end|>"), tokenizer.id_to_token(2)) == (2, "<|im_end|>")
    assert (tokenizer.token_to_id("mystery"), tokenizer.id_to_token(262)) == (None, None)
