"""Messages: their exact bytes, round trips, and what is refused."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from swarm.errors import MalformedMessage
from swarm.wire.messages import (
    AnyMessage,
    Close,
    Fault,
    Leaving,
    Message,
    Open,
    Opened,
    Output,
    Ping,
    Pong,
    Promote,
    Rewind,
    Step,
    decode_message,
    encode_message,
)

# The bytes of every message of wire version 1. If one of these has to change by more than a field that
# older ends ignore and may leave out, so does WIRE_VERSION.
GOLDEN: list[tuple[Message, str]] = [
    (
        Open(
            wire_version=1, session="0123456789abcdef0123456789abcdef", epoch=2, manifest="ab" * 32,
            start=0, end=10, dtype="bf16", quantization="none", kernels="0a1b2c3d4e5f", codec="bf16",
            max_tokens=4096, lease_s=2.5, role="spare", trace="t1", owner="12D3KooW", proof=bytes(range(64)),
        ),
        "de0011a474797065a46f70656eac776972655f76657273696f6e01a773657373696f6ed92030313233343536"
        "37383961626364656630313233343536373839616263646566a565706f636802a56f776e6572a8313244334b"
        "6f6f57a570726f6f66c440000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
        "2122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fa86d616e6966657374d9406162"
        "6162616261626162616261626162616261626162616261626162616261626162616261626162616261626162"
        "616261626162616261626162616261626162a5737461727400a3656e640aa56474797065a462663136ac7175"
        "616e74697a6174696f6ea46e6f6e65a76b65726e656c73ac306131623263336434653566a5636f646563a462"
        "663136aa6d61785f746f6b656e73cd1000a76c656173655f73cb4004000000000000a4726f6c65a573706172"
        "65a57472616365a27431",
    ),
    (
        Opened(position=7, max_tokens=4096, lease_s=2.5, rewinds=3),
        "85a474797065a66f70656e6564a8706f736974696f6e07aa6d61785f746f6b656e73cd1000a76c656173655f73"
        "cb4004000000000000a7726577696e647303",
    ),
    (
        Step(id=3, position=7, tokens=2, reply_tokens=1),
        "85a474797065a473746570a2696403a8706f736974696f6e07a6746f6b656e7302ac7265706c795f746f6b656e"
        "7301",
    ),
    (
        Output(id=3, position=7, tokens=1, compute_ms=41.5, queue_ms=0.25),
        "86a474797065a66f7574707574a2696403a8706f736974696f6e07a6746f6b656e7301aa636f6d707574655f6d"
        "73cb4044c00000000000a871756575655f6d73cb3fd0000000000000",
    ),
    (
        Rewind(position=5),
        "82a474797065a6726577696e64a8706f736974696f6e05",
    ),
    (
        Promote(),
        "81a474797065a770726f6d6f7465",
    ),
    (
        Ping(id=9),
        "82a474797065a470696e67a2696409",
    ),
    (
        Pong(id=-1, queue_depth=2),
        "83a474797065a4706f6e67a26964ffab71756575655f646570746802",
    ),
    (
        Leaving(seconds=30.0),
        "82a474797065a76c656176696e67a77365636f6e6473cb403e000000000000",
    ),
    (
        Fault(code="position", text="at 5", retryable=True, field="position", expected_position=5),
        "86a474797065a56661756c74a4636f6465a8706f736974696f6ea474657874a461742035a9726574727961626c"
        "65c3a56669656c64a8706f736974696f6eb165787065637465645f706f736974696f6e05",
    ),
    (
        Close(),
        "81a474797065a5636c6f7365",
    ),
]  # fmt: skip


def _of_type(kind: inspect.Type) -> st.SearchStrategy[object]:
    """Values within the range that the type declares."""
    match kind:
        case inspect.IntType():
            return st.integers(kind.ge, kind.le)
        case inspect.FloatType():
            return st.floats(kind.gt if kind.ge is None else kind.ge, kind.le, exclude_min=kind.ge is None)
        case inspect.StrType() if kind.pattern:
            return st.from_regex(kind.pattern).filter(lambda text: len(text) <= kind.max_length)
        case inspect.StrType():
            return st.text(min_size=kind.min_length or 0, max_size=min(40, kind.max_length))
        case inspect.BytesType():
            return st.binary(max_size=kind.max_length)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.UnionType():
            return st.one_of(*map(_of_type, kind.types))
        case inspect.NoneType():
            return st.none()
    assert isinstance(kind, inspect.BoolType), kind
    return st.booleans()


def _values(kind: type[Message]) -> st.SearchStrategy[Message]:
    fields = inspect.type_info(kind).fields
    return st.builds(kind, **{field.name: _of_type(field.type) for field in fields})


ANY_MESSAGE = st.one_of(*(_values(kind) for kind in AnyMessage.__args__))


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_message_has_exactly_its_golden_bytes(message: Message, golden: str) -> None:
    assert encode_message(message).hex() == golden


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_golden_bytes_give_the_message(message: Message, golden: str) -> None:
    assert decode_message(bytes.fromhex(golden)) == message


def test_an_older_end_names_no_kernels() -> None:
    known = {"kernels": "0a1b2c3d4e5f"}
    fields = msgspec.msgpack.decode(bytes.fromhex(GOLDEN[0][1]))
    older = {name: value for name, value in fields.items() if name not in known}
    assert decode_message(msgspec.msgpack.encode(older)) == msgspec.structs.replace(GOLDEN[0][0], kernels="")


def test_every_message_has_golden_bytes() -> None:
    assert {type(message) for message, _ in GOLDEN} == set(AnyMessage.__args__)


@given(ANY_MESSAGE)
def test_any_message_comes_back(message: AnyMessage) -> None:
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=200))
def test_random_bytes_are_a_malformed_message(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_message(raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "no such message"},
        {"type": "ping"},
        {"type": "ping", "id": "1"},
        {"type": "step", "id": 1, "position": 2, "tokens": 1.5, "reply_tokens": 1},
        {"id": 1},
        [1, 2],
    ],
)
def test_message_with_wrong_fields_is_refused(fields: object) -> None:
    with pytest.raises(MalformedMessage, match="wire version 1"):
        decode_message(msgspec.msgpack.encode(fields))


def test_unknown_field_of_a_later_minor_version_is_ignored() -> None:
    raw = msgspec.msgpack.encode({"type": "ping", "id": 4, "added_later": True})
    assert decode_message(raw) == Ping(id=4)
