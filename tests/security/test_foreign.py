"""Files of strangers are opened only where they are files, and read within bounds."""

import os
import socket

import pytest

from swarm.security.foreign import MAX_JSON_DEPTH, open_regular, parse_json, read_bounded, read_json


def pipe(path):
    os.mkfifo(path)


def listening_socket(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


def link_to_a_device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, listening_socket, link_to_a_device, os.mkdir])
def test_what_is_not_a_file_is_refused_without_waiting(make, tmp_path):
    make(tmp_path / "x")
    with pytest.raises(OSError, match=r"regular file|No such device"):
        read_bounded(tmp_path / "x", 100)


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes"):
        read_bounded(tmp_path / "x", 2**20)


def test_a_file_at_the_limit_is_read_whole(tmp_path):
    (tmp_path / "x").write_bytes(b"a" * 1000)
    assert read_bounded(tmp_path / "x", 1000) == b"a" * 1000


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH + 1, 900, 100_000])
def test_json_that_is_too_deep_is_no_json(opening, depth, tmp_path):
    closing = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening]
    (tmp_path / "x").write_text(opening * depth + "1" + closing * depth)
    with pytest.raises(ValueError, match="more than 64 deep"):
        read_json(tmp_path / "x", 2**20)


def test_json_as_deep_as_allowed_is_parsed():
    deepest = "[" * MAX_JSON_DEPTH + "]" * MAX_JSON_DEPTH
    assert str(parse_json(deepest)) == deepest
