"""The chat page in a real Chromium, on a gateway in front of an in-process swarm.

With SWARM_SCREENSHOTS set to a folder, what a person would see is kept there.
"""

import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import async_playwright, expect

from tests.gateway.conftest import eventually, serve, tiny

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("chromium")]
__all__ = ["serve", "tiny"]  # fixtures

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
REPLICATED = ((0, 2), (2, 4), (2, 4))
HOSTILE = """# <img src=x onerror=alert(1)>
<script>alert(1)</script> **bold <b>x</b>** [click](javascript:alert(1)) [ok](https://example.org/a)

```html
<script>alert(2)</script>
```

| a | b |
|---|---|
| `1` | <i>2</i> |

1. one
   - nested
2. two
"""


BEGUN_AND_KEPT = "() => JSON.parse(localStorage.getItem('swarm.conversations'))?.[0]?.messages?.[1]?.content"


@pytest.fixture
def chromium():
    if not shutil.which("chromium"):
        pytest.skip("Chromium is not installed")


@asynccontextmanager
async def browse(url, settings=None, **options):
    """A page on the chat, and the messages of its console."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        context = await browser.new_context(**options)
        page = await context.new_page()
        said = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.said = said
        await page.goto(url)
        if settings is not None:
            await page.evaluate(
                "each => localStorage.setItem('swarm.settings', JSON.stringify(each))", settings
            )
            await page.reload()
        await expect(page.locator("#health")).to_have_text("online")
        yield page
        await browser.close()


async def picture(page, name):
    if folder := os.environ.get("SWARM_SCREENSHOTS"):
        await page.screenshot(path=Path(folder) / f"{name}.png")


async def ask(page, text):
    await page.fill("#prompt", text)
    await page.keyboard.press("Enter")


async def done(page):
    await expect(page.locator("#send")).to_be_visible(timeout=60_000)


async def kept(page):
    """The messages of the current conversation, as the browser keeps them."""
    return await page.evaluate("() => JSON.parse(localStorage.getItem('swarm.conversations'))[0].messages")


async def test_a_question_is_answered_and_the_chain_is_shown(serve):
    async with serve(cost_s=0.005) as served, browse(served.url, {"max_tokens": 40}) as page:
        await picture(page, "welcome")
        await ask(page, "Hello")
        await expect(page.locator("#stop")).to_be_visible()
        await done(page)
        assert await page.locator(".message").count() == 2
        await page.click(".chain summary")
        assert await page.locator(".chain td").first.inner_text() == "0:2"
        assert "tokens/s" in await page.locator(".chain summary").inner_text()
        await picture(page, "answer")
        _, reply = await kept(page)
        whole = await served.chat(messages=[{"role": "user", "content": "Hello"}], max_tokens=40)
        assert reply["content"] == whole["choices"][0]["message"]["content"]
        assert await page.locator("#spoken").inner_text() == "The reply is complete."
        assert page.said == []


async def test_stop_frees_the_peers_and_regenerate_answers_anew(serve):
    async with serve(cost_s=0.01) as served, browse(served.url, {"max_tokens": 300}) as page:
        await ask(page, "Hello")
        await page.wait_for_selector(".message.streaming")
        await page.keyboard.press("Escape")
        await done(page)
        await eventually(lambda: served.sessions == 0)
        assert (await kept(page))[1]["stopped"] is True
        await page.evaluate("localStorage.setItem('swarm.settings', JSON.stringify({max_tokens: 8}))")
        await page.reload()
        await page.get_by_role("button", name="Regenerate").click()
        await done(page)
        messages = await kept(page)
        assert len(messages) == 2
        assert "stopped" not in messages[1]


async def test_an_edited_message_is_sent_again_and_what_followed_is_gone(serve):
    async with serve() as served, browse(served.url, {"max_tokens": 5}) as page:
        for text in ("First", "Second"):
            await ask(page, text)
            await done(page)
        await page.get_by_role("button", name="Edit").first.click()
        await page.fill(".edit textarea", "Changed")
        await page.keyboard.press("Enter")
        await done(page)
        messages = await kept(page)
        assert [message["content"] for message in messages if message["role"] == "user"] == ["Changed"]


async def test_settings_reach_the_model_and_stay(serve):
    async with serve() as served, browse(served.url) as page:
        await page.click("#open-settings")
        await page.fill("#system", "Answer briefly.")
        await page.fill("#max_tokens", "7")
        await page.fill("#temperature", "0.5")
        await page.fill("#seed", "3")
        await page.select_option("#theme", "dark")
        await picture(page, "settings")
        await page.get_by_role("button", name="Done").click()
        async with page.expect_request("**/chat/completions") as sent:
            await ask(page, "Hello")
        await done(page)
        body = (await sent.value).post_data_json
        assert body["messages"][0] == {"role": "system", "content": "Answer briefly."}
        assert (body["max_tokens"], body["temperature"], body["seed"]) == (7, 0.5, 3)
        await page.reload()
        assert await page.locator("html").get_attribute("data-theme") == "dark"


async def test_a_dead_peer_is_a_quiet_notice_and_the_reply_goes_on(serve):
    async with serve(REPLICATED, cost_s=0.01) as served, browse(served.url, {"max_tokens": 60}) as page:
        await ask(page, "Hello")
        await page.wait_for_selector(".message.streaming")
        await next(peer for peer in served.swarm.peers[1:] if peer.peer.handler.open_streams).kill()
        await done(page)
        await picture(page, "peer-lost")
        assert "the reply went on" in await page.locator(".event").first.inner_text()
        whole = await served.chat(messages=[{"role": "user", "content": "Hello"}], max_tokens=60)
        assert (await kept(page))[1]["content"] == whole["choices"][0]["message"]["content"]


async def test_a_broken_connection_is_taken_up_again_without_losing_a_token(serve):
    async with serve(cost_s=0.01) as served, browse(served.url, {"max_tokens": 80}) as page:
        await ask(page, "Hello")
        await page.wait_for_selector(".message.streaming")
        for transport in tuple(served.gateway.server._connections.table._known):
            transport.abort()
        await done(page)
        whole = await served.chat(messages=[{"role": "user", "content": "Hello"}], max_tokens=80)
        assert (await kept(page))[1]["content"] == whole["choices"][0]["message"]["content"]


async def test_a_reply_of_a_closed_tab_is_read_to_its_end_when_it_is_opened_again(serve):
    async with serve(cost_s=0.01) as served, browse(served.url, {"max_tokens": 120}) as page:
        await ask(page, "Hello")
        await page.wait_for_selector(".message.streaming")
        await page.wait_for_function(BEGUN_AND_KEPT)  # the page keeps what has come about once a second
        await page.goto("about:blank")
        await eventually(lambda: served.sessions == 0)
        await page.goto(served.url)
        await done(page)
        await expect(page.locator("#spoken")).to_have_text("The reply is complete.")
        whole = await served.chat(messages=[{"role": "user", "content": "Hello"}], max_tokens=120)
        assert (await kept(page))[1]["content"] == whole["choices"][0]["message"]["content"]


async def test_markdown_of_a_hostile_model_becomes_no_markup(serve):
    async with serve() as served, browse(served.url) as page:
        html = await page.evaluate(
            """async (text) => {
                const { render } = await import("/static/markdown.js");
                const box = document.createElement("div");
                box.append(render(text));
                document.body.append(box);
                return box.innerHTML;
            }""",
            HOSTILE,
        )
        assert "<script" not in html
        assert "<img" not in html
        assert "<i>2" not in html
        assert 'href="javascript' not in html
        assert (
            '<a href="https://example.org/a" target="_blank" rel="noopener noreferrer nofollow">ok</a>'
            in html
        )
        assert "<strong>bold &lt;b&gt;x&lt;/b&gt;</strong>" in html
        assert "<td><code>1</code></td>" in html
        assert "<li>one<ul><li>nested</li></ul></li><li>two</li>" in html
        assert page.said == []


@pytest.mark.parametrize(
    "broken", ["{", "3", '[{"id": "a"}]', '[{"id": "a", "messages": [{"role": "user"}]}]']
)
async def test_a_page_with_broken_things_kept_answers_as_ever(serve, broken):
    async with serve() as served, browse(served.url, {"max_tokens": 4}) as page:
        await page.evaluate("each => localStorage.setItem('swarm.conversations', each)", broken)
        await page.reload()
        await ask(page, "Hello")
        await done(page)
        assert [message["role"] for message in await kept(page)] == ["user", "assistant"]
        assert page.said == []


async def test_a_phone_has_a_drawer_and_nothing_wider_than_its_screen(serve):
    phone = {
        "viewport": {"width": 360, "height": 700},
        "is_mobile": True,
        "has_touch": True,
        "color_scheme": "dark",
    }
    async with serve() as served, browse(served.url, {"max_tokens": 90}, **phone) as page:
        await ask(page, "https://example.org/" + "a" * 200)
        await done(page)
        assert await page.evaluate("document.documentElement.scrollWidth") == 360
        await picture(page, "phone")
        await expect(page.locator("#drawer")).not_to_be_visible()
        await page.get_by_role("button", name="Conversations", exact=True).click()
        await expect(page.locator("#drawer")).to_be_visible()
        await picture(page, "phone-drawer")
        await page.get_by_role("button", name="New conversation").click()
        await expect(page.locator("#drawer")).not_to_be_visible()
        assert await page.locator(".message").count() == 0


async def test_every_control_has_a_name_and_the_keyboard_reaches_it(serve):
    async with serve() as served, browse(served.url, {"max_tokens": 5}) as page:
        await ask(page, "Hello")
        await done(page)
        nameless = await page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, textarea")]
                .filter((each) => !(each.ariaLabel || each.labels?.length || each.textContent.trim()))
                .map((each) => each.outerHTML)"""
        )
        assert nameless == []
        await page.evaluate("document.activeElement.blur()")
        reached = set()
        for _ in range(30):
            await page.keyboard.press("Tab")
            reached.add(
                await page.evaluate("document.activeElement.id || document.activeElement.textContent")
            )
        assert {"new-chat", "model", "open-settings", "prompt", "Edit", "Regenerate"} <= reached


async def test_a_gateway_that_asks_for_a_key_gets_it_from_the_settings(serve, tmp_path):
    from swarm.gateway.auth import add_key

    secret = add_key(tmp_path / "keys.toml", "alice")
    async with serve(keys=tmp_path / "keys.toml") as served, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = await browser.new_page()
        await page.goto(served.url)
        await expect(page.locator("#settings")).to_be_visible()
        await page.fill("#key", secret)
        await page.get_by_role("button", name="Done").click()
        await expect(page.locator("#health")).to_have_text("online")
        await browser.close()
