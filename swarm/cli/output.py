"""What a command writes: results to stdout, everything else to stderr.

The one place where text meets a terminal: what a peer, a model or a file chose cannot steer it. A pipe
gets results as they are. Progress bars appear only on a terminal, and there only on stderr. rich is
imported when one is drawn.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from swarm.plain_text import one_line, shown
from swarm.values import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

OnProgress = Callable[[str, float, float], None]  # (stage, done, total)
PROGRESS_EVERY_S = 30.0  # where there is no terminal to draw on
REPEAT_STATE_S = 60.0
LONG_S = 2.0  # is worth a line
_CLEAR_LINE = "\r\x1b[2K"


def print_result(text: str, end: str = "\n") -> None:
    """Write a line of the result to stdout, or a piece of one, at once."""
    print(shown(text) if sys.stdout.isatty() else text, end=end, flush=True)


def print_json(value: object) -> None:
    """Write a result as one line of JSON to stdout, at once; dataclasses become objects."""
    print_result(msgspec.json.encode(value).decode())


def note(text: str) -> None:
    """Tell the person something that is not the result, on one line of stderr."""
    print(shown(text).replace("\n", " "), file=sys.stderr, flush=True)


class StatusLine:
    """What goes on while a result is waited for: one line that is rewritten on a terminal, until `clear`
    is called before anything else is written; elsewhere a line for each state, now and then again."""

    def __init__(self) -> None:
        self._is_shown = False
        self._told_at: dict[str, float] = {}

    def show(self, text: str) -> None:
        """Say what goes on now."""
        text = shown(text).replace("\n", " ")
        if sys.stderr.isatty():
            # the cursor may stand behind a part of the result
            begin = _CLEAR_LINE if self._is_shown else "\n"
            sys.stderr.write(begin + text[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
            self._is_shown = True
            return
        now = time.monotonic()
        if now - self._told_at.get(text, -REPEAT_STATE_S) >= REPEAT_STATE_S:
            self._told_at[text] = now
            note(text)

    def clear(self) -> None:
        """It is over."""
        if self._is_shown:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()
            self._is_shown = False


def console(*, stderr: bool = False) -> "Console":
    """A terminal for tables and colours, which leaves it to the caller when nobody reads any more."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise  # rich would end the program, whatever it is in the middle of

    return Plain(stderr=stderr)


@contextmanager
def progress(unit_is_bytes: bool = False) -> Iterator[OnProgress]:
    """Show progress while the block runs: a bar for each stage on a terminal, else a line each."""
    if not sys.stderr.isatty():
        yield _StageLines(unit_is_bytes)
        return
    with _bar(unit_is_bytes) as bar:
        yield _StageBars(bar)


def when_long(show: OnProgress) -> OnProgress:
    """Progress of what is mostly over at once: a stage is shown when it has gone on for a moment."""
    began_at_s: dict[str, float] = {}

    def tell(stage: str, done: float, total: float) -> None:
        now = time.monotonic()
        if now - began_at_s.setdefault(stage, now) >= LONG_S:
            show(stage, done, total)

    return tell


class _StageLines:
    """Names each stage once, and tells now and then how far a long one is and how long it will take."""

    def __init__(self, unit_is_bytes: bool) -> None:
        self._unit_is_bytes = unit_is_bytes
        self._begun: dict[str, tuple[float, float]] = {}  # by stage: when, and what was done already
        self._told_at_s: dict[str, float] = {}

    def __call__(self, stage: str, done: float, total: float) -> None:
        now = time.monotonic()
        if stage not in self._begun:
            note(f"{stage} ...")
            self._begun[stage] = now, done
        elif total and now - self._told_at_s[stage] > PROGRESS_EVERY_S:
            note(f"{stage}: {self._amount(done, total)}{self._left(stage, done, total, now)}")
        else:
            return
        self._told_at_s[stage] = now

    def _amount(self, done: float, total: float) -> str:
        share = f"{done / total:.0%}"
        return f"{format_size(done)} of {format_size(total)} ({share})" if self._unit_is_bytes else share

    def _left(self, stage: str, done: float, total: float, now: float) -> str:
        began_at_s, began_with = self._begun[stage]
        if done <= began_with:
            return ""
        left_s = (total - done) * (now - began_at_s) / (done - began_with)
        return f", about {left_s / 60:.0f} min left" if left_s >= 90 else f", about {left_s:.0f} s left"


class _StageBars:
    """A bar for each stage, on a terminal."""

    def __init__(self, bar: "Progress") -> None:
        self._bar = bar
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: float, total: float) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(one_line(stage))
        self._bar.update(self._tasks[stage], completed=done, total=total)


def _bar(unit_is_bytes: bool) -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    amount = (
        DownloadColumn(binary_units=True) if unit_is_bytes else TextColumn("{task.completed}/{task.total}")
    )
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn())
    return Progress(*columns, console=console(stderr=True))
