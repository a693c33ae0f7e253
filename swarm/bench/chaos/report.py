"""What a scenario came to, for people and for machines."""

from dataclasses import dataclass
from typing import Any

from swarm.bench.chaos.replies import percentile


@dataclass(frozen=True, slots=True)
class Result:
    """One scenario's outcome. `stalls_s` has one entry for each session."""

    scenario: str
    sessions: int
    tokens_ok: bool
    recoveries: int
    stalls_s: tuple[float, ...]
    left_behind: tuple[str, ...]
    error: str | None

    @property
    def passed(self) -> bool:
        """Whether everything was as promised."""
        return self.tokens_ok and not self.left_behind and self.error is None

    def to_json(self) -> dict[str, Any]:
        """The line that `--json` prints."""
        return {
            "scenario": self.scenario,
            "sessions": self.sessions,
            "tokens_ok": self.tokens_ok,
            "recoveries": self.recoveries,
            "stall_s": summary(self.stalls_s),
            "left_behind": list(self.left_behind),
            "error": self.error,
        }

    def row(self) -> tuple[str, ...]:
        """The cells of the table."""
        stall = summary(self.stalls_s)
        return (
            self.scenario,
            str(self.sessions),
            "right" if self.tokens_ok else "WRONG",
            str(self.recoveries),
            *(f"{stall[key]:.2f}" for key in ("p50", "p95", "max")),
            "; ".join(filter(None, [self.error, *self.left_behind])) or "-",
        )


COLUMNS = ("scenario", "sessions", "tokens", "recoveries", "stall p50", "p95", "max s", "problems")


def summary(stalls_s: tuple[float, ...]) -> dict[str, float]:
    """Median, 95th percentile and maximum, in seconds."""
    return {
        "p50": round(percentile(stalls_s, 0.5), 4),
        "p95": round(percentile(stalls_s, 0.95), 4),
        "max": round(max(stalls_s, default=0.0), 4),
    }
