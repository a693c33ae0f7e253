"""Watches how long steps take, and says when the number of threads should be chosen again.

Pure: times come in as arguments. With more than one thread, a core that another program keeps busy makes
every step 20 to 50 times slower, because the threads spin while they wait for the slowest: that is a
collapse, and one thread is the remedy. Some time after it, when there is nothing to do, more are tried.
"""

import statistics
from collections import deque
from dataclasses import dataclass, field

COLLAPSE_FACTOR = 4.0  # slower than what was measured, and more than any batch or context explains
STEPS_TO_JUDGE = 6
FIRST_RETRY_S, LONGEST_RETRY_S = 30.0, 600.0


@dataclass(slots=True)
class ThreadWatch:
    """Of one peer. `step_s` is what one token of one session took when it was measured."""

    threads: int
    step_s: float
    may_choose: bool  # not where the user said how many
    _recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_TO_JUDGE))
    _retry_at: float | None = None  # when more threads may be tried; None: there was no collapse
    _delay_s: float = FIRST_RETRY_S

    def note(self, elapsed_s: float) -> None:
        """A batch of a single row took so long."""
        self._recent_s.append(elapsed_s)

    @property
    def has_collapsed(self) -> bool:
        """Whether most of the last steps took far too long with these threads."""
        return (
            self.may_choose
            and self.threads > 1
            and len(self._recent_s) == STEPS_TO_JUDGE
            and statistics.median(self._recent_s) > COLLAPSE_FACTOR * self.step_s
        )

    def collapsed(self, now: float) -> None:
        """One thread from now on, and more are tried after a while, each time a longer one."""
        self.threads = 1
        self._recent_s.clear()
        self._retry_at = now + self._delay_s
        self._delay_s = min(LONGEST_RETRY_S, 2 * self._delay_s)

    def wants_to_try(self, now: float) -> bool:
        """Whether it is time to measure again how many threads are best."""
        return self._retry_at is not None and now >= self._retry_at

    def chosen(self, threads: int, step_s: float, now: float) -> None:
        """Measured anew: so many are best now, and a step takes so long. One is tried again later."""
        self.threads, self.step_s = threads, step_s
        self._recent_s.clear()
        self._retry_at = now + self._delay_s if threads == 1 else None
        self._delay_s = min(LONGEST_RETRY_S, 2 * self._delay_s)
