"""The page is whole for any swarm, and nothing a peer says can break it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from status_values import DIGEST, NOW, proof, record, shown, state

from swarm.status.history import Contributor, Point
from swarm.status.incidents import Incident
from swarm.status.page import PEERS_A_PAGE, Site, headline, render_page, render_peers
from swarm.status.plots import Series, badge, bars, coverage, line
from swarm.status.snapshot import SwarmState
from swarm.status.view import HistoryView

HOSTILE = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "'\" onmouseover=alert(1) x='",
    "</title></head><body><h1>pwned",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u202c\u2066\u200f",
    "javascript:alert(1)",
    "]]>--><!--",
    "\x00\x1b[2J\ufeff",
    "&lt;b&gt;&amp;",
]  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Reads HTML strictly enough to see markup that came in from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def page(seen: SwarmState, history: HistoryView | None = None, **site) -> Page:
    return Page(render_page(Site(**site), seen, history or HistoryView(), "24h"))


def everything_hostile() -> tuple[SwarmState, HistoryView]:
    names = [f"{text}{n}"[:64] for n in range(10) for text in HOSTILE]
    peers = [
        record(f"{text}{n}", n % 6, n % 6 + 1, public_name=text, dtype=text, quantization=text, software=text)
        for n, text in enumerate(names)
    ]
    failing = {peer.peer: shown("failed", reason=peer.public_name) for peer in peers[:20]}
    history = HistoryView(
        incidents=tuple(Incident(n, "peer", DIGEST, t, t, t, NOW, None) for n, t in enumerate(names)),
        contributors=tuple(Contributor(text, text, 1.0, NOW) for text in names),
    )
    told = proof(failing, prompt=names[0])
    return state(*peers, shown_by=told, name=names[0] * 3, model_type=names[1]), history


def test_a_working_swarm_says_so_first_and_with_its_proof():
    said = page(state(record("a", 0, 6), record("b", 0, 6))).text
    assert "tiny is working" in said
    assert re.search(r"Asked The capital of France is\s*, its peers answered Paris\.", said)


def test_a_hole_is_told_with_its_blocks_and_the_command_that_fills_it():
    said = page(state(record("a", 0, 4))).text
    assert "tiny is not working" in said
    assert "No peer hosts blocks 4:6" in said
    assert "swarm peer tiny --blocks 4:6 --join ADDRESS" in said


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (SwarmState(NOW, None), "This page cannot see the swarm"),
        (SwarmState(NOW, NOW - 300), "This page cannot see the swarm"),
        (SwarmState(NOW, NOW), "The swarm hosts no model yet"),
        (state(record("a", 0, 6), shown_by=proof(passed_ago_s=None)), "tiny is not proven"),
        (state(record("a", 0, 6)), "tiny is working, with weak spots"),
    ],
)
def test_every_state_has_a_headline_and_a_whole_page(seen, told):
    assert headline(seen) == told
    assert told in page(seen).text


def test_hostile_names_stay_text_and_change_no_markup():
    seen, history = everything_hostile()
    read = page(seen, history)
    plain = page(*_harmless())
    assert read.open == []
    assert {tag for tag, _ in read.tags} == {tag for tag, _ in plain.tags}
    assert not any(name.startswith("on") or name == "style" for _, attrs in read.tags for name in attrs)
    assert sum(tag == "script" for tag, _ in read.tags) == 1
    targets = [attrs[name] for _, attrs in read.tags for name in ("href", "src") if name in attrs]
    assert all(target.startswith(("/", "#")) for target in targets)
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff\x00\x1b]", read.text)
    assert "alert(1)" in read.text


def _harmless():
    peers = [record(f"p{n}", n % 6, n % 6 + 1, public_name="n") for n in range(100)]
    failing = {peer.peer: shown("failed", reason="went silent") for peer in peers[:20]}
    history = HistoryView(
        incidents=(Incident(1, "peer", DIGEST, "m", "p", "c", NOW, None),),
        contributors=(Contributor("p", "n", 1.0, NOW),),
    )
    return state(*peers, shown_by=proof(failing)), history


@pytest.mark.parametrize(
    "name", ["x; rm -rf ~", "$(reboot)", "--identity=/etc", "a b", "`id`", "x\nreboot", ""]
)
def test_a_name_that_means_something_to_a_shell_is_not_in_the_command(name):
    said = page(state(record("a", 0, 5), name=name)).text
    assert "swarm peer MODEL --blocks 5:6 --join ADDRESS" in said


def test_a_name_of_ten_thousand_characters_is_cut():
    html = render_page(Site(), state(record("a", 0, 6, public_name="W" * 10_000)), HistoryView(), "24h")
    assert "W" * 47 + "…" in html
    assert "W" * 48 not in html


def test_no_address_is_on_the_page_unless_the_operator_publishes_one():
    seen = state(record("a", 0, 6))
    assert "ADDRESS" in page(seen).text
    assert "/ip4/203.0.113.7/tcp/1/p2p/X" in page(seen, join="/ip4/203.0.113.7/tcp/1/p2p/X").text


def test_peers_with_trouble_come_first_and_the_rest_has_pages():
    peers = [record(f"p{n:04}", 0, 6) for n in range(2 * PEERS_A_PAGE + 1)]
    failing = proof({"p0300": shown("failed", reason="went silent")})
    seen = state(*peers, shown_by=failing)
    first = Page(render_peers(Site(), seen, seen.models[0], 1)).text
    assert first.index("p0300") < first.index("p0000")
    assert "Page 1 of 3" in first
    last = Page(render_peers(Site(), seen, seen.models[0], 3)).text
    assert "p0400" in last
    assert "Next" not in last


def test_a_peer_that_is_gone_has_a_row_like_every_other():
    seen = state(record("a", 0, 6), record("b", 0, 6))
    here, away = seen.models[0].peers
    model = replace(seen.models[0], peers=(here, replace(away, condition="gone")))
    read = Page(render_page(Site(), replace(seen, models=(model,)), HistoryView(), "24h"))
    rows = [attrs["class"].split() for _, attrs in read.tags if attrs.get("role") == "row"]
    assert rows == [["peer"], ["peer"], ["peer", "absent"]]


def test_a_coverage_picture_has_a_cell_a_replica_and_marks_holes_and_failures():
    drawn = str(coverage([2, 1, 0], [2, 0, 0]))
    assert drawn.count('class="many"') == 2
    assert drawn.count('class="failing"') == 1
    assert drawn.count('class="hole"') == 2


def test_a_plot_leaves_gaps_where_nothing_is_known():
    series = Series([0, 10, 20, 30, 60, 70], [1, 2, None, 1, 3, 1], 0, 100, 10, 4)
    assert str(line(series)).count("polyline") == 3


def test_plots_of_nothing_and_of_one_point_are_whole():
    for values in ([], [None], [3.0], [0.0]):
        for draw in (line, bars):
            drawn = str(draw(Series([50.0] * len(values), values, 0, 100, 10, 5)))
            assert drawn.startswith("<svg")
            assert "nan" not in drawn


def test_history_is_told_in_words_as_well_as_drawn():
    points = tuple(Point(int(NOW) - 600 * n, 1.0, 2, 3.0, 10.0 + n, 0.2, 1, 0, n) for n in range(5, 0, -1))
    history = HistoryView(read_at=NOW, points={(DIGEST, "24h"): points})
    said = page(state(record("a", 0, 6)), history).text
    assert "100% throughout" in said
    assert "now 11, between 11 and 15" in said


def test_a_badge_says_its_text():
    assert ">not working</text>" in badge("swarm", "not working", "#c1271d")
