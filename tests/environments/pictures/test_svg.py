"""SVG of a policy: drawn without files, network and lasting harm, and compared with a picture."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import resvg_py
from PIL import Image

from quintain.errors import InfrastructureError, UsageError
from quintain.testing import rollout
from quintain_authoring import EnvironmentSuite
from quintain_env_pictures import rendering, svg_worker
from quintain_env_pictures.rendering import DrawingFault, DrawingProcess, render, svg_of
from quintain_env_pictures.svg import Svg, likeness, same_picture
from quintain_vision.messages import REFERENCE

PAGE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64">{}</svg>'
RED = PAGE.format('<circle cx="32" cy="32" r="20" fill="red"/>')


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path))


class TestSvg(EnvironmentSuite):
    environment = Svg
    args = {"train": 20, "held_out": 20}
    sample = 20


class TestSvgOfWords(EnvironmentSuite):
    environment = Svg
    args = {"train": 20, "held_out": 20, "prompt": "text"}
    sample = 20


def score(reply: str, answer: str = RED) -> Any:
    task = next(iter(Svg(prompt="text", train=1).tasks("train")))
    return asyncio.run(same_picture.ascore(rollout(replace(task, answer=answer), reply)))


# ---------------------------------------------------------------- what is drawn
def test_a_drawing_is_scaled_to_the_page_and_lies_on_white() -> None:
    image = render('<svg viewBox="0 0 6 6"><rect width="3" height="6" fill="blue"/></svg>', 64)
    assert image.size == (64, 64)
    assert image.getpixel((10, 32)) == (0, 0, 255)
    assert image.getpixel((50, 32)) == (255, 255, 255)


@pytest.mark.parametrize(
    "inside",
    [
        '<circle cx="32" cy="32" r="20" style="fill:#ff0000; font: 9px x"/>',
        '<title>a <desc>x</desc> circle</title><g fill="red"><circle cx="32" cy="32" r="20"/></g>',
        '<defs><linearGradient id="a"><stop stop-color="red"/></linearGradient></defs>'
        '<circle cx="32" cy="32" r="20" fill="url(#a)" onclick="alert(1)" class="x"/>',
    ],
)
def test_usual_ways_to_write_a_circle_draw_it(inside: str) -> None:
    assert render(PAGE.format(inside), 64).tobytes() == render(RED, 64).tobytes()


def test_the_last_drawing_of_a_reply_counts() -> None:
    reply = f"First <svg></svg>. Better:\n```svg\n{RED}\n```\nDone."
    assert svg_of(reply) == RED
    assert score(reply).total == 1


# ---------------------------------------------------------------- how it is compared
def test_likeness_is_the_weighted_overlap_of_ink() -> None:
    left, right = Image.new("RGB", (4, 4), "white"), Image.new("RGB", (4, 4), "white")
    left.paste((0, 255, 255), (0, 0, 4, 2))  # ink of 255 in one channel, of 8 pixels
    right.paste((55, 255, 255), (0, 1, 4, 3))  # ink of 200, of 8 pixels; 4 are common
    pixels, _ = likeness(left, right)
    assert pixels == pytest.approx(4 * 200 / (8 * 255 + 4 * 200))


def test_likeness_is_one_for_equal_pictures_alone_and_has_no_order() -> None:
    moved = render(RED.replace('cx="32"', 'cx="33"'), 64)
    assert likeness(render(RED, 64), render(RED, 64)) == (1, 1)
    assert likeness(render(RED, 64), moved) == likeness(moved, render(RED, 64))
    assert max(likeness(render(RED, 64), moved)) < 1


def test_a_drawing_that_is_nearer_scores_higher() -> None:
    far, near = (score(RED.replace('cx="32"', f'cx="{x}"')).total for x in (44, 34))
    assert 0 < far < near < 1


@pytest.mark.parametrize(
    "inside",
    [
        "",
        '<rect width="64" height="64" fill="black"/>',
        '<rect width="64" height="64" fill="gray"/>',
        '<rect width="64" height="64" fill="#eee"/>',
        f'<path stroke="black" d="{"".join(f"M0 {i}H64M{i} 0V64" for i in range(0, 64, 4))}"/>',
    ],
)
def test_one_drawing_for_all_tasks_scores_low(inside: str) -> None:
    tasks = [*Svg(prompt="text", held_out=30).tasks("test")]
    reply = PAGE.format(inside)
    scores = [mean(likeness(render(reply, 64), render(task.answer, 64))) for task in tasks]
    assert mean(scores) < 0.07


def test_a_blind_guess_scores_low() -> None:
    environment = Svg(prompt="text", held_out=40)
    scores = [
        mean(likeness(render(environment.blind_guess(task, ()), 64), render(task.answer, 64)))
        for task in environment.tasks("test")
    ]
    assert 0 < mean(scores) < 0.1


def test_a_blind_task_has_neither_picture_nor_description() -> None:
    for prompt in ("picture", "text"):
        (seen,), (blind,) = (Svg(prompt=prompt, train=1, blind=b).tasks("train") for b in (0, 1))  # type: ignore[arg-type]
        assert blind.prompt[0].content == seen.prompt[0].content.split("\n")[1]  # type: ignore[union-attr]
        assert not REFERENCE.search(blind.prompt[0].content)  # type: ignore[union-attr]
        assert (blind.id, blind.answer) == (seen.id, seen.answer)


@pytest.mark.parametrize("fields", [{"size": 8}, {"shapes": 5}, {"train": 0}, {"prompt": "sound"}])
def test_settings_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="expected"):
        Svg(**fields)


# ---------------------------------------------------------------- attacks
@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.png"
    Image.new("RGB", (8, 8), "blue").save(path)
    return path


def attacks(secret: Path) -> dict[str, str]:
    image = PAGE.format(f'<image {{}}="{{}}{secret}" width="64" height="64"/>')
    bomb = '<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">{}]>' + PAGE
    return {
        "file": image.format("href", ""),
        "file url": image.format("href", "file://"),
        "xlink": image.format("xlink:href", ""),
        "entities": bomb.format("", "<title>&b;</title>"),
        "external entity": bomb.format(f'<!ENTITY x SYSTEM "{secret}">', "<title>&x;</title>"),
        "external type": f'<!DOCTYPE svg SYSTEM "{secret}">{RED}',
        "paint of a file": PAGE.format(f'<rect fill="url({secret}#a)" width="9" height="9"/>'),
        "paint of a server": PAGE.format('<rect fill="url(http://127.0.0.1:9/)" width="9"/>'),
        "escaped url": PAGE.format(f'<rect style="fill: u\\72l({secret})" width="9"/>'),
        "import": PAGE.format(f"<style>@import url({secret});</style>"),
        "import of an attribute": PAGE.format(f'<g style="fill:@import {secret}"/>'),
        "use": PAGE.format(f'<use href="{secret}#a"/>'),
        "filter": PAGE.format(f'<filter id="a"><feImage href="{secret}"/></filter>'),
        "script": PAGE.format("<script>1</script>"),
        "html": PAGE.format("<foreignObject><b/></foreignObject>"),
        "text": PAGE.format("<text>a</text>"),
        "picture within": PAGE.format(PAGE.format("")),
        "another name": '<rect xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
        "huge page": RED.replace("0 0 64 64", "0 0 1e30 1e30"),
        "page of nothing": RED.replace("0 0 64 64", "0 0 0 0"),
        "page of no number": RED.replace("0 0 64 64", "0 0 nan inf"),
        "many elements": PAGE.format("<g/>" * 1000),
        "deep": PAGE.format("<g>" * 40 + "</g>" * 40),
        "long": PAGE.format(" " * 50_000),
        "unclosed": "<svg><g></svg>",
        "two": RED + RED,
        "nothing": "",
        "zeros": "\0" * 100,
        "panic": PAGE.format(
            '<g transform="scale(1e30)"><circle r="9" stroke="red" stroke-dasharray="1e-30"/></g>'
        ),
    }


@pytest.mark.parametrize("name", sorted(attacks(Path("x"))))
def test_an_attack_is_a_fault_of_the_policy(name: str, secret: Path) -> None:
    with pytest.raises(DrawingFault):
        render(attacks(secret)[name], 64)
    assert render(RED, 64).getpixel((32, 32)) == (255, 0, 0)


@pytest.mark.parametrize("name", ["file", "entities", "huge page", "nothing", "panic"])
def test_an_attack_scores_nothing_and_says_why(name: str, secret: Path) -> None:
    scored = score(attacks(secret)[name].partition("]>")[2] or attacks(secret)[name])
    assert scored.total == 0
    assert scored.reason


HOLE = """
import sys
sys.argv = [sys.argv[1], *sys.argv[2:]]
import importlib.util
spec = importlib.util.spec_from_file_location("svg_worker", sys.argv[0])
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)
worker.checked = lambda text, size: text
{}
worker.main()
"""


def drawn_unchecked(svg: str, before: str) -> bytes:
    """What the process draws of *svg* where nothing checks it first; the renderer alone reads files."""
    folder = str(Path(resvg_py.__file__).parent.parent)
    arguments = [svg_worker.__file__, folder, "2.0", "512"]
    request = json.dumps({"svg": svg, "size": 64}).encode()
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", HOLE.format(before), *arguments],
        input=svg_worker.LENGTH.pack(len(request)) + request,
        capture_output=True,
        timeout=60,
    )
    return ran.stdout[svg_worker.LENGTH.size :]


def test_the_process_reads_no_file_even_where_a_reference_gets_through(secret: Path) -> None:
    svg = PAGE.format(f'<image href="{secret}" width="64" height="64"/>')
    without_limits = "worker.resource.setrlimit = lambda *limit: None"
    blank = drawn_unchecked(PAGE.format(""), "")
    assert drawn_unchecked(svg, without_limits) != blank  # the attack is real
    assert drawn_unchecked(svg, "") == blank


def process(**settings: Any) -> contextlib.closing[DrawingProcess]:
    return contextlib.closing(DrawingProcess(**settings))


DASHES = '<circle r="1e10" stroke="red" stroke-dasharray="0.01" stroke-width="9" fill="none"/>'


def test_a_drawing_that_takes_too_long_is_a_fault_of_the_policy() -> None:
    with process(cpu_seconds=0.1) as drawing:
        with pytest.raises(DrawingFault, match=r"more than 0\.1 s"):
            drawing.draw(PAGE.format(DASHES), 64)
        assert drawing.draw(RED, 64)


def test_a_drawing_that_a_loaded_machine_computes_slowly_is_a_fault_of_the_policy() -> None:
    """It has not used its limit when the patience ends, and computes on."""
    with process(cpu_seconds=0.5) as drawing:
        drawing.draw(RED, 64)
        drawing.patience = 0.3
        with pytest.raises(DrawingFault, match=r"more than 0\.5 s"):
            drawing.draw(PAGE.format(DASHES), 64)


def test_a_drawing_that_takes_too_much_memory_is_a_fault_of_the_policy() -> None:
    with process(memory=64) as drawing:
        with pytest.raises(DrawingFault, match="more memory than 64 MiB"):
            drawing.draw(PAGE.format(DASHES), 64)
        assert drawing.draw(RED, 64)


# ---------------------------------------------------------------- failures of the grader
def test_a_process_that_another_killed_is_started_again() -> None:
    with process() as drawing:
        drawing.draw(RED, 64)
        killed = drawing.pid
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert drawing.draw(RED, 64)
        assert drawing.pid != killed


def test_a_renderer_that_does_not_start_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    with process(memory=1) as drawing:
        monkeypatch.setattr(rendering, "PROCESS", drawing)
        with pytest.raises(InfrastructureError, match="draws SVG ended with status"):
            score(RED.replace("20", "17"), answer=RED.replace("20", "16"))


@pytest.mark.parametrize("words", ["", "\u00e4" * 40_000], ids=["short", "more than a pipe holds"])
def test_a_process_that_is_stuck_is_no_zero(words: str) -> None:
    long = PAGE.format(f"<title>{words}</title>")
    with process() as drawing:
        drawing.draw(RED, 64)
        assert drawing.pid is not None
        os.kill(drawing.pid, signal.SIGSTOP)
        drawing.patience = 0.1
        with pytest.raises(InfrastructureError, match="silent for"):
            drawing.draw(long, 64)
        drawing.patience = 30
        assert drawing.draw(long, 64)


def test_without_a_renderer_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with (
        process() as drawing,
        pytest.raises(UsageError, match=r"pip install 'quintain-env-pictures\[svg\]'"),
    ):
        drawing.draw(RED, 64)


def test_a_forked_process_draws_by_itself() -> None:
    image = render(RED.replace("20", "13"), 64)
    pid = os.fork()
    if not pid:
        os._exit(int(render(RED.replace("20", "12"), 64).size != image.size))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert render(RED.replace("20", "11"), 64).size == image.size
