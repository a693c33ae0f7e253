"""Which sessions a peer keeps, for how long, and in how much memory."""

import pytest
import torch
from peer_scene import rows

from swarm.errors import SessionRefused
from swarm.model.cache import bytes_per_token
from swarm.model.config import read_config
from swarm.model.span import SpanModel, SpanStep
from swarm.model.weights import load_span
from swarm.peer.sessions import PeerSession, SessionLimits, SessionTable
from swarm.values import PeerId, Span
from swarm.wire.messages import Open

CLIENT, OTHER = PeerId("client"), PeerId("other")


@pytest.fixture(scope="module")
def model(tiny_directory) -> SpanModel:
    return load_span(tiny_directory, read_config(tiny_directory), Span(0, 2), dtype=torch.float32)


@pytest.fixture
def table(model):
    """Makes a table; `tokens` is how many of them its memory holds."""

    def make(tokens: int = 1000, **limits: float) -> SessionTable:
        cache_bytes = tokens * bytes_per_token(model.config, 2, model.dtype)
        return SessionTable(model, SessionLimits(cache_bytes, 256, **limits))

    return make


def ask(name: str = "s", **fields: object) -> Open:
    right: dict[str, object] = {
        "wire_version": 1, "session": name, "epoch": 0, "manifest": "", "start": 0, "end": 2, "dtype": "fp32",
        "quantization": "none", "codec": "fp32", "max_tokens": 100, "lease_s": 1.0,
        "owner": "owner", "proof": b"",
    }  # fmt: skip
    return Open(**(right | fields))


def fill(sessions: SessionTable, session: PeerSession, tokens: int) -> None:
    """A step of so many tokens, let in and computed."""
    sessions.reserve(session, tokens)
    sessions._model.forward([SpanStep(session.cache, rows(tokens))], session.span)


def test_no_more_tokens_are_granted_than_the_context_holds(table):
    assert table().open(ask(max_tokens=10_000), CLIENT, 0.0).max_tokens == 256


def test_a_session_is_taken_up_again_by_a_later_epoch_only(table, model):
    sessions = table()
    first = sessions.open(ask(), CLIENT, 0.0)
    fill(sessions, first, 5)
    assert sessions.open(ask(epoch=1), CLIENT, 1.0).position == 5
    with pytest.raises(SessionRefused, match="A later take") as refused:
        sessions.open(ask(epoch=1), CLIENT, 2.0)
    assert refused.value.fault_code == "fenced"


@pytest.mark.parametrize("fields", [{}, {"end": 1}], ids=["the same span", "another span"])
def test_a_later_take_makes_the_earlier_one_void(table, fields):
    sessions = table(max_sessions=1)
    first = sessions.open(ask(), CLIENT, 0.0)
    sessions.open(ask(epoch=1, **fields), CLIENT, 1.0)
    with pytest.raises(SessionRefused, match="A later take") as refused:
        first.require_epoch(0)
    assert (refused.value.fault_code, len(sessions)) == ("fenced", 1)


def test_a_take_that_is_refused_changes_nothing_and_resumes_nothing(table):
    sessions = table(max_sessions=1)
    held = sessions.open(ask(epoch=5), CLIENT, 0.0)
    before = sessions.resumed_total
    for name, epoch in (("s", 4), ("other", 9)):
        with pytest.raises(SessionRefused):
            sessions.open(ask(name, epoch=epoch, role="spare" if name == "s" else "active"), CLIENT, 1.0)
    assert (sessions.all(), held.epoch, held.spare, sessions.resumed_total) == ((held,), 5, False, before)


def test_a_spare_is_promoted_once(table):
    sessions = table()
    session = sessions.open(ask(epoch=5, role="spare"), CLIENT, 0.0)
    sessions.promote(session)
    sessions.promote(session)
    assert (session.spare, sessions.resumed_total) == (False, 1)


def test_the_end_of_an_older_take_does_not_detach_the_later_one(table):
    sessions = table()
    sessions.open(ask(), CLIENT, 0.0)
    session = sessions.open(ask(epoch=1), CLIENT, 1.0)
    sessions.detach(session, 0, 2.0)
    assert session.attached
    sessions.detach(session, 1, 3.0)
    assert not session.attached


