"""`quintain chat`: the form of the environment's prompts, streaming, held-out tasks, commands,
Ctrl-C.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quintain import Message, Sampled, Sampling
from quintain.cli import main
from quintain.engine.embedded import EmbeddedEngine
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.recipe import EnvironmentSpec, Recipe
from quintain.rollouts import Conversation, stops
from quintain_authoring import ScriptedEngine
from quintain_authoring.byte_tokenizer import ByteTokenizer
from quintain_view.viewer.chat import HELP, ChatConsole, Played
from quintain_view.viewer.chat_template import with_template
from quintain_view.viewer.prompt_form import PromptForm
from quintain_view.viewer.streaming import stream

from ....core.models.tiny import CHATML, byte_tokenizer, save_tiny

FORM = PromptForm(after="=?\nEnd with #### and the result.")


@pytest.mark.parametrize(
    "text",
    [
        "583+671",
        "583+671=",
        "583+671=?",
        " 583+671=?\nEnd with #### and the result. ",
        "583+671=? End with #### and the result.",
    ],
)
def test_a_question_gets_the_form_of_the_prompts(text: str) -> None:
    """Whatever part of the form the user typed is not repeated."""
    assert FORM.fill(text) == "583+671=?\nEnd with #### and the result."


@pytest.mark.parametrize(
    ("prompts", "form"),
    [
        (["12+345=?\nEnd well.", "92+445=?\nEnd well."], PromptForm(after="=?\nEnd well.")),
        (["Translate: cat", "Translate: dog"], PromptForm(before="Translate: ")),
        (
            ["Question: one ends here", "Question: two ends here"],
            PromptForm(before="Question: ", after=" ends here"),
        ),
        (["What is 1?", "What is 1?"], PromptForm()),
        (["aaa", "aab"], PromptForm()),
        ([], PromptForm()),
    ],
)
def test_the_form_is_read_from_prompts(prompts: list[str], form: PromptForm) -> None:
    assert form == PromptForm.of(prompts)
    for prompt in set(prompts):
        assert prompt == form.fill(prompt)


# ---------------------------------------------------------------- streaming
class Typist:
    """Continues a text of bytes, as many tokens as are asked for; stops at id 0."""

    def __init__(self, text: str) -> None:
        self.tokenizer, self.ids, self.calls = ByteTokenizer(), [*text.encode(), 0], 0

    async def sample(self, ids: Sequence[int], sampling: Sampling) -> Sampled:
        self.calls += 1
        new = tuple(self.ids[len(ids) :][: sampling.max_tokens])
        finish: Any = "stop" if new[-1:] == (0,) else "length"
        columns: dict[str, Any] = {"logps": (-0.5,) * len(new), "versions": (1,) * len(new)}
        return Sampled(ids=new, finish=finish, stop=0 if finish == "stop" else None, **columns)


def streamed(text: str, **sampling: Any) -> tuple[Sampled, list[str]]:
    pieces: list[str] = []
    engine: Any = Typist(text)
    taken = asyncio.run(stream(engine, (), Sampling(temperature=0.0, **sampling), pieces.append))
    return taken, [piece for piece in pieces if piece]


def test_an_answer_is_shown_in_pieces() -> None:
    """All of the text, once, without the stop token; a character is never shown in halves."""
    text = "Twenty-one tökens äöü"
    taken, pieces = streamed(text)

    assert text == "".join(pieces)
    assert len(pieces) > 2
    assert (*text.encode(), 0) == taken.ids
    assert taken.finish == "stop"
    assert taken.stop == 0
    assert len(taken.ids) == len(taken.logps) == len(taken.versions)


def test_a_stop_string_across_two_pieces_ends_the_turn() -> None:
    """It is not shown; the turn keeps the tokens up to the one that completes it, as engines do."""
    taken, pieces = streamed("12345 END and more text", stop=("END",))

    assert "".join(pieces) == "12345 "
    assert taken.finish == "stop"
    assert taken.stop == "END"
    assert len("12345 END") == len(taken.ids)


def test_max_tokens_ends_an_answer() -> None:
    taken, pieces = streamed("a long answer without an end", max_tokens=11, stop=("END",))

    assert "".join(pieces) == "a long answ"
    assert taken.finish == "length"
    assert len(taken.ids) == 11


def test_pieces_are_the_tokens_of_one_call(tmp_path: Path) -> None:
    """The embedded engine decodes the same greedy tokens in pieces as at once."""
    engine = EmbeddedEngine(str(save_tiny(tmp_path / "model", context=160) or tmp_path / "model"))

    async def both() -> tuple[Sampled, Sampled]:
        conversation = Conversation(engine.tokenizer)
        conversation.add(Message("user", "2+2=?"))
        sampling = stops(engine.tokenizer, Sampling(temperature=0.0, max_tokens=20))
        once = await engine.sample(conversation.prompt_ids(), sampling)
        return once, await stream(engine, conversation.prompt_ids(), sampling, lambda piece: None)

    once, pieces = asyncio.run(both())
    assert once.ids == pieces.ids
    assert once.finish == pieces.finish


# ---------------------------------------------------------------- commands
def chat_of(reply: str, **settings: Any) -> tuple[ChatConsole, Any]:
    engine = ScriptedEngine(replies=reply)
    recipe = Recipe.of({"environments": [{"use": "arithmetic"}]})
    played = Played(recipe, EnvironmentSpec.of(recipe.environments[0]))
    form, shown = played.form()
    about: dict[str, Any] = {"system": "", "played": played, "form": form, "shown": shown}
    about |= settings
    return ChatConsole(
        engine=engine, sampling=Sampling(temperature=0.0, max_tokens=4096), **about
    ), engine


def test_the_form_of_arithmetic_is_found() -> None:
    assert chat_of("")[0].form == FORM


def test_a_text_stands_behind_the_messages_that_are_before_each_task(tmp_path: Path) -> None:
    """A model that learned behind worked rows gets them in a conversation, too, unless it is raw."""
    path = tmp_path / "rows.csv"
    rows = [f"row {i},{'ab'[i % 2]}" for i in range(40)]
    path.write_text("\n".join(["question,answer", *rows]))
    recipe = Recipe.of(
        {"environments": [{"use": "dataset", "args": {"path": str(path), "shown": 2}}]}
    )
    played = Played(recipe, EnvironmentSpec.of(recipe.environments[0]))
    form, shown = played.form()
    task = next(iter(played.spec.make({}).tasks("test")))

    assert [message.role for message in shown] == ["user", "assistant"] * 2
    assert task.prompt[:4] == shown
    chat, _ = chat_of("", played=played, form=form, shown=shown)
    assert chat.conversation.messages == [*shown]
    assert "after the 4 messages before each task" in chat.welcome()
    chat.raw = True
    chat.start()
    assert not chat.conversation.messages


def test_a_task_is_played_and_scored(capsys: pytest.CaptureFixture[str]) -> None:
    """/task plays the next held-out task, /task N a certain one."""
    chat, _ = chat_of("#### 949")
    with asyncio.Runner() as runner:
        for line in ("/task", "/task", "/task 1"):
            chat.take(runner, line)
        for line, message in (
            ("/task 0", "expected the number of a task"),
            ("/task 100000", "the test split has 200 tasks"),
            ("/tusk", "unknown command '/tusk'"),
        ):
            with pytest.raises(UsageError, match=message):
                chat.take(runner, line)
    out = capsys.readouterr().out

    assert out.count("End with #### and the result.\nassistant: #### 949") == 3
    assert "task 2: wrong; reward 0" in out
    assert out.count("task 1: right; reward 1") == 2 * ("315+634" in out)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    chat, _ = chat_of("")
    with asyncio.Runner() as runner:
        chat.take(runner, "/help")

    assert HELP in capsys.readouterr().out


@pytest.mark.parametrize("form", [FORM, PromptForm()])
def test_texts_are_single_prompts_unless_raw(
    form: PromptForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an environment of one turn each text is a conversation of its own; /raw sends texts as
    they are, in one.
    """
    chat, _ = chat_of("", form=form)
    seen: list[list[str]] = []

    async def answer(text: str) -> None:
        chat.conversation.add(Message("user", text))
        seen.append([message.content for message in chat.conversation.messages])

    monkeypatch.setattr(chat, "answer", answer)
    with asyncio.Runner() as runner:
        for line in ("1+1", "2+2", "/raw", "3+3", "/new", "4+4", "5+5"):
            chat.take(runner, line)

    assert [
        [form.fill("1+1")],
        [form.fill("2+2")],
        [form.fill("2+2"), "3+3"],
        ["4+4"],
        ["4+4", "5+5"],
    ] == seen


