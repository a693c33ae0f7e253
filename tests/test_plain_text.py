"""Text from strangers is made harmless before anybody sees it."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.plain_text import one_line, shown


def test_markup_is_kept_as_text_for_the_template_to_escape():
    assert one_line("<script>alert(1)</script>", 48) == "<script>alert(1)</script>"


def test_characters_that_reorder_or_hide_text_are_taken_out():
    assert one_line("abc\u202edef\u2066\u200b\u200f\ufeff\x00\x1b[31m", 48) == "abcdef[31m"


def test_line_breaks_and_runs_of_spaces_become_one_space():
    assert one_line("  a\n\n\tb\u2028c\u00a0 d ", 48) == "a b c d"


def test_marks_piled_on_one_letter_are_thinned():
    assert one_line("z" + "\u0301" * 200, 48) == "z\u0301\u0301"


def test_a_long_text_ends_in_an_ellipsis():
    assert one_line("x" * 10_000, 48) == "x" * 47 + "…"
    assert one_line("\u202e" * 10_000 + "x", 48) == "…"


@given(st.text(max_size=200), st.integers(1, 60))
def test_what_comes_out_is_short_and_printable(text, limit):
    line = one_line(text, limit)
    assert len(line) <= limit
    assert all(unicodedata.category(char)[0] not in "CZ" or char == " " for char in line)


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("\x1b]0;title\x07\x1b[2Jx", "]0;title[2Jx"),
        ("\x9b31m\x90q\x9c", "31mq"),
        ("a\rb\x08c\x7f", "abc"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\u202eb\u2066c\u200fd", "abcd"),
        ("\ud800x", "x"),
        ("👩\u200d👧 Grüße", "👩\u200d👧 Grüße"),
    ],
)
def test_a_terminal_is_shown_lines_and_tabs_and_obeys_nothing(text, harmless):
    assert shown(text) == harmless
    assert "".join(map(shown, text)) == harmless  # in pieces, too


@given(st.text(max_size=200))
def test_nothing_that_a_terminal_obeys_comes_out(text):
    assert not set(shown(text)) & set(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
