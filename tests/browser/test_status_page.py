"""The status page in a real browser, over a swarm in this process: seen by people, phones and readers aloud.

Needs Chromium and Playwright; without them these tests are skipped.
"""

import asyncio
import re
import shutil
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from swarm.network.directory import Directory, OwnDirectory
from swarm.peer.announcer import Announcer
from swarm.security.identity import new_identity
from swarm.status.app import StatusPage, StatusPageConfig
from swarm.status.watch import CanarySettings
from swarm.testing.swarm import HostedPeer, InProcessSwarm
from swarm.testing.tiny_models import TinyModel, write_tiny_model
from swarm.values import Span

playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed")
axe = pytest.importorskip(
    "axe_playwright_python.async_playwright", reason="axe-playwright-python is not installed"
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
HOSTILE = '"><script>document.title="pwned"</script>'

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.timeout(180),
]


@dataclass
class Shown:
    """A swarm, and the address of its status page."""

    swarm: InProcessSwarm
    url: str
    peers: list[HostedPeer]


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Serves the page of a swarm of so many peers, with a canary every two seconds."""
    monkeypatch.setattr("swarm.status.observer.CRAWL_EVERY_S", 1.0)
    monkeypatch.setattr("swarm.status.app.KEEP_EVERY_S", 1.0)

    @asynccontextmanager
    async def serve(*spans: Span):
        directory = tmp_path / "store" / "models" / "tiny"
        write_tiny_model(directory, TinyModel(num_blocks=6))
        async with InProcessSwarm(directory, now=time.time) as swarm:
            peers = await swarm.add_peers(spans)
            network = swarm.net.join(new_identity())
            config = StatusPageConfig(
                tmp_path / "status.sqlite", canaries=CanarySettings(2.0, tmp_path / "store")
            )
            page = StatusPage(config, network, Directory(network, time.time), time.time)
            listening, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
            running = asyncio.create_task(page.run(listening.set_result, stop.wait()))
            try:
                await asyncio.wait({running, listening}, return_when=asyncio.FIRST_COMPLETED)
                yield Shown(swarm, listening.result(), peers)
            finally:
                stop.set()
                await running

    return serve


@pytest.fixture
async def chromium():
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


def answer_noise(hosted: HostedPeer) -> None:
    model = hosted.peer.executor._model
    honest = model.forward
    model.forward = lambda batch, span=None: [
        torch.randn_like(rows) * rows.std() for rows in honest(batch, span)
    ]


async def open_page(chromium, url: str, **settings):
    """A page that fails the test at once when anything in it does."""
    context = await chromium.new_context(**settings)
    page = await context.new_page()
    page.complaints = []
    page.on("console", lambda message: page.complaints.append(message.text))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    await page.goto(url)
    return page


async def grave_faults(page) -> list[str]:
    results = await axe.Axe().run(page)
    return [
        f"{fault['id']}: {fault['help']} at {[node['target'] for node in fault['nodes']]}"
        for fault in results.response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


async def screenshot(page, name: str) -> None:
    folder = Path(__file__).parents[2] / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=folder / f"status-{name}.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
async def test_a_broken_a_frozen_and_a_lone_peer_are_told(shown, chromium, scheme, size):
    async with shown(Span(0, 4), Span(0, 4), Span(2, 6), Span(2, 6)) as swarm:
        page = await open_page(chromium, swarm.url, viewport=size, color_scheme=scheme)
        working = page.get_by_role("heading", name="tiny is working", exact=True)
        await working.wait_for(timeout=30_000)
        answer_noise(swarm.peers[1])
        swarm.swarm.net.freeze(swarm.peers[3].id)
        weak = page.get_by_role("heading", name="tiny is working, with weak spots")
        await weak.wait_for(timeout=60_000)
        wrong = page.get_by_text("answers wrongly").first
        await wrong.wait_for(timeout=60_000)
        frozen = page.get_by_text(re.compile("does not answer|went silent")).first
        await frozen.wait_for(timeout=60_000)
        lone = page.get_by_text("Blocks 0:2, 4:6 have one working peer only.")
        await lone.wait_for(timeout=60_000)
        name = f"faults-{'phone' if size is PHONE else 'desktop'}-{scheme}"
        await screenshot(page, name)
        assert await page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert await grave_faults(page) == []
        assert page.complaints == []


async def test_without_javascript_everything_is_there_to_read(shown, chromium):
    async with shown(Span(0, 6), Span(0, 3)) as swarm:
        live = await open_page(chromium, swarm.url)
        await live.get_by_role("heading", name="tiny is working, with weak spots").wait_for(timeout=30_000)
        page = await open_page(chromium, swarm.url, java_script_enabled=False, viewport=PHONE)
        said = await page.inner_text("body")
        for expected in (
            "tiny is working, with weak spots", "1 peer from an outage", "Weakest: blocks 3:6",
            "swarm peer tiny --blocks", "Availability", "Incidents", "Contributors", "UTC",
        ):  # fmt: skip
            assert expected in said
        await page.get_by_role("link", name="7 days").click()
        assert await page.locator(".tabs [aria-current]").inner_text() == "7 days"
        await screenshot(page, "no-javascript-phone")


async def test_a_hole_appears_on_an_open_page_by_itself(shown, chromium):
    async with shown(Span(0, 3), Span(3, 6)) as swarm:
        page = await open_page(chromium, swarm.url, viewport=DESKTOP)
        await page.get_by_role("heading", name="tiny is working, with weak spots").wait_for(timeout=30_000)
        await swarm.peers[1].kill()
        await page.get_by_role("heading", name="tiny is not working").wait_for(timeout=60_000)
        await page.get_by_text("swarm peer tiny --blocks 3:6").wait_for(timeout=30_000)
        assert "tiny is not working" in await page.locator("#said").inner_text()
        await screenshot(page, "hole-desktop")
        assert page.complaints == []


async def test_hostile_names_run_nothing_and_move_nothing(shown, chromium):
    names = [HOSTILE, "\u202e" + "gnp.exe", "W" * 64, "z" + "\u0301" * 60, "<img src=x onerror=alert(1)>"]

    async with shown(Span(0, 6)) as swarm:
        profile = swarm.peers[0].peer.announcer.profile
        for number in range(100):
            await _announce(swarm.swarm, new_identity(), profile, names[number % len(names)])
        page = await open_page(chromium, swarm.url, viewport=PHONE)
        await page.get_by_text("<script>").first.wait_for(timeout=30_000)
        assert "pwned" not in await page.title()
        assert await page.locator("script").count() == 1
        assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        await screenshot(page, "hostile-phone")
        assert page.complaints == []


async def _announce(swarm: InProcessSwarm, identity, profile, name: str) -> None:
    """A record of a peer of that name; the peer itself does not exist."""
    mine = replace(profile, peer=identity.peer_id, public_name=name)
    announcer = Announcer(OwnDirectory(swarm.net.join(identity), identity, time.time), mine, time.time)
    announcer.state = "online"
    assert await announcer.announce()


async def test_the_page_can_be_used_with_the_keyboard_alone(shown, chromium):
    async with shown(Span(0, 6)) as swarm:
        page = await open_page(chromium, swarm.url, viewport=DESKTOP, reduced_motion="reduce")
        await page.get_by_role("heading", name="tiny is working, with weak spots").wait_for(timeout=30_000)
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the state"
        reached = set()
        for _ in range(30):
            await page.keyboard.press("Tab")
            reached.add(await page.evaluate("document.activeElement.textContent.trim()"))
        assert {"History", "Join", "7 days", "State as JSON"} <= reached