def test_no_environment_means_no_tasks() -> None:
    chat = chat_of("", played=None, form=PromptForm())[0]
    with asyncio.Runner() as runner, pytest.raises(UsageError, match="no environment"):
        chat.take(runner, "/task")


POLITE = f"{Path(__file__).parents[4]}/examples/smollm2/polite.py:Polite"


def test_a_folder_plays_the_environment_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "model", context=512)
    words = ["chat", str(tmp_path / "model"), "--env", POLITE, "-a", "blunt=other"]

    assert main([*words, "--max-tokens", "4", "--once", "/task"]) == 0

    said = capsys.readouterr().out
    assert "Get " in said
    assert "task 1: " in said
    assert "Reply with the question alone." in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-a", "blunt=other"], "--arg is for the environment of --env"),
        (["--env", "polit"], "unknown environment 'polit'"),
        (["--env", POLITE, "-a", "rude=1"], "rude"),
    ],
)
def test_a_wrong_environment_is_refused(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "model")
    assert main(["chat", str(tmp_path / "model"), *options, "--once", "/task"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.ci
def test_ctrl_c_ends_the_chat_at_once(tmp_path: Path) -> None:
    """At the prompt, while the input is open: status 130, no traceback."""
    save_tiny(tmp_path / "model", context=160)
    words = [sys.executable, "-m", "quintain", "chat", str(tmp_path / "model")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0
    ) as process:
        assert process.stderr is not None
        text = ""
        while not text.endswith("> "):
            text += process.stderr.read(1)
        os.kill(process.pid, signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert "Traceback" not in rest


# ---------------------------------------------------------------- models without a chat template
QA = (
    "{% for m in messages %}{{ 'Q: ' if m.role == 'user' else 'A: ' }}{{ m.content }}\n{% endfor "
    "%}A:"
)


def test_a_base_model_says_how_it_is_prompted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And --template, as text or a file, sets another form; the reply ends where the next question
    would begin.
    """
    model = str(save_tiny(tmp_path / "base", context=160, template=None))
    (tmp_path / "qa.jinja").write_text(QA)
    seen: list[tuple[str, tuple[str, ...]]] = []

    async def streamed(engine: Any, ids: Sequence[int], sampling: Sampling, show: Any) -> Sampled:
        seen.append((engine.tokenizer.decode(ids), sampling.stop))
        return Sampled(ids=(65,), logps=(-1.0,), versions=(0,), finish="length")

    monkeypatch.setattr("quintain_view.viewer.chat.stream", streamed)
    plain = ("User: Why?\n\nAssistant:", ("\n\nUser:", "\n\nTool:"))
    for words, form in (
        ([], plain),
        (["--template", QA], None),
        (["--template", str(tmp_path / "qa.jinja")], None),
    ):
        assert main(["chat", model, "--once", "Why?", *words]) == 0
        assert (form or ("Q: Why?\nA:", ("\nQ:",))) == seen[-1]
        assert bool(form) == (
            "has no chat template: texts are sent as 'User: YOUR TEXT" in capsys.readouterr().err
        )


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "nowhere.jinja",
            "--template nowhere.jinja: no template in Jinja, and no file of one (No such file",
        ),
        ("{% for %}", "--template, line 1: "),
        ("{{ raise_exception('only tools') }}", "--template: the chat template of "),
    ],
)
def test_a_wrong_template_is_refused(
    template: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(save_tiny(tmp_path / "base", context=160, template=None))

    assert main(["chat", model, "--once", "Why?", "--template", template]) == 2
    assert said in capsys.readouterr().err


def test_a_special_token_after_a_reply_ends_it(tmp_path: Path) -> None:
    tokenizer = with_template(HFTokenizer(byte_tokenizer(None)), CHATML)

    assert tokenizer.stops == ()
    assert 257 in tokenizer.stop_ids


@pytest.mark.parametrize("word", ["/quit", "/exit"])
def test_a_word_ends_the_chat(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    save_tiny(tmp_path / "model")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{word}\n/help\n"))

    assert main(["chat", str(tmp_path / "model")]) == 0
    assert capsys.readouterr().out == "", "the second line was not read"
    assert main(["chat", str(tmp_path / "model"), "--once", word]) == 0
    assert capsys.readouterr().out == ""
