"""Text from peers is made harmless before anybody sees it."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from swarm.status.text import clean, duration, listed


def test_markup_is_kept_as_text_for_the_template_to_escape():
    assert clean("<script>alert(1)</script>", 48) == "<script>alert(1)</script>"


def test_characters_that_reorder_or_hide_text_are_taken_out():
    assert clean("abc\u202edef\u2066\u200b\u200f\ufeff\x00\x1b[31m", 48) == "abcdef[31m"


def test_line_breaks_and_runs_of_spaces_become_one_space():
    assert clean("  a\n\n\tb\u2028c\u00a0 d ", 48) == "a b c d"


def test_marks_piled_on_one_letter_are_thinned():
    assert clean("z" + "\u0301" * 200, 48) == "z\u0301\u0301"


def test_a_long_text_ends_in_an_ellipsis():
    assert clean("x" * 10_000, 48) == "x" * 47 + "…"
    assert clean("\u202e" * 10_000 + "x", 48) == "…"


@given(st.text(max_size=200), st.integers(1, 60))
def test_what_comes_out_is_short_and_printable(text, limit):
    shown = clean(text, limit)
    assert len(shown) <= limit
    assert all(unicodedata.category(char)[0] not in "CZ" or char == " " for char in shown)


def test_durations_and_lists_read_well():
    assert [duration(s) for s in (4, 90, 7200, 200_000)] == ["4 s", "2 min", "2 h", "2 d"]
    assert listed(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
