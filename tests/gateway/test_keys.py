"""Keys: who may ask, how much, and what a stranger is told."""

import asyncio
import os

import pytest

from swarm.cli.main import run
from swarm.errors import ConfigurationError, UsageError
from swarm.gateway.admission import AdmissionLimits
from swarm.gateway.app import Gateway, GatewayConfig
from swarm.gateway.auth import KeyFile, add_key, read_keys
from tests.gateway.conftest import CHAT, HELLO, MODEL, eventually

BODY = {"model": MODEL, "messages": HELLO, "max_tokens": 3}
LONG = {"model": MODEL, "messages": HELLO, "max_tokens": 200, "ignore_eos": True, "stream": True}


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def keys(tmp_path):
    return tmp_path / "keys.toml"


def write_secret(path, text):
    path.touch(mode=0o600)
    path.write_text(text)


def limit(keys, line):
    keys.write_text(keys.read_text().rstrip() + f"\n{line}\n")


def test_a_new_key_is_kept_only_as_a_hash_in_a_file_for_its_owner(keys):
    secret = add_key(keys, "alice")
    assert secret not in keys.read_text()
    assert keys.stat().st_mode & 0o777 == 0o600
    assert [key.name for key in read_keys(keys).values()] == ["alice"]
    with pytest.raises(ConfigurationError, match="already"):
        add_key(keys, "alice")


@pytest.mark.parametrize(
    "text", ["[[key", "[[key]]\nname = 3", '[[key]]\nname = "x"\nsha256 = "12"', "[[key]]\nfoo = 1"]
)
def test_a_broken_file_of_keys_says_where(keys, text):
    write_secret(keys, text)
    with pytest.raises(ConfigurationError, match=r"keys\.toml"):
        read_keys(keys)


def test_an_address_that_others_reach_needs_keys():
    with pytest.raises(UsageError, match="no keys"):
        GatewayConfig(host="0.0.0.0")  # noqa: S104


def test_the_command_makes_a_key_and_needs_nothing_else_for_it(keys, capsys):
    assert run(["gateway", "--new-key", str(keys), "alice"]) == 0
    [secret] = capsys.readouterr().out.split()
    assert [key.name for key in read_keys(keys).values()] == ["alice"]
    assert KeyFile(keys).key_of(f"Bearer {secret}").name == "alice"


async def test_two_models_of_one_name_are_refused(serve):
    async with serve() as served:
        with pytest.raises(UsageError, match="same name"):
            Gateway([served.swarm.client(), served.swarm.client()], GatewayConfig())


async def test_only_a_known_key_is_served(serve, keys):
    secret = add_key(keys, "alice")
    async with serve(keys=keys) as served:
        assert (await served.post(CHAT, BODY, **bearer(secret)))[0] == 200
        for headers in ({}, bearer("sk-wrong"), {"Authorization": secret}):
            status, body, _ = await served.post(CHAT, BODY, **headers)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        async with (
            served.http.get("/metrics") as metrics,
            served.http.get("/livez") as livez,
            served.http.get("/") as page,
        ):
            assert (metrics.status, livez.status, page.status) == (401, 200, 200)


async def test_a_key_can_be_added_and_taken_back_while_the_gateway_runs(serve, keys):
    add_key(keys, "alice")
    async with serve(keys=keys) as served:
        secret = add_key(keys, "bob")
        assert (await served.post(CHAT, BODY, **bearer(secret)))[0] == 200
        keys.write_text("")
        os.utime(keys, ns=(1, 1))
        assert (await served.post(CHAT, BODY, **bearer(secret)))[0] == 401


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602])
def test_a_file_of_keys_that_others_can_touch_is_refused(keys, mode):
    add_key(keys, "alice")
    keys.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {keys}"):
        KeyFile(keys)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        add_key(keys, "bob")


@pytest.mark.parametrize("harm", ["broken", "gone", "open to others"])
async def test_a_file_that_breaks_meanwhile_is_told_to_the_log_only(serve, keys, caplog, harm):
    secret = add_key(keys, "alice")
    good = keys.read_text()
    async with serve(keys=keys) as served:
        if harm == "broken":
            keys.write_text("[[key")
        elif harm == "gone":
            keys.unlink()
        else:
            keys.chmod(0o644)
        for headers in (bearer(secret), {}):
            status, body, _ = await served.post(CHAT, BODY, **headers)
            assert (status, body["error"]["code"]) == (503, "keys_unavailable")
            assert str(keys) not in body["error"]["message"]
        assert caplog.text.count(str(keys)) >= 1
        keys.unlink(missing_ok=True)
        write_secret(keys, good)
        assert (await served.post(CHAT, BODY, **bearer(secret)))[0] == 200


