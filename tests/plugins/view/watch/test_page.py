"""The page of `quintain watch` in a real browser, at the width of a telephone and of a screen.

With ``QUINTAIN_PICTURES=FOLDER`` the tests leave their pictures there, and the milliseconds of each
frame while 100,000 rollouts scroll. Those of the documentation are `docs/images/watch-*.png`.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quintain import Message, Task
from quintain.cli import main
from quintain.store import RunFolder
from quintain.types.rollout import Group
from quintain_view.watch.server import WatchServer
from quintain_view.watch.steering import waiting_orders

from ....pictures import png
from ..viewer.rollout_run import make_run, rollout
from .stored import add_many, make_stored

sync_api: Any = pytest.importorskip(
    "playwright.sync_api", reason="needs a browser: pip install playwright"
)
pytestmark = pytest.mark.ci
NARROW, WIDE = (360, 780), (1400, 900)
MANY = 100_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_stored(place, "sums-2", shift=0.1)
    make_stored(place, "sums")
    return place


@contextmanager
def serving(place: Path, *names: str) -> Iterator[WatchServer]:
    server = WatchServer(place, names, price=2.0)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


@contextmanager
def opened(
    browser: Any, server: WatchServer, size: tuple[int, int] = WIDE, scheme: str = "light"
) -> Iterator[Any]:
    """Open the page; nothing may go wrong on it, and it may ask nobody else."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
    )
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    page.on(
        "request",
        lambda r: (
            None
            if r.url.startswith((f"http://127.0.0.1:{server.port}/", "data:"))
            else wrong.append(r.url)
        ),
    )
    page.goto(server.url)
    page.wait_for_selector("#chosen button", timeout=15_000)
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def picture(page: Any, name: str) -> None:
    if folder := os.environ.get("QUINTAIN_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"watch-{name}.png"))


def fits(page: Any) -> bool:
    """Whether nothing is wider than the window."""
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    return bool(page.evaluate(wide)) and bool(
        page.evaluate("document.getElementById('main').scrollWidth <= innerWidth")
    )


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1400"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_tab_fits_the_window(
    browser: Any, runs: Path, size: tuple[int, int], scheme: str
) -> None:
    """Curves, rollouts, what runs now, and the timeline, by keys alone, in both colour schemes."""
    with serving(runs, "sums") as server, opened(browser, server, size, scheme) as page:
        for key, content in (
            ("1", "figure.chart svg"),
            ("2", ".entry .two"),
            ("3", ".alert.on"),
            ("4", ".waits td"),
        ):
            page.keyboard.press(key)
            page.wait_for_selector(content)
            assert fits(page), key
            picture(page, f"{key}-{size[0]}-{scheme}")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 24, 28)"}[scheme]
        page.keyboard.press("t")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_the_slow_tool_is_named(browser: Any, runs: Path) -> None:
    """The timeline says what the step waited for, in seconds and percent, and what to look at."""
    with serving(runs, "sums") as server, opened(browser, server) as page:
        page.keyboard.press("4")
        page.wait_for_selector(".waits td")

        first = page.locator(".waits tr").first.inner_text()
        assert "45.0 %" in first
        assert "4.50 s" in first
        assert "tool search" in first
        assert "sums, group 1, sample 3" in first
        page.locator("details summary").click()
        assert "sampling on replica 1" in page.locator("details").inner_text()
        canvas = page.locator(".lanes canvas")
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 30)
        sync_api.expect(page.locator(".legend")).to_contain_text("the step waited for tool search")


