"""The token bridge keeps exactly what was sampled, and branches where a template rewrites
history.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.models.tokenizer import PLAIN_STOPS, render_plain
from quintain.models.tool_calls import parse
from quintain.rollouts.chat.bridge import Conversation, text_without_stop
from quintain.types.task import Message
from quintain.types.transcript import Sampled, TokenSource
from quintain_authoring.byte_tokenizer import ByteTokenizer

from ...lanes import examples
from .engines import ThoughtlessTokenizer

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>|"), max_size=12)


def sampled(ids: list[int], *, stop: int | None = None, version: int = 0) -> Sampled:
    logps = tuple(-0.5 - i for i in range(len(ids)))
    finish = "stop" if stop is not None else "length"
    return Sampled(
        ids=tuple(ids), logps=logps, versions=(version,) * len(ids), finish=finish, stop=stop
    )


def talk(
    tokenizer: ByteTokenizer, turns: list[tuple[str, list[int], bool]]
) -> tuple[Conversation, list[list[int]]]:
    talked, contexts = Conversation(tokenizer), []
    for user, said, stopped in turns:
        talked.add(Message("user", user))
        contexts.append(list(talked.prompt_ids()))
        end = tokenizer.stop_ids[0]
        talked.add_sampled(sampled([*said, end], stop=end) if stopped else sampled(said))
    return talked, contexts


TURNS = st.lists(
    st.tuples(TEXT, st.lists(st.integers(0, 255), min_size=1, max_size=8), st.booleans()),
    min_size=1,
    max_size=4,
)


@given(TURNS)
@examples(150)
def test_every_sampled_token_trains_once_in_the_context_it_was_sampled_in(
    turns: list[tuple[str, list[int], bool]],
) -> None:
    """Whatever bytes come (broken UTF-8 included), each sampled token is trained once, after
    exactly its own context.
    """
    for tokenizer in (ByteTokenizer(), ThoughtlessTokenizer()):
        talked, contexts = talk(tokenizer, turns)
        wanted = []
        for context, (_, said, stopped) in zip(contexts, turns, strict=True):
            new = [*said, tokenizer.stop_ids[0]] if stopped else said
            wanted.extend((tuple(context + new[:i]), t) for i, t in enumerate(new))
        rows = talked.transcript("policy", 1.0).sequences()
        got = [(r.ids[:i], r.ids[i]) for r in rows for i, m in enumerate(r.mask) if m]

        assert sorted(wanted) == sorted(got)


def test_one_branch_where_history_is_kept() -> None:
    """A template that only appends gives one branch, and text is encoded once."""
    talked, _ = talk(ByteTokenizer(), [("a", [104, 105], True), ("b", [106], True)])
    transcript = talked.transcript("policy", 1.0)

    assert len(transcript.branches) == 1
    assert talked._text == talked.tokenizer.decode(transcript.path(0).ids)


def test_branch_where_thoughts_are_dropped() -> None:
    """Dropping a thought branches at the thought; the copy of what was said is context."""
    tokenizer = ThoughtlessTokenizer()
    said = tokenizer.encode("<think>hm</think>yes")
    talked, _ = talk(tokenizer, [("a", said, True), ("b", tokenizer.encode("no"), True)])
    transcript = talked.transcript("policy", 1.0)
    one, two = transcript.branches

    assert len(transcript.branches) == 2
    assert two.parent == 0
    assert tokenizer.decode(transcript.path(1).ids).count("<think>") == 0
    assert 0 < two.fork < len(one.ids)
    assert TokenSource.COPY in two.sources
    assert [
        tokenizer.decode([i for i, m in zip(r.ids, r.mask, strict=True) if m])
        for r in transcript.sequences()
    ] == ["<think>hm</think>yes<|im_end|>", "no<|im_end|>"]


def test_sources_of_a_prompt() -> None:
    """Contents are told from the template's scaffolding."""
    tokenizer = ByteTokenizer()
    talked = Conversation(tokenizer)
    for m in (Message("system", "be"), Message("user", "hello"), Message("tool", "42")):
        talked.add(m)
    talked.prompt_ids()
    path = talked.transcript("policy", 1.0).path(0)
    by_source = {
        s: tokenizer.decode([i for i, x in zip(path.ids, path.sources, strict=True) if x == s])
        for s in set(path.sources)
    }

    assert {"behello", "42"} == {by_source[TokenSource.PROMPT], by_source[TokenSource.TOOL]}


def test_plain_template_continues_where_it_stopped() -> None:
    """For base models: the stop string belongs to what was sampled, and the next prompt continues
    it.
    """

    class Plain(ByteTokenizer):
        stops = PLAIN_STOPS

        def render(self, messages, tools=(), *, prompt=True):  # type: ignore[no-untyped-def]
            return render_plain(messages, prompt=prompt)

    tokenizer = Plain()
    talked = Conversation(tokenizer)
    talked.add(Message("user", "2+2"))
    talked.prompt_ids()
    new = tokenizer.encode(" 4\n\nUser:")
    text = talked.add_sampled(
        Sampled(
            ids=tuple(new),
            logps=(0.0,) * len(new),
            versions=(0,) * len(new),
            finish="stop",
            stop="\n\nUser:",
        )
    )
    talked.add(Message("user", "3+3"))
    talked.prompt_ids()

    assert text == " 4"
    assert len(talked.transcript("p", 1.0).branches) == 1
    assert (
        tokenizer.decode(talked._recorder.ids)
        == "User: 2+2\n\nAssistant: 4\n\nUser: 3+3\n\nAssistant:"
    )


def test_spoken_drops_only_what_ended_the_turn() -> None:
    """A stop token is cut off; a text cut by length is kept whole."""
    tokenizer = ByteTokenizer()
    end = tokenizer.stop_ids[0]

    assert text_without_stop(tokenizer, sampled([104, 105, end], stop=end)) == "hi"
    assert text_without_stop(tokenizer, sampled([104, 105])) == "hi"


@given(st.text(max_size=60), st.booleans())
@settings(deadline=None)
def test_parse_never_raises_and_keeps_the_reply(text: str, tools: bool) -> None:
    """Any text parses; without tags the reply is the text."""
    parsed = parse(text, tools=tools)

    assert "<" in text or parsed.reply == text.strip()


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, " " * 500_000 + "x", "<tool_call>" * 50_000]
)
def test_a_hostile_call_is_a_fault_in_linear_time(text: str) -> None:
    """Nesting beyond the stack and long runs of blanks end in seconds; quadratic time would take
    hours.
    """
    (call,) = parse(f"<tool_call>{{{text}", tools=True).calls

    assert call.error.startswith("not JSON")


def test_parse_thoughts_and_calls() -> None:
    """A thought at the start, good and bad calls."""
    text = (
        '<think>why</think> so\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
        "<tool_call>{broken</tool_call><tool_call>[1]</tool_call>"
    )
    parsed = parse(text, tools=True)

    assert parsed.reasoning == "why"
    assert parsed.reply == "so"
    assert [c.name for c in parsed.calls] == ["add", "", ""]
    assert [bool(c.error) for c in parsed.calls] == [False, True, True]
    assert parse("<think>open").reply == "<think>open"
