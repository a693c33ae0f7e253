"""The scripts of the chat page, run by Node: what they make of hostile Markdown and of broken things kept."""

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

SCRIPTS = Path(str(resources.files("swarm.gateway") / "static"))
RUNNER = Path(__file__).with_name("page_scripts.mjs")
SETTINGS = ["system", "temperature", "top_p", "max_tokens", "seed", "key", "theme", "model"]
MANY_CHARS = 1_000_000  # in the square of this, no machine is done before a test's time is over


@pytest.fixture
def node(tmp_path):
    """Runs a task of the runner."""
    if not shutil.which("node"):
        pytest.skip("Node is not installed")
    for script in ("markdown.js", "store.js"):
        shutil.copy(SCRIPTS / script, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(task, given):
        command = ["node", str(RUNNER), str(tmp_path), task]
        told = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, check=True, timeout=100
        )
        return json.loads(told.stdout)

    return run


@pytest.mark.parametrize(
    "text",
    [
        "[", "![", "[a](", "[a](http://", "`", "`a", "``a ", "**a", "*a", "_a ", "~~a", "\\", "http://", "http://.",
        "> ", "- ", "- - ", "1. ", "|", "| - ", "**_`~~[", "***", "a*", "#", "```\n", "|a\n|-\n", "-  \n",
        "* * ", "|-|  ",
    ],
)  # fmt: skip
def test_what_begins_again_and_again_is_not_looked_for_to_the_end(node, text):
    many = text * (MANY_CHARS // len(text))
    assert node("finish", {"text": many})
    assert node("finish", {"text": f"|a\n|-|{many}"})


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("**a** *b* _c_ ~~d~~", "<strong>a</strong> <em>b</em> <em>c</em> <s>d</s>"),
        ("`e` ``f ` g``", "<code>e</code> <code>f ` g</code>"),
        ("[a *b*](https://x.y/z) https://x.y/a.", "<a>a <em>b</em></a> <a>https://x.y/a</a>."),
        ("snake_case_name 2*3*4", "snake_case_name 2<em>3</em>4"),
        (r"\*a\*", "*a*"),
        ("[a](javascript:b) [a", "[a](javascript:b) [a"),
    ],
)  # fmt: skip
def test_markdown_in_a_line_is_what_it_was(node, text, html):
    assert node("render", {"text": text}) == f"<p>{html}</p>"


@pytest.mark.parametrize("rule", ["|---|---|", "---|---", "| :-- | --: |", " |-|-| "])
def test_a_table_needs_a_rule_under_its_head(node, rule):
    assert node("render", {"text": f"| a | b |\n{rule}\n| 1 | 2 |"}).startswith("<div><table><tr><th>a</th>")
    assert "table" not in node("render", {"text": "| a | b |\n| not | a rule |"})


BROKEN = ["{", "3", "null", "[]", "{}", '"x"', "[null]", '[{"id": 3}]', '[[["a"]]]']


@pytest.mark.parametrize("kept", [*BROKEN, '[{"id": "a", "messages": 3}]', '[{"id": "a", "messages": [{}]}]'])
def test_what_is_kept_and_broken_is_left_out(node, kept):
    told = node("load", {"swarm.conversations": kept, "swarm.settings": kept})
    assert told["settings"] == dict.fromkeys(SETTINGS, "")
    assert all(each == {"id": "a", "messages": []} for each in told["conversations"])


HOP = {"blocks": "0:4", "peer": "p", "dtype": "fp32", "quant": "none", "compute_ms": 1, "network_ms": 2}
ASKED = {"role": "user", "content": "Hello"}
PLAIN = {"role": "assistant", "content": "Hi", "chain": {"hops": [], "resumes": []}}
GOOD = PLAIN | {
    "pending": True,
    "lastEventId": "chatcmpl-1:4",
    "rate": 2.5,
    "usage": {"completion_tokens": 3},
    "chain": {"hops": [HOP], "resumes": [{"lost_peer": "q", "stall_s": 0.5}]},
}
HARM = {
    "error": 3,
    "note": [],
    "rate": "fast",
    "usage": 3,
    "finish": {},
    "pending": "yes",
    "lastEventId": 3,
    "chain": {"hops": [{"blocks": 3}, None], "resumes": "none"},
}


def test_of_a_message_only_what_has_its_type_is_kept(node):
    kept = [{"id": "a", "messages": [ASKED, GOOD, {"role": "robot"}, GOOD | HARM]}]
    settings = '{"system": [3], "seed": 7, "key": "k"}'
    told = node("load", {"swarm.conversations": json.dumps(kept), "swarm.settings": settings})
    assert told["conversations"] == [{"id": "a", "messages": [ASKED, GOOD, PLAIN]}]
    assert told["settings"] == dict.fromkeys(SETTINGS, "") | {"key": "k", "seed": "7"}
