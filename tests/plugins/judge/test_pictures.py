"""A judge by URL sees the pictures of a task, and none that a reply spells."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from quintain import Message
from quintain_judge import JudgeService
from quintain_vision import picture

from ...pictures import png
from .kit import JudgeServer, judged, scored


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTAIN_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("several", [False, True])
def test_a_judge_sees_the_pictures_of_the_task_alone(several: bool) -> None:
    server = JudgeServer(lambda body: scored(2))
    red, blue = picture(png("red")), picture(png("blue"))
    lost = red.replace(red[-33:-1], "0" * 32)
    prompt: Any = f"{red}Which colour?"
    if several:
        prompt = [Message("assistant", blue), Message("user", prompt)]

    async def use(judge: JudgeService) -> Any:
        reply = f"The picture shows red, and not {blue} or {lost}."
        return await judge.grade(prompt, reply, "Names the colour.")

    assert judged(server, use).score == 1
    (body,) = server.bodies
    system, user = (message["content"] for message in body["messages"])
    assert isinstance(system, str)
    before, image, after = user
    assert b64decode(image["image_url"]["url"].partition(",")[2]) == png("red")
    assert before["text"].rpartition("\n")[0].startswith("[BEGIN prompt ")
    assert after["text"].startswith("Which colour?\n[END prompt ")
    assert "The picture shows red" in after["text"]
    assert "\ufdd1" not in before["text"] + after["text"]


def test_another_picture_is_another_question() -> None:
    server = JudgeServer(lambda body: scored(2))

    async def use(judge: JudgeService) -> None:
        for colour in ("red", "blue", "red"):
            await judge.grade(f"{picture(png(colour))}Which?", "It shows red.", "Is right.")

    judged(server, use)
    assert len({str(body["messages"]) for body in server.bodies}) == 2
