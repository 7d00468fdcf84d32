"""The chat page in a browser: streams, stops, obeys its settings and never reads text as HTML."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.serving.config import MIN_KEY_CHARS
from tests.support.chat_templates import CHATML
from tests.support.served_models import Served, publish_model, served

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

HOSTILE = '<img src=x onerror="document.title=1"><b>bold</b> & <script>document.title=1</script>'
KEY = "k" * MIN_KEY_CHARS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = publish_model(tmp_path_factory.mktemp("model"), CHATML, max_seq_len=4096)
    with served(folder) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Page:
    """An open page, with what it asked for and what it complained of."""

    def __init__(self, browser: Any, server: Served, **settings: Any) -> None:
        self.context = browser.new_context(**settings)
        self.tab = self.context.new_page()
        self.complaints: list[str] = []
        self.asked: list[Any] = []
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda request: self.asked.append(request))
        self.tab.goto(server.url)

    def ready(self) -> Page:
        self.tab.wait_for_selector("#model:not(:empty)")
        return self

    def set(self, **values: str) -> None:
        self.tab.click("#open-settings")
        for name, value in values.items():
            self.tab.fill(f"#{name.replace('_', '-')}", value)
        self.tab.keyboard.press("Escape")
        self.tab.locator("#settings").wait_for(state="hidden")

    def lengthen(self, min_tokens: int) -> None:
        """Let no answer end before."""

        def ask(route: Any) -> None:
            body = json.loads(route.request.post_data) | {"min_tokens": min_tokens}
            route.continue_(post_data=json.dumps(body))

        self.tab.route("**/completions", ask)

    def say(self, text: str, count: int = 1) -> None:
        """Send, and wait for as many answers."""
        self.tab.fill("#prompt", text)
        self.tab.press("#prompt", "Enter")
        self.tab.locator(".facts").nth(count - 1).wait_for()

    def texts(self) -> list[str]:
        return self.tab.locator(".text").all_text_contents()  # type: ignore[no-any-return]

    def bodies(self) -> list[Any]:
        return [json.loads(one.post_data) for one in self.asked if one.post_data]


@pytest.fixture
def page(browser: Any, server: Served) -> Iterator[Page]:
    opened = Page(browser, server)
    yield opened.ready()
    assert opened.complaints == []
    assert all(one.url.startswith((server.url, "data:")) for one in opened.asked)
    opened.context.close()


def test_an_answer_is_shown_with_its_times_and_the_chat_goes_on(page: Page) -> None:
    page.set(max_tokens="12", seed="3")
    page.lengthen(12)
    page.say("the a")
    facts = page.tab.locator(".facts").inner_text()
    assert "first token" in facts and "tokens/s" in facts and "12 tokens" in facts
    page.say("more", count=2)
    first, second = page.bodies()
    assert [m["content"] for m in second["messages"]] == [
        "the a",
        page.texts()[1],
        "more",
    ]
    assert first["max_tokens"] == 12 and first["seed"] == 3 and first["temperature"] == 0.8


def test_text_is_never_taken_for_html(page: Page) -> None:
    title = page.tab.title()
    page.set(max_tokens="4", system=HOSTILE)
    page.say(HOSTILE)
    assert page.texts()[0] == HOSTILE
    assert page.tab.locator("#log b, #log img, #log script").count() == 0
    assert page.tab.title() == title
    assert page.bodies()[0]["messages"][0] == {"role": "system", "content": HOSTILE}


@pytest.mark.parametrize("by", ["button", "key"])
def test_an_answer_is_stopped_by_button_and_by_key(page: Page, server: Served, by: str) -> None:
    engine = server.service.worker._engine
    page.set(max_tokens="4000")
    page.lengthen(3900)
    page.tab.fill("#prompt", "x")
    page.tab.press("#prompt", "Enter")
    page.tab.wait_for_selector(".writing")
    assert page.tab.inner_text("#send") == "Stop"
    if by == "button":
        page.tab.click("#send")
    else:
        page.tab.keyboard.press("Escape")
    page.tab.wait_for_selector(".facts")
    assert "stopped" in page.tab.inner_text(".facts") and page.tab.inner_text("#send") == "Send"
    limit = time.monotonic() + 10
    while engine.busy:
        assert time.monotonic() < limit, "the request goes on"
        time.sleep(0.01)


def test_shift_enter_breaks_the_line_and_enter_sends(page: Page) -> None:
    page.set(max_tokens="1")
    page.tab.type("#prompt", "one")
    page.tab.press("#prompt", "Shift+Enter")
    page.tab.type("#prompt", "two")
    assert page.tab.locator("#log li").count() == 0
    page.tab.press("#prompt", "Enter")
    page.tab.locator(".facts").wait_for()
    assert page.texts()[0] == "one\ntwo" and page.tab.input_value("#prompt") == ""


def test_what_the_server_refuses_is_shown(page: Page) -> None:
    page.set(max_tokens="1")
    page.tab.fill("#prompt", "the " * 5000)
    page.tab.press("#prompt", "Enter")
    page.tab.wait_for_selector(".failed")
    assert "shorten" in page.tab.inner_text(".failed")
    page.tab.click("#new")
    assert page.tab.locator("#log li").count() == 0 and page.tab.is_visible("#empty")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_its_window_in_light_and_dark(
    browser: Any, server: Served, width: int
) -> None:
    shown = {}
    for scheme in ("light", "dark"):
        page = Page(
            browser, server, viewport={"width": width, "height": 700}, color_scheme=scheme
        ).ready()
        page.set(max_tokens="30")
        page.say("word" * 200)
        for place in ("html", "#scroll"):
            fits = "part => part.scrollWidth <= part.clientWidth"
            assert page.tab.eval_on_selector(place, fits), f"{place} scrolls sideways"
        shown[scheme] = page.tab.evaluate("getComputedStyle(document.body).backgroundColor")
        page.context.close()
    assert shown["light"] != shown["dark"]


def test_a_server_with_a_key_asks_for_it_and_a_model_without_a_template_continues(
    browser: Any, tmp_path: Path
) -> None:
    with served(publish_model(tmp_path), api_key=KEY) as guarded:
        page = Page(browser, guarded)
        page.tab.get_by_text("asks for an API key").wait_for()
        page.set(key=KEY, max_tokens="8")
        page.ready()
        assert "continues each text" in page.tab.inner_text("#empty-hint")
        page.say("the a")
        assert page.bodies()[-1]["prompt"] == "the a"
        assert page.complaints == []
        page.context.close()
