"""The token bridge keeps sampled tokens under the chat templates of fourteen model families."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from quintain import Message, Sampled, ToolCall
from quintain.cli import main
from quintain.console import for_terminal
from quintain.errors import UnknownNameError, UsageError
from quintain.interfaces.tokenizer import LITERAL
from quintain.models import HFTokenizer
from quintain.recipe import Recipe
from quintain.recipe.check import check_recipe
from quintain.recipe.plan import RunPlan
from quintain.recipe.resolve import pinned_recipe
from quintain.rollouts import Conversation
from quintain.run.build import model_for
from quintain.testing import isolated_plugins
from quintain.types.transcript import TokenSource
from quintain_tools.formats import tool_format
from quintain_tools.formats.adapter import PROBE
from quintain_tools.formats.templates import TemplateReport, examine_template

from ....core.models.tiny import tiny_model
from .chat_templates import FAMILIES, tokenizer_of, wear

RECIPE = '[[environments]]\nuse = "arithmetic"'


@cache
def report_of(name: str) -> TemplateReport:
    return examine_template(tokenizer_of(name))


@pytest.mark.keeps("Qwen2.5", "Llama 3.1", "gpt-oss", "Nemotron 3")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_report_says_what_the_template_does(name: str) -> None:
    """Format, stops, system message, thought, and which conversations are rewritten or refused."""
    family, report = FAMILIES[name], report_of(name)
    outcomes = {
        outcome: tuple(c.name for c in report.cases if c.outcome == outcome)
        for outcome in ("rewrites", "refuses")
    }

    assert family.form == report.tool_format
    assert family.system == report.system
    assert family.opens == report.opens_thought
    assert {"rewrites": family.rewrites, "refuses": family.refuses} == outcomes
    assert family.end in [text for _, text in report.stops]
    assert family.sampled == tokenizer_of(name).tool_format.treatment.sampled
    assert report.append_only == (not family.rewrites)
    assert (name in ("Llama 3.1", "gpt-oss", "SmolLM3")) == report.date_line


def talk(tokenizer: HFTokenizer, name: str, turns: list[Message | str]) -> Conversation:
    """Hold a conversation and check each prompt and, at its end, what trains."""
    conversation, held, wanted = Conversation(tokenizer, [PROBE]), [], []
    for turn in turns:
        if isinstance(turn, Message):
            conversation.add(turn)
            continue
        context = list(conversation.prompt_ids())
        if held:
            branches = len(conversation.transcript("p", 1.0).branches)
            assert (context[: len(held)] == held) or branches > 1
        # Single bytes where the tokenizer would merge pairs: what no encoding of the text gives
        # back.
        said = [i for c in turn for i in tokenizer.encode(c)] + list(tokenizer.stop_ids[:1])
        zeros = (0,) * len(said)
        conversation.add_sampled(
            Sampled(
                ids=tuple(said),
                logps=(-1.0,) * len(said),
                versions=zeros,
                finish="stop",
                stop=said[-1],
            )
        )
        wanted.extend((tuple(context + said[:i]), token) for i, token in enumerate(said))
        held = [*context, *said]
    rows = conversation.transcript("p", 1.0).sequences()

    assert sorted(wanted) == sorted(
        (r.ids[:i], r.ids[i]) for r in rows for i, m in enumerate(r.mask) if m
    )
    return conversation


@pytest.mark.keeps("Qwen2.5", "Llama 3.1", "gpt-oss", "Nemotron 3")
@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_tokens_are_never_touched(name: str) -> None:
    """Over turns with a tool each sampled token trains once in its own context, and the result's
    text never does.
    """
    tokenizer, family = tokenizer_of(name), FAMILIES[name]
    call = ToolCall(name=PROBE.name, arguments={"word": "three"}, id="call00000")
    called = tool_format(family.form).render_calls([call], [PROBE])
    result = Message("tool", "the other one, there", call_id=call.id, name=call.name)
    turns: list[Message | str] = [Message("user", "thereon"), called, result, "on three"]
    conversation = talk(tokenizer, name, turns)
    transcript = conversation.transcript("p", 1.0)

    for branch in range(len(transcript.branches)):
        path = transcript.path(branch)
        text = {
            source: tokenizer.decode(
                [i for i, s in zip(path.ids, path.sources, strict=True) if s == source]
            )
            for source in TokenSource
        }
        assert result.content not in text[TokenSource.MODEL]
        if result.content in tokenizer.decode(path.ids):
            assert text[TokenSource.TOOL].startswith(result.content)


def test_rewriting_names_the_message() -> None:
    """Qwen3 drops the thought of the first reply; Mistral moves its tools before the second
    question.
    """
    thought = next(c for c in report_of("Qwen3").cases if c.name == "thought")
    tools = next(c for c in report_of("Mistral").cases if c.name == "tool_block")

    assert thought.messages == (1, 3)
    assert tools.messages == (0,)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`quintain tokens FOLDER` works offline, as text and as JSON; a folder without a
    tokenizer is refused.
    """
    wear(FAMILIES["Qwen3"]).save_pretrained(tmp_path / "model")

    assert main(["tokens", str(tmp_path / "model")]) == 0
    out = capsys.readouterr().out
    assert "hermes" in out
    assert 'model.history = "append"' in out
    assert main(["tokens", str(tmp_path / "model"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tool_format"] == "hermes"
    assert report["append_only"] is False
    (tmp_path / "empty").mkdir()
    assert main(["tokens", str(tmp_path / "empty")]) == 2
    assert "no tokenizer can be read" in capsys.readouterr().err


def test_a_tokenizer_without_a_template() -> None:
    """The plain template of the package appends, and tags are the format."""
    hf = wear(FAMILIES["ChatML"])
    hf.chat_template = None
    report = examine_template(HFTokenizer(hf))

    assert report.tool_format == "tags"
    assert report.template is False
    assert report.tools_listed is False


def test_a_refusal_quotes_the_template() -> None:
    """A list of messages that a template refuses is refused in the template's words."""
    messages = [Message("user", "a"), Message("user", "b")]
    with pytest.raises(UsageError, match="roles must alternate"):
        tokenizer_of("Mistral").apply_template(messages)


def test_control_tokens_that_a_template_refuses_are_text() -> None:
    """gpt-oss refuses raw channels in the content of a message; what the policy says must not end a
    run.
    """
    messages = [Message("user", "a"), Message("assistant", "<|channel|>")]
    tokenizer = tokenizer_of("gpt-oss")
    assert f"<{LITERAL}|channel|>" in tokenizer.apply_template(messages)
    assert "<|channel|>final" in tokenizer.render(messages)


def test_a_recipe_names_the_format(tmp_path: Path) -> None:
    """`model.tool_format` reaches the tokenizer and is saved with it; the error of a wrong name has
    the right ones.
    """
    wear(FAMILIES["Qwen3"]).save_pretrained(tmp_path)
    tiny_model(vocab=320, context=64).save_pretrained(tmp_path)
    changes = [f"model.name={tmp_path}", "model.tool_format=tags", "model.history=append"]
    recipe = Recipe.parse(RECIPE, changes)
    check_recipe(recipe)
    assert pinned_recipe(recipe).model.tool_format == "quintain-tools/tags"
    with for_terminal(quiet=True) as screen:
        model = model_for(RunPlan.of(recipe), None, screen, lambda text: nullcontext())
    text = (
        '<probe_tool>a</probe_tool><tool_call>{"name": "probe_tool", "arguments": {"word": '
        '"b"}}</tool_call>'
    )

    def words(tokenizer: HFTokenizer) -> list[str]:
        return [call.arguments["word"] for call in tokenizer.parse(text, [PROBE]).calls]

    model.tokenizer.hf.save_pretrained(tmp_path / "saved")
    saved = HFTokenizer(AutoTokenizer.from_pretrained(tmp_path / "saved"))
    assert model.tokenizer.appends
    assert saved.appends
    plain = HFTokenizer(AutoTokenizer.from_pretrained(tmp_path))
    assert words(model.tokenizer) == ["a"]
    assert words(saved) == ["a"]
    assert words(plain) == ["b"]
    assert "<information>" in saved.render([Message("user", "?")], [PROBE])
    assert "<information>" not in plain.render([Message("user", "?")], [PROBE])
    with pytest.raises(UnknownNameError, match="did you mean 'qwen3_coder'"):
        check_recipe(Recipe.parse(RECIPE, ["model.tool_format=qwen3-coder"]))
    with pytest.raises(UnknownNameError, match="`quintain list tool_format` shows all"):
        plain.use_tool_format("xml")
    plain.hf.init_kwargs["quintain_tool_format"] = f"{tmp_path}/evil.py:Format"
    assert words(HFTokenizer(plain.hf)) == ["b"]  # files of a model name no code to run


def test_without_the_plugin_calls_are_those_of_hermes() -> None:
    """The format in core reads them, and turns of the model reach the template as they are."""
    call = '<tool_call>{"name": "probe_tool", "arguments": {"word": "b"}}</tool_call>'
    with isolated_plugins():
        tokenizer = HFTokenizer(wear(FAMILIES["Mistral"]))
        assert tuple(c.name for c in tokenizer.parse(call, [PROBE]).calls) == ("probe_tool",)
        assert call in tokenizer.render(
            [Message("user", "?"), Message("assistant", call), Message("user", "!")]
        )
        with pytest.raises(UnknownNameError, match="pip install quintain-tools"):
            tokenizer.use_tool_format("mistral")


def test_demonstrations_write_calls_in_the_format() -> None:
    """A message with calls is written by the template where it can, and in the chosen format where
    it cannot.
    """
    call = ToolCall(name=PROBE.name, arguments={"word": "b"}, id="call-0")
    given = [Message("user", "?"), Message("assistant", "Look:", calls=(call,))]
    texts = {name: tokenizer_of(name).render(given, [PROBE], prompt=False) for name in FAMILIES}
    for name, text in texts.items():
        form = tool_format(FAMILIES[name].form)
        written = text.rpartition("Look:")[2] or text
        found = [
            c
            for part in (written, written.rpartition(FAMILIES[name].end)[0])
            for c in form.parse(part.strip(), tools=[PROBE]).calls
        ]
        assert name in ("gpt-oss", "Llama 3.1", "Mistral") or {"word": "b"} in [
            c.arguments for c in found
        ], (
            name,
            text,
        )
    assert "functions.probe_tool" in texts["gpt-oss"]
    assert '"id": "' in texts["Mistral"]


def test_results_without_a_call_are_messages_of_the_user() -> None:
    """A result that nothing asked for, and calls that nothing answers, keep the roles of Mistral's
    template apart.
    """
    tokenizer = tokenizer_of("Mistral")
    called = tool_format("mistral").render_calls(
        [ToolCall(name=PROBE.name, arguments={"word": "b"})]
    )
    messages = [
        Message("user", "one"),
        Message("assistant", "no call"),
        Message("tool", "RESULT", call_id="x", name="probe_tool"),
        Message("user", "two"),
        Message("assistant", called),
        Message("user", "three"),
    ]
    text = tokenizer.render(messages, [PROBE])
    assert text.count("[INST]") == text.count("[/INST]") == 3
    assert "RESULT" in text
    assert called.replace("[TOOL_CALLS]", "[\ufdd0TOOL_CALLS]") in text