def test_more_tokens_than_granted_are_refused_with_both_numbers(table):
    sessions = table()
    session = sessions.open(ask(max_tokens=10), CLIENT, 0.0)
    sessions.reserve(session, 10)
    with pytest.raises(SessionRefused, match="11 tokens are more than the 10 granted") as refused:
        sessions.reserve(session, 11)
    assert refused.value.fault_code == "context_length_exceeded"


def test_a_step_that_waits_for_its_turn_has_its_memory_already(table):
    sessions = table(tokens=128)
    waiting, asking = sessions.open(ask("waiting"), CLIENT, 0.0), sessions.open(ask("asking"), CLIENT, 0.0)
    sessions.reserve(waiting, 60)
    free = sessions.free_tokens
    with pytest.raises(SessionRefused, match="memory for sessions is full"):
        sessions.reserve(asking, 65)
    sessions.reserve(asking, 64)
    assert (free, sessions.free_tokens) == (64, 0)


@pytest.mark.parametrize(
    "end",
    [
        lambda sessions, session: sessions.rewind(session, 0),
        lambda sessions, session: sessions.detach(session, 0, 1.0),
        lambda sessions, session: sessions.settle(sessions.open(ask("waiting", epoch=1), CLIENT, 1.0)),
        lambda sessions, session: sessions.close(session),
    ],
    ids=["rewind", "end of the stream", "a later take", "close"],
)
def test_the_memory_of_a_step_that_will_never_come_is_free_again(table, end):
    sessions = table(tokens=100)
    waiting = sessions.open(ask("waiting"), CLIENT, 0.0)
    sessions.reserve(waiting, 60)
    end(sessions, waiting)
    assert sessions.free_tokens == 100


def test_a_step_within_what_a_session_holds_needs_no_more_memory(table, model):
    sessions = table(tokens=64)
    session = sessions.open(ask(), CLIENT, 0.0)
    fill(sessions, session, 5)
    sessions.reserve(session, 59)
    assert session.cache.size_bytes == sessions.used_bytes


def test_no_session_is_given_up_where_that_makes_no_room(table, model):
    sessions = table(tokens=200)
    for name in ("left", "held"):
        fill(sessions, sessions.open(ask(name), CLIENT, 0.0), 64)
    sessions.detach(sessions.all()[0], 0, 1.0)
    with pytest.raises(SessionRefused, match="memory for sessions is full"):
        sessions.reserve(sessions.open(ask("asking", max_tokens=256), CLIENT, 2.0), 150)
    assert {session.id for session in sessions.all()} == {"held", "left", "asking"}


def test_memory_is_made_by_giving_up_the_session_unused_for_longest(table, model):
    sessions = table(tokens=200)
    for index, name in enumerate(("old", "newer", "used")):
        session = sessions.open(ask(name), CLIENT, float(index))
        fill(sessions, session, 64)
        if name != "used":
            sessions.detach(session, 0, float(index))
    [used] = [session for session in sessions.all() if session.id == "used"]
    sessions.reserve(used, 30)
    assert [session.id for session in sessions.all()] == ["newer", "used"]


def test_full_memory_without_anything_to_give_up_is_refused(table):
    sessions = table(tokens=100)
    fill(sessions, sessions.open(ask("other"), CLIENT, 0.0), 64)
    with pytest.raises(SessionRefused, match="memory for sessions is full") as refused:
        sessions.reserve(sessions.open(ask(), CLIENT, 0.0), 50)
    assert refused.value.fault_code == "capacity"
    assert sessions.free_tokens < 50


def test_above_the_limit_steps_that_need_no_memory_go_on(table):
    sessions = table(tokens=128)
    both = [sessions.open(ask(name), CLIENT, 0.0) for name in "ab"]
    for session in both:
        fill(sessions, session, 64 - 5)
    for session in both:
        assert sessions.reserve(session, 5) == []


def test_a_cache_grows_by_no_more_than_there_is(table):
    sessions = table(tokens=6 * 64)
    first, second = (sessions.open(ask(name, max_tokens=256), CLIENT, 0.0) for name in "ab")
    fill(sessions, first, 256)
    fill(sessions, second, 100)
    assert (first.cache.capacity, second.cache.capacity, sessions.free_tokens) == (256, 128, 0)


