"""How many streams strangers may have open here: so many in all, of which nobody takes all.

Pure bookkeeping. When all are taken, a newcomer gets one from whoever has most, if that is more than the
newcomer has; so the room is shared evenly among those who ask, and one alone may use half of it.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from swarm.values import PeerId

RESERVED_FILES = 256  # for what this process opens itself
MOST_STREAMS = 2048

Stream = TypeVar("Stream")


def room_for_streams(open_files: int) -> int:
    """How many streams there may be where so many files may be open; each is one."""
    return max(16, min(MOST_STREAMS, open_files - RESERVED_FILES))


@dataclass(slots=True)
class Incoming(Generic[Stream]):
    """Who has which streams."""

    most: int
    _streams: dict[PeerId, list[Stream]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def admit(self, peer: PeerId, stream: Stream) -> list[Stream]:
        """Count a new stream; gives those that are to be ended now, which may be the new one itself."""
        held = self._streams.get(peer, [])
        if len(held) >= self.most // 2:
            return [stream]
        ended: list[Stream] = []
        if len(self) >= self.most:
            greediest = max(self._streams, key=lambda each: len(self._streams[each]))
            if len(self._streams[greediest]) <= len(held) + 1:
                return [stream]
            ended = [self._streams[greediest].pop()]
        self._streams.setdefault(peer, []).append(stream)
        return ended

    def forget(self, peer: PeerId, stream: Stream) -> None:
        """A stream has ended, whether it was counted or not."""
        held = self._streams.get(peer, [])
        if stream in held:
            held.remove(stream)
        if not held:
            self._streams.pop(peer, None)
