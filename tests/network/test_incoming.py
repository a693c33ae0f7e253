"""Streams of strangers: nobody takes all, and a newcomer gets one of whoever has most."""

from swarm.network.incoming import MOST_STREAMS, RESERVED_FILES, Incoming, room_for_streams
from swarm.values import PeerId

EVE, BOB, CAROL = PeerId("eve"), PeerId("bob"), PeerId("carol")


def test_one_alone_has_half():
    incoming = Incoming(10)
    ended = [incoming.admit(EVE, number) for number in range(8)]
    assert ended == [[]] * 5 + [[5], [6], [7]]
    assert len(incoming) == 5


def test_a_newcomer_gets_the_newest_of_whoever_has_most():
    incoming = Incoming(10)
    for number in range(5):
        incoming.admit(EVE, number)
        incoming.admit(BOB, 100 + number)
    assert incoming.admit(CAROL, 200) == [4]
    assert incoming.admit(CAROL, 201) == [104]
    assert len(incoming) == 10


def test_where_all_have_as_many_the_newcomer_waits():
    incoming = Incoming(4)
    for number, peer in enumerate((EVE, BOB, CAROL, PeerId("dan"))):
        assert incoming.admit(peer, number) == []
    assert incoming.admit(PeerId("late"), 9) == [9]


def test_a_stream_that_ended_makes_room():
    incoming = Incoming(2)
    incoming.admit(EVE, 1)
    incoming.forget(EVE, 1)
    incoming.forget(EVE, 7)
    assert len(incoming) == 0
    assert incoming.admit(EVE, 2) == []


def test_streams_leave_files_for_ourselves():
    assert room_for_streams(1024) == 1024 - RESERVED_FILES
    assert room_for_streams(65536) == MOST_STREAMS
    assert room_for_streams(64) > 0