def test_the_latest_comer_goes_when_an_earlier_one_grows(table):
    sessions = table(tokens=4 * 64)
    first, second, third = (sessions.open(ask(name), PeerId(name), 0.0) for name in "abc")
    for session in (first, second, third):
        fill(sessions, session, 64)
    fill(sessions, first, 10)
    assert sessions.reserve(second, 10) == [third]
    assert [session.id for session in sessions.all()] == ["a", "b"]
    with pytest.raises(SessionRefused, match="memory for sessions is full"):
        third.require_epoch(0)


def test_of_a_client_with_most_of_the_memory_its_latest_goes_first(table):
    sessions = table(tokens=4 * 64)
    greedy = [sessions.open(ask(name), CLIENT, 0.0) for name in "ab"]
    for session in greedy:
        fill(sessions, session, 90)
    modest = sessions.open(ask("modest"), OTHER, 1.0)
    assert sessions.reserve(modest, 10) == [greedy[1]]


def test_what_all_hold_is_the_sum_of_their_caches(table):
    sessions = table(tokens=10_000)
    opened = [sessions.open(ask(str(number), max_tokens=256), CLIENT, 0.0) for number in range(8)]
    for round_ in range(3):
        for number, session in enumerate(opened):
            fill(sessions, session, 1 + 20 * round_ + number)
    sessions.close(opened.pop())
    sessions.rewind(opened[0], 0)
    assert sessions.used_bytes == sum(session.cache.size_bytes for session in opened)


def test_the_limit_of_sessions_gives_up_those_without_a_stream_and_no_others(table):
    sessions = table(max_sessions=2)
    left = sessions.open(ask("left"), CLIENT, 0.0)
    sessions.open(ask("held"), OTHER, 0.0)
    sessions.detach(left, 0, 1.0)
    sessions.open(ask("new"), CLIENT, 2.0)
    assert "left" not in {session.id for session in sessions.all()}
    with pytest.raises(SessionRefused, match="its limit of 2 sessions"):
        sessions.open(ask("another"), PeerId("third"), 3.0)


def test_one_client_has_half_of_the_sessions_and_gives_up_its_own_for_more(table):
    sessions = table(max_sessions=4)
    theirs = sessions.open(ask("theirs"), OTHER, 0.0)
    sessions.detach(theirs, 0, 0.0)
    first = sessions.open(ask("first"), CLIENT, 1.0)
    sessions.open(ask("second"), CLIENT, 2.0)
    with pytest.raises(SessionRefused, match="its share of 2 sessions"):
        sessions.open(ask("third"), CLIENT, 3.0)
    sessions.detach(first, 0, 4.0)
    sessions.open(ask("third"), CLIENT, 5.0)
    assert {session.id for session in sessions.all()} == {"theirs", "second", "third"}


def test_a_session_of_another_conversation_is_not_taken_up(table):
    sessions = table()
    held = sessions.open(ask(), CLIENT, 0.0)
    with pytest.raises(SessionRefused) as refused:
        sessions.open(ask(owner="stranger", epoch=9), OTHER, 1.0)
    assert (refused.value.fault_code, held.epoch) == ("owner", 0)


def test_sessions_expire_sooner_without_a_stream_than_with_one(table):
    sessions = table(linger_s=10.0, idle_s=100.0)
    left, held = sessions.open(ask("left"), CLIENT, 0.0), sessions.open(ask("held"), CLIENT, 0.0)
    sessions.detach(left, 0, 0.0)
    assert sessions.expired(10.0) == []
    assert sessions.expired(11.0) == [left]
    assert sessions.expired(101.0) == [left, held]


def test_a_closed_session_frees_its_memory(table, model):
    sessions = table()
    session = sessions.open(ask(), CLIENT, 0.0)
    fill(sessions, session, 5)
    assert sessions.used_bytes > 0
    sessions.close(session)
    assert (len(sessions), sessions.used_bytes) == (0, 0)


def test_nobody_is_given_up_for_a_session_that_is_gone(table):
    sessions = table(tokens=100)
    gone = sessions.open(ask("gone"), CLIENT, 0.0)
    sessions.close(gone)
    with pytest.raises(SessionRefused):
        sessions.reserve(gone, 50)
    waiting = sessions.open(ask("waiting"), OTHER, 1.0)
    fill(sessions, waiting, 60)
    sessions.detach(waiting, 0, 2.0)
    with pytest.raises(SessionRefused):
        sessions.reserve(gone, 90)
    assert list(sessions.all()) == [waiting]
