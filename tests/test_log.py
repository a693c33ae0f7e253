"""What the log looks like, to a person and to a machine."""

import io
import json
import logging

import pytest

from swarm.log import FOLD_S, FoldingHandler, configure_logging


@pytest.fixture(autouse=True)
def restored():
    """Logging belongs to the process: give it back as it was."""
    root, own = logging.getLogger(), logging.getLogger("swarm")
    before = (root.handlers[:], root.level, own.level)
    yield
    root.handlers[:], root.level = before[0], before[1]
    own.setLevel(before[2])


def test_a_line_for_a_person_has_time_level_and_place(capsys):
    configure_logging()
    logging.getLogger("swarm.peer").warning("It is %d o'clock", 5)
    line = capsys.readouterr().err
    assert line[2] == line[5] == ":"
    assert line[8:] == " warning swarm.peer: It is 5 o'clock\n"


def test_an_exception_comes_with_its_trace_in_both_formats(capsys):
    for log_format in ("human", "json"):
        configure_logging(log_format=log_format)
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("swarm").exception("Failed")
        assert "ValueError: broken" in capsys.readouterr().err


def test_json_is_one_object_a_line_with_unix_seconds(capsys):
    configure_logging(log_format="json")
    logging.getLogger("swarm").error("two\nlines")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    entry = json.loads(lines[0])
    assert (entry["level"], entry["message"]) == ("error", "two\nlines")
    assert entry["time"] > 1.7e9


def test_a_level_that_a_library_renamed_keeps_its_standard_word(capsys):
    logging.addLevelName(logging.WARNING, "WARN")
    try:
        configure_logging(log_format="json")
        logging.getLogger("swarm").warning("x")
    finally:
        logging.addLevelName(logging.WARNING, "WARNING")
    assert json.loads(capsys.readouterr().err)["level"] == "warning"


@pytest.mark.parametrize(
    ("verbosity", "own", "library"),
    [
        (-1, "error", "error"),
        (0, "warning", "error"),
        (1, "info", "warning"),
        (2, "debug", "debug"),
        (9, "debug", "debug"),
    ],
)
def test_libraries_are_quieter_than_swarm_itself(capsys, verbosity, own, library):
    configure_logging(verbosity, "json")
    lowest = {}
    for name in ("swarm.x", "library.x"):
        for level in ("debug", "info", "warning", "error"):
            getattr(logging.getLogger(name), level)("x")
        told = [json.loads(line)["level"] for line in capsys.readouterr().err.splitlines()]
        lowest[name] = told[0]
    assert lowest == {"swarm.x": own, "library.x": library}


def test_setting_up_twice_does_not_say_everything_twice(capsys):
    configure_logging()
    configure_logging()
    logging.getLogger("swarm").error("once")
    assert capsys.readouterr().err.count("once") == 1


def test_a_line_that_comes_again_and_again_is_written_once_and_counted():
    now, written = [0.0], io.StringIO()
    handler = FoldingHandler(written, clock=lambda: now[0])
    logger = logging.Logger("x")
    logger.addHandler(handler)
    for _ in range(1000):
        logger.error("No more files: %d", 7)
    logger.error("Something else")
    assert written.getvalue().splitlines() == ["No more files: 7", "Something else"]
    now[0] += FOLD_S
    logger.error("Something else")
    assert written.getvalue().splitlines()[2:] == ["No more files: 7 (999 times more)", "Something else"]


def test_lines_that_differ_are_all_written_however_many():
    written = io.StringIO()
    logger = logging.Logger("x")
    logger.addHandler(FoldingHandler(written, clock=lambda: 0.0))
    for number in range(3000):
        logger.error("%d", number)
    assert len(written.getvalue().splitlines()) == 3000


def test_what_others_chose_cannot_steer_a_terminal_or_forge_a_line(capsys):
    configure_logging()
    logging.getLogger("swarm").warning(
        "peer %s", "\x1b]0;owned\x07\x9b2J\u202ename\n12:00:00 error swarm: no"
    )
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logging.getLogger("swarm").exception("failed")
    written = capsys.readouterr().err
    assert not set("\x1b\x07\x9b\u202e") & set(written)
    assert written.splitlines()[0].endswith("peer ]0;owned2Jname 12:00:00 error swarm: no")