def test_rollouts_are_found_and_read(browser: Any, runs: Path) -> None:
    """Search, filters, branches, and tokens by log-prob, mask, version and advantage."""
    with serving(runs, "sums") as server, opened(browser, server) as page:
        page.keyboard.press("2")
        page.wait_for_selector(".entry .two")
        count = page.locator(".filters output")
        assert count.inner_text() == "128 rollouts"
        page.keyboard.press("/")
        page.keyboard.type("it is 5")
        sync_api.expect(page.locator(".filters output")).to_have_text("64 rollouts")
        page.select_option("select[name=result]", "failed")
        sync_api.expect(page.locator(".filters output")).to_have_text("16 rollouts")
        page.select_option("select[name=cause]", "infrastructure")
        page.select_option("select[name=result]", "")
        page.fill("input[name=text]", "")
        page.select_option("select[name=cause]", "")
        page.fill("input[name=low]", "1")
        sync_api.expect(page.locator(".filters output")).to_have_text("64 rollouts")
        page.fill("input[name=low]", "")
        sync_api.expect(page.locator(".filters output")).to_have_text("128 rollouts")

        page.locator(".list").focus()
        page.keyboard.press("Home")
        page.wait_for_selector(".detail h2")
        page.get_by_role("button", name="tokens", exact=True).click()
        page.wait_for_selector(".tokens .policy")
        assert page.locator("svg.tree rect").count() == 2
        assert "branch 1, leaves branch 0 after 3 tokens" in page.locator(".tokens").inner_text()
        seen = set()
        for _ in range(4):
            page.keyboard.press("m")
            seen.add(
                page.evaluate(
                    "[...document.querySelectorAll('.tokens .policy')].map(s => s.style.backgroundColor).join()"
                )
            )
        assert len(seen) == 4
        page.locator(".tokens .policy").nth(2).hover()
        legend = page.locator(".legend").inner_text()
        assert "log-prob -2.3, p 0.1, advantage 1, weights 17" in legend
        picture(page, "tokens")


def test_hostile_texts_stay_texts(browser: Any, runs: Path) -> None:
    """Scripts and tags of a model are shown as they are, and nothing of them runs."""
    with serving(runs, "sums") as server, opened(browser, server) as page:
        page.keyboard.press("2")
        page.wait_for_selector(".entry .two")
        page.fill("input[name=text]", "onerror")
        sync_api.expect(page.locator(".filters output")).to_have_text("80 rollouts")
        page.locator(".entry").nth(1).click()
        page.wait_for_selector(".detail .message")
        for name in ("conversation", "tokens", "scores"):
            page.get_by_role("button", name=name, exact=True).click()
        page.get_by_role("button", name="conversation", exact=True).click()

        assert "<script>document.title='injected'</script>" in page.locator(".detail").inner_text()
        assert page.title() == "quintain watch"
        assert page.locator("main img, main script").count() == 0


def test_two_runs_stand_beside_each_other(browser: Any, runs: Path) -> None:
    """Curves share their panels, everything else has a column for each run."""
    with serving(runs, "sums", "sums-2") as server, opened(browser, server) as page:
        page.locator("figure.chart").first.locator("path.line").nth(1).wait_for(state="attached")
        assert page.locator("figure.chart").first.locator("path.line").count() == 2
        assert page.locator("figure.chart").first.locator("path.band").count() == 2
        picture(page, "two-runs")
        page.keyboard.press("2")
        page.wait_for_selector(".pane:nth-child(2) .entry .two")
        assert [h.inner_text() for h in page.locator(".pane > h2").all()] == ["sums", "sums-2"]
        assert fits(page)
        page.get_by_role("button", name="sums-2: leave it out").click()
        assert page.locator(".pane").count() == 1
        page.select_option("#add", "sums-2")
        page.wait_for_selector(".pane:nth-child(2)")


def test_a_running_run_is_followed_and_steered(browser: Any, tmp_path: Path) -> None:
    """New steps and rollouts appear, and a button leaves an order for the run."""
    folder = make_stored(tmp_path, "live", steps=2)
    live = {
        "time": 0.0,
        "step": 3,
        "open": [{"kind": "tool", "tool": "search", "seconds": 4.5, "call": "c"}],
        "count": 1,
        "queue": [[7, 2.0], [8, 12.5]],
        "rollouts": [
            {
                "environment": "arithmetic",
                "group": 9,
                "sample": 0,
                "result": "right",
                "reward": 1.0,
                "termination": "finished",
                "cause": "",
                "sampled": 7,
                "seconds": 0.1,
                "prompt": "a prompt of now",
                "reply": "a reply of now",
            }
        ],
        "finished": 1,
    }
    (folder / "timeline" / "live.json").write_text(json.dumps(live))
    with (
        serving(tmp_path, "live") as server,
        RunFolder.open(folder) as held,
        opened(browser, server) as page,
    ):
        page.keyboard.press("3")
        page.wait_for_selector("text=tool search")
        now = page.locator(".box").first.inner_text()
        assert "2 complete groups wait for the learner, the oldest for 13 s" in now
        assert "step 3 of 2" in page.locator(".box h2").first.inner_text()
        page.fill("input[name=concurrency]", "6")
        page.get_by_role("button", name="set").first.click()
        page.wait_for_selector("text=concurrency is on its way")
        page.get_by_role("button", name="pause").click()
        page.wait_for_selector("text=pause is on its way")
        page.keyboard.press("2")
        page.wait_for_selector("text=a prompt of now")
        page.get_by_text("17 rollouts", exact=True).wait_for()
        held.append({"step": 3, "reward.mean": 0.7, "alerts": []})
        page.wait_for_selector("text=live · running 3/2")
    assert [(o.action, o.value) for _, o in waiting_orders(folder)] == [
        ("concurrency", 6),
        ("pause", None),
    ]