async def test_a_rate_ends_in_a_429_that_says_when_to_come_back(serve, keys):
    secret = add_key(keys, "alice")
    limit(keys, "requests_per_minute = 2")
    async with serve(keys=keys) as served:
        answers = [await served.post(CHAT, BODY, **bearer(secret)) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    _, body, headers = answers[2]
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert 1 <= int(headers["Retry-After"]) <= 30


async def test_a_key_has_only_so_many_replies_at_once(serve, keys):
    secret = add_key(keys, "alice")
    limit(keys, "concurrent = 1")
    async with serve(keys=keys, cost_s=0.01) as served:
        response = await served.http.post(CHAT, json=LONG, headers=bearer(secret))
        status, body, headers = await served.post(CHAT, BODY, **bearer(secret))
        assert (status, body["error"]["code"]) == (429, "concurrency_limit_exceeded")
        assert int(headers["Retry-After"]) >= 1
        response.close()
        await eventually(lambda: served.gateway.gate.running == 0)
        assert (await served.post(CHAT, BODY, **bearer(secret)))[0] == 200


async def test_a_reply_of_another_key_cannot_be_read(serve, keys):
    alice, bob = add_key(keys, "alice"), add_key(keys, "bob")
    async with serve(keys=keys) as served:
        response = await served.http.post(CHAT, json=LONG, headers=bearer(alice))
        event = (await response.content.readuntil(b"\n\n")).decode()
        reply_id = event.splitlines()[0].removeprefix("id: ").split(":")[0]
        async with served.http.get(f"/v1/responses/{reply_id}", headers=bearer(bob)) as other:
            assert other.status == 404
        response.close()


async def test_a_full_gateway_is_a_503_with_the_place_in_the_queue(serve):
    async with serve(cost_s=0.01, limits=AdmissionLimits(max_running=1, max_waiting=0)) as served:
        response = await served.http.post(CHAT, json=LONG)
        status, body, headers = await served.post(CHAT, BODY)
        response.close()
    assert (status, body["error"]["code"]) == (503, "overloaded")
    assert body["error"]["detail"]["queue_place"] == 0
    assert int(headers["Retry-After"]) >= 1


async def test_one_who_waits_too_long_is_told_the_place_and_one_who_waits_is_served(serve):
    async with serve(
        cost_s=0.002, limits=AdmissionLimits(max_running=1, max_waiting=5, max_wait_s=30)
    ) as served:
        answers = await asyncio.gather(*(served.post(CHAT, BODY | {"max_tokens": 30}) for _ in range(4)))
        assert [status for status, _, _ in answers] == [200] * 4
    async with serve(
        cost_s=0.01, limits=AdmissionLimits(max_running=1, max_waiting=5, max_wait_s=0.1)
    ) as served:
        response = await served.http.post(CHAT, json=LONG)
        status, body, _ = await served.post(CHAT, BODY)
        response.close()
    assert (status, body["error"]["code"]) == (503, "overloaded")


async def test_pages_of_other_origins_may_ask_only_when_they_are_named(serve):
    preflight = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with serve(origins=frozenset({"https://app.example"})) as served:
        async with served.http.options(CHAT, headers=preflight) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
        _, _, headers = await served.post(CHAT, BODY, Origin="https://app.example")
        assert headers["Access-Control-Allow-Origin"] == "https://app.example"
        _, _, headers = await served.post(CHAT, BODY, Origin="https://other.example")
        assert "Access-Control-Allow-Origin" not in headers
    async with serve() as served, served.http.options(CHAT, headers=preflight) as response:
        assert response.status == 405


@pytest.mark.parametrize(
    "names",
    ["x-stainless-os,x-stainless-runtime,authorization", "X-Include-Swarm", "content-type, x-new.one"],
)
async def test_a_page_of_a_named_origin_may_send_any_header(serve, names):
    preflight = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": names,
    }
    async with (
        serve(origins=frozenset({"https://app.example"})) as served,
        served.http.options(CHAT, headers=preflight) as response,
    ):
        allowed = response.headers["Access-Control-Allow-Headers"].split(", ")
        assert allowed == names.replace(" ", "").split(",")
        assert "X-Ignored-Fields" in response.headers["Access-Control-Expose-Headers"]
