"""The token bridge keeps sampled tokens under the chat templates of fourteen model families."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from quintain import Message, Sampled, ToolCall
from quintain.cli import main
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain.training import Conversation
from quintain.types.transcript import TokenSource
from quintain_tool_formats import tool_format
from quintain_tool_formats.templates import PROBE, TemplateReport, examine_template

from .chat_templates import FAMILIES, tokenizer_of, wear


@cache
def report_of(name: str) -> TemplateReport:
    return examine_template(tokenizer_of(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_report_says_what_the_template_does(name: str) -> None:
    """Format, stops, system message, thought, and which conversations are rewritten or refused."""
    family, report = FAMILIES[name], report_of(name)
    outcomes = {
        outcome: tuple(c.name for c in report.cases if c.outcome == outcome) for outcome in ("rewrites", "refuses")
    }

    assert (family.form, family.system, family.opens) == (report.tool_format, report.system, report.opens_thought)
    assert {"rewrites": family.rewrites, "refuses": family.refuses} == outcomes
    assert family.end == report.stops[-1][1]
    assert report.append_only == (not family.rewrites)
    assert (name in ("Llama 3.1", "gpt-oss", "SmolLM3")) == report.date_line


def talk(tokenizer: HFTokenizer, name: str, turns: list[Message | str]) -> Conversation:
    """Hold a conversation and check each prompt and, at its end, what trains."""
    conversation, held, wanted = Conversation(tokenizer, [PROBE]), [], []
    for turn in turns:
        if isinstance(turn, Message):
            conversation.add(turn)
            continue
        context = conversation.prompt()
        if held:
            branches = len(conversation.transcript("p", 1.0).branches)
            assert (context[: len(held)] == held) or branches > 1
        # Single bytes where the tokenizer would merge pairs: what no encoding of the text gives back.
        said = [i for c in turn for i in tokenizer.encode(c)] + list(tokenizer.stop_ids[-1:])
        zeros = (0,) * len(said)
        conversation.add_sampled(
            Sampled(ids=tuple(said), logps=(-1.0,) * len(said), versions=zeros, finish="stop", stop=said[-1])
        )
        wanted.extend((tuple(context + said[:i]), token) for i, token in enumerate(said))
        held = [*context, *said]
    rows = conversation.transcript("p", 1.0).sequences()

    assert sorted(wanted) == sorted((r.ids[:i], r.ids[i]) for r in rows for i, m in enumerate(r.mask) if m)
    return conversation


@pytest.mark.parametrize("name", [name for name in FAMILIES if "tools" not in FAMILIES[name].refuses])
def test_sampled_tokens_are_never_touched(name: str) -> None:
    """Over turns with a tool each sampled token trains once in its own context, and the result's text never does."""
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
            source: tokenizer.decode([i for i, s in zip(path.ids, path.sources, strict=True) if s == source])
            for source in TokenSource
        }
        assert result.content not in text[TokenSource.MODEL]
        if result.content in tokenizer.decode(path.ids):
            assert text[TokenSource.TOOL].startswith(result.content)


def test_rewriting_names_the_message() -> None:
    """Qwen3 drops the thought of the first reply; Mistral moves its tools before the second question."""
    thought = next(c for c in report_of("Qwen3").cases if c.name == "thought")
    tools = next(c for c in report_of("Mistral").cases if c.name == "tool_block")

    assert ((1, 3), (0,)) == (thought.messages, tools.messages)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`quintain doctor tokens FOLDER` works offline, as text and as JSON; a folder without a tokenizer is refused."""
    wear(FAMILIES["Qwen3"]).save_pretrained(tmp_path / "model")

    assert 0 == main(["doctor", "tokens", str(tmp_path / "model")])
    assert "hermes" in capsys.readouterr().out
    assert 0 == main(["doctor", "tokens", str(tmp_path / "model"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert ("hermes", False) == (report["tool_format"], report["append_only"])
    (tmp_path / "empty").mkdir()
    assert 2 == main(["doctor", "tokens", str(tmp_path / "empty")])
    assert "no tokenizer can be read" in capsys.readouterr().err


def test_a_tokenizer_without_a_template() -> None:
    """The plain template of the package appends, and tags are the format."""
    hf = wear(FAMILIES["ChatML"])
    hf.chat_template = None
    report = examine_template(HFTokenizer(hf))

    assert ("tags", False, False) == (report.tool_format, report.template, report.tools_listed)


def test_a_refusal_quotes_the_template() -> None:
    """gpt-oss refuses raw channels in the content of a message."""
    case = next(c for c in report_of("gpt-oss").cases if c.name == "tools")

    assert "channel tags" in case.detail
    with pytest.raises(UsageError, match="channel tags"):
        tokenizer_of("gpt-oss").render([Message("user", "a"), Message("assistant", "<|channel|>")])