def test_100_000_rollouts_scroll_smoothly(browser: Any, tmp_path: Path) -> None:
    """Only what is visible exists, and a jump to the end shows the last rollout."""
    folder = make_stored(tmp_path, "many", steps=1)
    add_many(folder, MANY)
    with serving(tmp_path, "many") as server, opened(browser, server) as page:
        page.keyboard.press("2")
        page.wait_for_selector(".entry .two", timeout=60_000)
        assert page.locator(".filters output").inner_text() == f"{MANY + 8:,} rollouts"
        frames = page.evaluate(
            """() => new Promise(done => {
                const list = document.querySelector('.list'), spent = [], work = [];
                let last = performance.now(), left = 120, most = 0;
                const step = now => {
                    spent.push(now - last); last = now;
                    list.scrollTop += 400;
                    const began = performance.now();
                    list.dispatchEvent(new Event('scroll'));
                    work.push(performance.now() - began);
                    most = Math.max(most, document.querySelectorAll('.entry').length);
                    if (--left) requestAnimationFrame(step); else done({spent, work, most});
                };
                requestAnimationFrame(step);
            })"""
        )
        if folder_of_pictures := os.environ.get("QUINTAIN_PICTURES"):
            (Path(folder_of_pictures) / "watch-frames.json").write_text(json.dumps(frames))
        assert frames["most"] < 40
        page.locator(".list").focus()
        page.keyboard.press("End")
        page.wait_for_selector(".entry.chosen .two", timeout=60_000)
        assert page.locator(".entry.chosen").count() == 1
        picture(page, "many")


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["360", "1400"])
def test_pictures_of_a_message_stand_beside_each_other(
    browser: Any, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of 120 pixels fit a telephone, and a label of the policy has none; on the page that
    `quintain rollouts --html` writes, too.
    """
    from quintain_vision import picture as stored

    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))
    two = stored(png("red", (120, 90))) + stored(png("blue", (120, 90)))
    given = (Message("user", f"{two}Alike?"), Message("assistant", f"No: {two}"))
    made = rollout(1, 0, 0, messages=given, task=Task(prompt=given[0].content))
    make_run(tmp_path / "runs", steps=1)
    folder = RunFolder(tmp_path / "runs" / "sums", lock=False)
    folder.write_rollouts(1, [Group(task=made.task, rollouts=(made,))], {})
    boxes = "[...document.querySelectorAll('.message img')].map(i => [i.x, i.y, i.naturalWidth])"

    def beside(page: Any) -> bool:
        (left, top, width), (right, other, _) = page.evaluate(boxes)
        return bool(left < right and top == other and width == 120)

    with serving(tmp_path / "runs", "sums") as server, opened(browser, server, size) as page:
        page.keyboard.press("2")
        page.locator(".entry").first.click()
        page.wait_for_selector(".message img")
        assert beside(page)
        assert fits(page)
    file = tmp_path / "a.html"
    words = ["rollouts", "sums", "--folder", str(tmp_path / "runs"), "--html", str(file)]
    assert main(words) == 0
    page = browser.new_page(viewport={"width": size[0], "height": size[1]})
    page.goto(file.as_uri())
    if size == NARROW:
        page.get_by_text("Alike?").first.click()
    page.wait_for_selector(".message img")
    assert beside(page)
    page.close()
