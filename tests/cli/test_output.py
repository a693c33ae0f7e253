"""Results on stdout, everything else on stderr."""

import io
import json
import sys
import time
from dataclasses import dataclass

from swarm.cli.output import (
    LONG_S,
    PROGRESS_EVERY_S,
    REPEAT_STATE_S,
    StatusLine,
    note,
    print_json,
    print_result,
    progress,
    when_long,
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_results_go_to_stdout_and_notes_to_stderr(capsys):
    print_result("a result")
    note("a note")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("a result\n", "a note\n")


def test_json_is_one_line_also_for_dataclasses_and_text_of_all_languages(capsys):
    @dataclass
    class Point:
        name: str

    print_json({"points": [Point("Zürich")], "text": "a\nb"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"points": [{"name": "Zürich"}], "text": "a\nb"}


def test_away_from_a_terminal_progress_names_each_stage_once(capsys):
    with progress() as show:
        for done in range(3):
            show("Downloading", done, 3)
        show("Converting", 0, 1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Downloading ...\nConverting ...\n")


def test_a_long_stage_tells_how_far_it_is(capsys, monkeypatch):
    clock = iter([0.0, PROGRESS_EVERY_S / 2, PROGRESS_EVERY_S + 1, PROGRESS_EVERY_S + 2])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress() as show:
        for done in range(4):
            show("Sessions", done, 8)
    assert capsys.readouterr().err == "Sessions ...\nSessions: 25%, about 2 min left\n"


def test_a_long_download_tells_bytes_and_time_left(capsys, monkeypatch):
    clock = iter([0.0, 100.0, 200.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress(unit_is_bytes=True) as show:
        for done, total in [(0, 0), (2**20, 2**30), (2**29, 2**30)]:
            show("downloading", done, total)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "downloading: 1.0 MiB of 1.0 GiB (0%), about 1705 min left",
        "downloading: 512.0 MiB of 1.0 GiB (50%), about 3 min left",
    ]


def test_what_is_over_at_once_is_not_told(capsys, monkeypatch):
    monkeypatch.setattr(time, "monotonic", iter([0.0, 1.0, LONG_S, LONG_S]).__next__)
    with progress() as show:
        tell = when_long(show)
        tell("hashing", 1, 3)
        tell("hashing", 2, 3)
        assert capsys.readouterr().err == ""
        tell("hashing", 3, 3)
    assert capsys.readouterr().err == "hashing ...\n"


def test_stage_of_unknown_length_is_only_named(capsys, monkeypatch):
    clock = iter([0.0, 100.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with progress() as show:
        show("waiting", 0, 0)
        show("waiting", 0, 0)
    assert capsys.readouterr().err == "waiting ...\n"


def test_on_a_terminal_progress_is_a_bar_on_stderr(capsys, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress(unit_is_bytes=True) as show:
        show("Downloading", 50, 100)
        show("Downloading", 100, 100)
    assert "Downloading" in screen.getvalue()
    assert "100/100 bytes" in screen.getvalue()
    assert capsys.readouterr().out == ""


ESCAPES = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e"


def test_a_terminal_obeys_nothing_that_a_model_says_also_in_pieces(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for piece in ("Grüße\n\t", "\x1b", "[2J", "\x1b", "]0;title", "\x07", *ESCAPES):
        print_result(piece, end="")
    print_json({"name": "\x9b2J\u202e"})
    assert not set(ESCAPES) & set(terminal.getvalue()) - set("]0;title[2J31m")
    assert terminal.getvalue().startswith("Grüße\n\t[2J]0;title")


def test_a_pipe_gets_what_a_model_says_as_it_is(capsys):
    print_result(ESCAPES, end="")
    assert capsys.readouterr().out == ESCAPES


def test_a_note_is_one_line_and_steers_nothing(capsys):
    note(f"peer{ESCAPES}\nswarm: all is well")
    told = capsys.readouterr().err
    assert told == "peer]0;title[2J31m swarm: all is well\n"


def test_the_stage_of_a_bar_is_text_and_no_markup(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress() as show:
        show(f"[bold]model[/nothing]{ESCAPES}", 1, 1)
    assert "[bold]model[/nothing]" in terminal.getvalue()
    assert "\x1b]0;" not in terminal.getvalue()


def test_away_from_a_terminal_each_state_is_told_once_and_after_a_while_again(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    line = StatusLine()
    for _ in range(3):
        line.show("Waiting: for this.")
        line.show("Waiting: for that.")
    now[0] += REPEAT_STATE_S
    line.show("Waiting: for this.")
    line.clear()
    assert capsys.readouterr().err == "Waiting: for this.\nWaiting: for that.\nWaiting: for this.\n"


def test_on_a_terminal_one_line_is_rewritten_and_leaves_nothing(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = StatusLine()
    line.show("Waiting: for this.")
    line.show("w" * 500)
    line.clear()
    line.clear()
    first, shown, *cleared = terminal.getvalue().split("\r\x1b[2K")
    assert (first, set(shown), len(shown) < 500, cleared) == ("\nWaiting: for this.", {"w"}, True, [""])
