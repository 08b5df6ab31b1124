"""The status page in headless Chromium: what it shows, live, from where, in both colour schemes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from serve.chromium import Page
from serve.harness import MODEL, PATIENCE, Launcher, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.asyncio]


async def until(page: Page, expression: str) -> None:
    end = time.monotonic() + PATIENCE
    while not await page.evaluate(expression):
        assert time.monotonic() < end, f"never true: {expression}\n{await page.evaluate('document.body.innerText')}"
        await asyncio.sleep(0.1)


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r}).innerText"


async def test_it_shows_the_engines_figures_and_follows_them(launcher: Launcher) -> None:
    async with Page() as page:
        await page.open(launcher.url)
        await until(page, f"{text_of('#model')} === {MODEL!r}")
        assert await page.evaluate(text_of("#state-text")) == "ready"
        assert "index keys fp4" in await page.evaluate(text_of("#subtitle"))
        cells = "[...document.querySelectorAll('#kv tbody tr:first-child td')].map(cell => cell.textContent)"
        assert await page.evaluate(cells) == [
            "main",
            "device",
            "",
            "16,384",
            "–",
            "65,536",
            "36.5 MiB",
            "–",
            "584",
        ]
        assert await page.evaluate("document.querySelector('#kv .bar span').style.width") == "25%"
        assert "reference decode\t120" in await page.evaluate(text_of("#launches"))
        assert "weights\t0.25 s" in await page.evaluate(text_of("#phases"))

        await until(page, f"{text_of('#rate')} === '0.0'")
        await asyncio.to_thread(launcher.chat, max_tokens=100)
        await until(page, f"parseFloat({text_of('#rate')}) > 1")
        await until(page, "document.querySelectorAll('#chart-rate svg path.line').length >= 1")
        # The stand-in never changes these, so nothing is known of the last minute: a dash, not a zero.
        assert await page.evaluate(text_of("#ttft")) == "–"
        assert await page.evaluate("document.querySelector('#key-form').offsetParent") is None
        foreign = [url for url in page.requests if not url.startswith((launcher.url, "data:"))]
        assert foreign == []


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
async def test_both_colour_schemes_are_readable(launcher: Launcher, scheme: str, dark: bool, tmp_path: Path) -> None:
    async with Page() as page:
        await page.open(launcher.url, scheme)
        await until(page, "!document.querySelector('#panels').hidden")
        colours = await page.evaluate(
            "['backgroundColor', 'color'].map(p => getComputedStyle(document.body)[p].match(/\\d+/g).map(Number))"
        )
        paper, ink = (sum(channels[:3]) / 3 for channels in colours)
        assert (paper < ink) == dark
        assert abs(paper - ink) > 150
        await page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 20_000


async def test_it_fits_a_narrow_window(launcher: Launcher) -> None:
    async with Page() as page:
        await page.resize(390, 800)
        await page.open(launcher.url)
        await until(page, "!document.querySelector('#panels').hidden")
        assert await page.evaluate("document.documentElement.scrollWidth <= 390")


async def test_it_says_why_a_server_is_not_ready_and_when_it_is_gone(model_dir: Path) -> None:
    with Launcher(model_dir, standin=["--start-delay", "4"], wait=False) as launcher:
        async with Page() as page:
            await page.open(launcher.url)
            await until(page, f"{text_of('#state-text')}.startsWith('engine boot')")
            assert "the engine is starting" in await page.evaluate(text_of("#notice"))
            assert not await page.evaluate("document.querySelector('#kv-absent').hidden")
            await until(page, f"{text_of('#state-text')} === 'ready'")
            assert await page.evaluate("document.querySelector('#notice').hidden")
            launcher.process.terminate()
            await asyncio.to_thread(launcher.exit_code)
            await until(page, f"{text_of('#state-text')} === 'unreachable'")


async def test_with_keys_it_asks_for_one(model_dir: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    with Launcher(model_dir, ["--api-keys-file", str(keys)], wait=False) as launcher:
        wait_until(launcher.ready, "ready")
        async with Page() as page:
            await page.open(launcher.url)
            await until(page, "!document.querySelector('#key-form').hidden")
            assert await page.evaluate("document.querySelector('#panels').hidden")
            await page.evaluate(
                "document.querySelector('#key').value = 'open-sesame';"
                "document.querySelector('#key-form').requestSubmit()"
            )
            await until(page, f"{text_of('#model')} === {MODEL!r}")
            assert await page.evaluate("document.querySelector('#key-form').hidden")
