"""Every tool-call format reads back what it writes, and any other text is a call, text or a fault
with its reason.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintain import ToolCall, ToolSpec, Turn
from quintain.errors import UsageError
from quintain_tools.formats import (
    GLM,
    LFM2,
    Apertus,
    Apriel,
    Cohere,
    DeepSeek,
    Functionary,
    FunctionaryV32,
    Gemma,
    GigaChat,
    Granite,
    Harmony,
    Hermes,
    InternLM,
    Invoke,
    Jamba,
    Kimi,
    LlamaJSON,
    Mistral,
    Nemotron,
    Pythonic,
    Qwen3Coder,
    SeedOSS,
    Tags,
    ToolFormat,
    detect,
    formats,
    tool_format,
)

from ....lanes import examples

FORMATS: dict[str, ToolFormat] = {
    "hermes": Hermes(),
    "qwen3_coder": Qwen3Coder(),
    "glm": GLM(),
    "llama3_json": LlamaJSON(),
    "pythonic": Pythonic(),
    "mistral": Mistral(),
    "mistral args": Mistral(layout="args"),
    "deepseek": DeepSeek(),
    "deepseek v3.1": DeepSeek(layout="v3.1"),
    "harmony": Harmony(),
    "kimi_k2": Kimi(),
    "gemma": Gemma(),
    "invoke": Invoke(),
    "invoke minimax": Invoke(layout="minimax"),
    "cohere": Cohere(),
    "gigachat": GigaChat(),
    "apertus": Apertus(),
    "apriel": Apriel(),
    "jamba": Jamba(),
    "functionary": Functionary(),
    "functionary_v32": FunctionaryV32(),
    "lfm2": LFM2(),
    "granite": Granite(),
    "nemotron": Nemotron(),
    "internlm": InternLM(),
    "seed_oss": SeedOSS(),
    "tags": Tags(),
}
UNTYPED = {"qwen3_coder", "glm", "tags", "invoke minimax", "seed_oss"}

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "items": {"type": "array", "items": {"type": "string"}},
    "table": {"type": "object"},
    "unit": {"enum": ["K", "C"]},
}
FULL = ToolSpec(
    name="full",
    parameters={"type": "object", "properties": PROPERTIES, "additionalProperties": False},
)
SEARCH = ToolSpec(
    name="search",
    description="Search the corpus.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}},
        "required": ["query"],
    },
)
NOW = ToolSpec(name="now")
TOOLS = (FULL, SEARCH, NOW)

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
VALUES = {
    "text": TEXT,
    "count": st.integers(-(10**20), 10**20),
    "ratio": NUMBERS,
    "flag": st.booleans(),
    "maybe": st.none() | st.integers(),
    "items": st.lists(TEXT, max_size=3),
    "table": st.dictionaries(TEXT, JSON, max_size=3),
    "unit": st.sampled_from(["K", "C"]),
}
CALLS = st.lists(
    st.fixed_dictionaries({}, optional=VALUES).map(lambda a: ToolCall(name="full", arguments=a))
    | TEXT.map(lambda q: ToolCall(name="search", arguments={"query": q}))
    | st.just(ToolCall(name="now")),
    min_size=1,
    max_size=3,
)
MARKS = [
    "<tool_call>", "</tool_call>", "<function=full>", "<function=", "</function>",
    "<parameter=text>", "</parameter>",
    "<arg_key>text</arg_key>", "<arg_value>", "</arg_value>",
    '{"name": "search", "arguments": {"query": "x"}}',
    '{"name": "search", "parameters": {"query": ', "<|python_tag|>", "<|python_start|>",
    '[search(query="a")', "[full(",
    "[TOOL_CALLS]", "[ARGS]", DeepSeek.CALLS, DeepSeek.CALL, DeepSeek.SEP, DeepSeek.CALL_END,
    "function", "```json\n",
    "<|channel|>commentary to=functions.search", "<|channel|>analysis", "<|message|>",
    "<|start|>assistant", "<|end|>",
    "<search>", "</search>", "<full>", "<think>", "</think>", "search", "{", "}", "[", "]", '"',
    "'", "\\", ",", ":",
    "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_call>call:search", '<|"|>', "<tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>",
    '<invoke name="search">', '<parameter name="query">', "</invoke>", "<|function_call|>",
    "<|tools_prefix|>", "<|tools_suffix|>", "<tool_calls>", "</tool_calls>", "<function=search>",
    ">>>search\n", ">>>all\n", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_call|>",
    "<TOOLCALL>", "<|action_start|><|plugin|>", "<seed:tool_call>",
    "=", "(", ")", "1e999", "NaN", "None", "\ud800", "\u0000", "\u2028", "é", "\n", " ", ";", "-",
    '"""', "\\u", "\\N",
]  # fmt: skip
SOUP = st.lists(st.sampled_from(MARKS) | st.text(max_size=4), max_size=30).map("".join)


def pairs(calls: Any) -> list[tuple[str, Any]]:
    return [(c.name, c.arguments) for c in calls]


def check(turn: Turn, text: str) -> None:
    """What holds of every turn: typed calls that can be stored, faults with a reason."""
    assert text == turn.text
    assert all(
        isinstance(c, ToolCall) and c.id and (not c.error or not c.arguments) for c in turn.calls
    )
    assert all(c.name or c.error for c in turn.calls)
    for call in turn.calls:
        json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode()
        assert len(call.error.encode()) < 1000
        call.name.encode()


@pytest.mark.keeps("hermes", "glm", "pythonic", "mistral args", "deepseek v3.1")
@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS)
@examples(20)
def test_what_is_written_is_read_back(name: str, calls: list[ToolCall]) -> None:
    """Rendering and parsing is the identity; only text between tags may hold something that cannot
    be written.
    """
    form = FORMATS[name]
    strings = [v for c in calls for v in c.arguments.values() if isinstance(v, str)]
    try:
        text = form.render_calls(calls, TOOLS)
    except UsageError:
        assert name in UNTYPED
        assert any("</" in s or s.startswith("\n") or s.endswith("\n") for s in strings)
        return
    turn = form.parse(text, tools=TOOLS)
    check(turn, text)

    assert pairs(calls) == pairs(turn.calls)
    assert [type(v) for c in calls for v in c.arguments.values()] == [
        type(v) for c in turn.calls for v in c.arguments.values()
    ]
    assert turn.reply == ""
    assert not any(c.error for c in turn.calls)


@pytest.mark.keeps("hermes", "qwen3_coder", "harmony")
@pytest.mark.parametrize("name", FORMATS)
@given(text=SOUP, finish=st.sampled_from(["stop", "length"]))
@examples(40)
def test_any_text_has_a_typed_outcome(name: str, text: str, finish: Any) -> None:
    """No text raises, with tools or without; without tools there are no calls."""
    form = FORMATS[name]
    check(form.parse(text, tools=TOOLS, finish=finish), text)

    assert form.parse(text).calls == ()


@pytest.mark.keeps("hermes", "glm", "mistral", "deepseek v3.1")
@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS, data=st.data())
@examples(20)
def test_truncated_and_damaged_calls(name: str, calls: list[ToolCall], data: st.DataObject) -> None:
    """Every prefix and every deletion of a rendered turn parses; calls before the cut are
    unharmed.
    """
    form = FORMATS[name]
    try:
        text = form.render_calls(calls, TOOLS)
    except UsageError:
        return
    at = data.draw(st.integers(0, len(text)))
    turn = form.parse(text[:at], tools=TOOLS, finish="length")
    check(turn, text[:at])
    if name != "pythonic":  # a list is one fault
        good = [c for c in turn.calls if not c.error]
        assert len(turn.calls) <= len(calls)
        assert pairs(good) == pairs(calls)[: len(good)] or name in ("glm", "qwen3_coder", "tags")
    check(form.parse(text[:at] + text[at + 1 :], tools=TOOLS), text[:at] + text[at + 1 :])


@pytest.mark.parametrize("name", FORMATS)
def test_repeated_calls_and_the_text_around_them(name: str) -> None:
    """The same call twice is two calls with two ids; text before is the reply, where the format
    allows text.
    """
    form = FORMATS[name]
    calls = [ToolCall(name="search", arguments={"query": "dogs \U0001f415 é"})] * 2
    text = form.render_calls(calls, TOOLS)
    turn = form.parse(text, tools=TOOLS)

    assert len({c.id for c in turn.calls}) == 2
    if name not in ("llama3_json", "pythonic", "harmony", "functionary_v32"):
        opening, closing = form.THOUGHT
        turn = form.parse(f"{opening}hm{closing} Let me look. {text}", tools=TOOLS)
        assert turn.reasoning == "hm"
        assert turn.reply == "Let me look."
        assert pairs(calls) == pairs(turn.calls)


HOSTILE = [
    *(mark for mark in MARKS if len(mark) > 6),
    '<tool_call>{"name": "search", "arguments": {"query": "',
    "<tool_call>[1, ",
    '<tool_call>"',
    "<function=full><parameter=text>",
    "<tool_call>full\n<arg_key>text</arg_key><arg_value>",
    '{"a":',
    "[full(a=[",
    "[full(a=1),",
    'full(text="\\n"),',
    "1,",
    '"\\n",',
    f"{DeepSeek.CALL}function{DeepSeek.SEP}a\n```json\n",
    "[TOOL_CALLS][",
    "<|message|><|start|>",
    "<|channel|>commentary to=functions.search<|message|>{",
    "<search><full>",
    "\n ",
]


@pytest.mark.keeps("llama3_json", "tags", "mistral")
@pytest.mark.parametrize("name", FORMATS)
def test_a_megabyte_takes_linear_time(name: str) -> None:
    """Of each hostile pattern, four times the text takes about four times as long: no backtracking,
    no rescans.
    """
    form = FORMATS[name]
    starts = ["", "[full(items=[" if name == "pythonic" else "<tool_call>"]

    def seconds(start: str, piece: str, size: int) -> float:
        text = start + piece * (size // len(piece))
        began = time.process_time()
        check(form.parse(text, tools=TOOLS), text)
        return time.process_time() - began

    for start in starts:
        for piece in HOSTILE:
            small = seconds(start, piece, 1 << 16)
            if small < 0.01:  # if it were quadratic, a megabyte would take at most 2.6 s
                continue
            large = min(seconds(start, piece, 1 << 18) for _ in range(2))
            assert large < 9 * small, (start, piece, small, large)


@pytest.mark.keeps("llama3_json", "tags")
@pytest.mark.parametrize("name", FORMATS)
def test_a_megabyte_argument_is_one_call(name: str) -> None:
    """Length alone is no fault."""
    rng = random.Random(0)
    body = "".join(rng.choices("abc \U0001f415é\"'\\\n\t{}[]()=,", k=1 << 20)).strip("\n ")
    call = ToolCall(name="search", arguments={"query": f"a{body}z"})
    turn = FORMATS[name].parse(FORMATS[name].render_calls([call], TOOLS), tools=TOOLS)

    assert pairs([call]) == pairs(turn.calls)


FAULTS = [
    ("hermes", '<tool_call>{"name": "search"', "not JSON"),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"query": 1}}</tool_call>',
        "expected string, got integer",
    ),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {}}</tool_call>',
        "missing argument query",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"count": "3"}}</tool_call>',
        "expected integer, got string",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"flag": 1}}</tool_call>',
        "expected boolean, got integer",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"items": [1]}}</tool_call>',
        r"items\[0\]: expected string",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"unit": "F"}}</tool_call>',
        'one of "K", "C"',
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"nope": 1}}</tool_call>',
        "unknown argument 'nope'",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"count": 1, "count": 2}}</tool_call>',
        "given twice",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"ratio": 1e999}}</tool_call>',
        "range of floats",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"ratio": NaN}}</tool_call>',
        "NaN is not JSON",
    ),
    (
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"query": "\\ud800"}}</tool_call>',
        "lone surrogate",
    ),
    (
        "hermes",
        '<tool_call>{"name": "full", "arguments": {"table": ' + '{"a":' * 80 + "1" + "}" * 82,
        "levels deep",
    ),
    ("hermes", "<tool_call>" + "[" * 100_000, "levels deep"),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}} and more</tool_call>', "text follows"),
    ("hermes", "<tool_call>[1]</tool_call>", 'expected {"name"'),
    (
        "qwen3_coder",
        "<tool_call><function=full><parameter=count>x</parameter></function>",
        "expected integer, got 'x'",
    ),
    ("qwen3_coder", "<tool_call><function=search><parameter=query>a", "not closed"),
    ("qwen3_coder", "<tool_call>{}</tool_call>", "expected <function=NAME>"),
    (
        "glm",
        "<tool_call>full\n<arg_key>flag</arg_key>\n<arg_value>yes</arg_value>\n</tool_call>",
        "expected boolean",
    ),
    ("pythonic", "[search(query=open('x'))]", "must be literals"),
    ("pythonic", "[search(query=__import__)]", "must be literals"),
    ("pythonic", "[search('x')]", "not JSON|by name"),
    ("pythonic", '[search(query=f"x")]', "must be literals"),
    ("pythonic", '[search(query="x"]', "."),
    ("pythonic", '[search(query="a", query="b")]', "given twice"),
    ("pythonic", '[search("query": "a")]', "by name"),
    ("mistral", "[TOOL_CALLS]search", "not JSON"),
    ("mistral", '[TOOL_CALLS]search[ARGS]{"query": ', "not JSON"),
    ("deepseek", f"{DeepSeek.CALL}function{DeepSeek.SEP}search\n```json\n{{", "not JSON"),
    ("harmony", "<|channel|>commentary to=functions.search<|message|>{", "not JSON"),
    ("tags", "<full>{</full>", "not JSON"),
]


@pytest.mark.parametrize("name, text, reason", FAULTS)
def test_a_fault_names_its_reason(name: str, text: str, reason: str) -> None:
    """What a policy reads after a call that cannot be run."""
    calls = FORMATS[name].parse(text, tools=TOOLS).calls

    assert len(calls) == 1
    with pytest.raises(ValueError, match=reason):
        raise ValueError(calls[0].error)


TEXTS = [
    ("llama3_json", '{"answer": 4}'),
    ("llama3_json", "{not json"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "see [1](x)"),
    ("tags", "a < b and <i>b</i>"),
    ("hermes", "an open </tool_call> tag"),
    ("hermes", '{"name": "search"}'),
    ("harmony", "no header"),
]


@pytest.mark.parametrize("name, text", TEXTS)
def test_ordinary_text_is_no_call(name: str, text: str) -> None:
    """JSON, lists and markup in a reply start nothing."""
    turn = FORMATS[name].parse(text, tools=TOOLS)

    assert turn.calls == ()
    assert text == turn.reply


def test_a_loop_of_calls_is_cut() -> None:
    """A turn has at most 256 calls; the next one is a fault, and the rest is not read."""
    text = FORMATS["hermes"].render_calls([ToolCall(name="now")]) * 300
    calls = Hermes().parse(text, tools=TOOLS).calls

    assert len(calls) == 257
    assert "more than 256" in calls[-1].error
    assert not any(c.error for c in calls[:-1])


def test_thoughts_and_channels() -> None:
    """A thought that the template opened, calls in thoughts, and the channels of harmony."""
    call = '<tool_call>{"name": "now"}</tool_call>'
    opened = Hermes(thought_open=True).parse(f"so {call}</think>yes {call}", tools=TOOLS)
    closed = Hermes().parse(f"<think>so {call}</think>yes", tools=TOOLS)
    said = Harmony().parse(
        "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        "<|start|>assistant to=functions.search<|channel|>commentary "
        '<|constrain|>json<|message|>{"query": "<|end|>"}',
        tools=TOOLS,
    )
    final = Harmony().parse(
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4"
    )

    assert f"so {call}" == opened.reasoning
    assert opened.reply == "yes"
    assert len(opened.calls) == 1
    assert f"so {call}" == closed.reasoning
    assert closed.reply == "yes"
    assert len(closed.calls) == 0
    assert said.reasoning == "why"
    assert said.reply == "Wait."
    assert pairs(said.calls) == [("search", {"query": "<|end|>"})]
    assert final.reasoning == "hm"
    assert final.reply == "4"


def test_a_stop_string_may_cut_the_closing_tag() -> None:
    """Base models stop at the closing tag, which is cut off; a turn that ended by its length has no
    call.
    """
    assert pairs(Tags().parse("<search>x", tools=TOOLS).calls) == [("search", {"query": "x"})]
    assert "cut off" in Tags().parse("<search>x", tools=TOOLS, finish="length").calls[0].error


def test_strings_become_what_the_schema_says() -> None:
    """Text between tags: numbers stay text where text is meant, and constants may be Python's."""
    keys = "".join(
        f"<parameter={k}>\n{v}\n</parameter>\n"
        for k, v in (
            ("text", "007"),
            ("count", "7"),
            ("flag", "True"),
            ("maybe", "None"),
            ("items", '["1"]'),
        )
    )
    (call,) = Qwen3Coder().parse(f"<function=full>\n{keys}</function>", tools=TOOLS).calls

    assert call.arguments == {
        "text": "007",
        "count": 7,
        "flag": True,
        "maybe": None,
        "items": ["1"],
    }


def test_descriptions_name_every_tool() -> None:
    """A model without a template reads names, descriptions and how to call; no tools, no text."""
    for form in FORMATS.values():
        text = form.describe(TOOLS)
        assert all(
            word in text for word in ("search", "full", "now", "query", "Search the corpus.")
        ), form
        assert form.describe(()) == ""
        assert "42" in form.render_result(ToolCall(name="now", id="call00000"), "42")


TEMPLATES = {
    "hermes": "{% for t in tools %}<tools>{% endfor %} <tool_call>",
    "qwen3_coder": "<tool_call><function=example_function_name><parameter=example_parameter_1>",
    "glm": "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>",
    "llama3_json": 'Environment: ipython "parameters": dictionary <|python_tag|>',
    "pythonic": "[func_name1(params_name1=params_value1, func_name2(params)]",
    "mistral": "[AVAILABLE_TOOLS] [TOOL_CALLS]",
    "deepseek": DeepSeek.CALLS,
    "harmony": "<|start|>system<|message|> <|channel|>",
    "kimi_k2": "<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>",
    "gemma": "<|tool_call>call:",
    "invoke": '<\uff5cDSML\uff5cinvoke name="',
    "cohere": "<|START_ACTION|>[",
    "gigachat": "<|function_call|>{",
    "apertus": "<|tools_prefix|>[",
    "apriel": "<tool_calls>[ [BEGIN FINAL RESPONSE]",
    "jamba": "<tool_calls>[",
    "functionary": "Environment: ipython <function=NAME>{...}</function>",
    "functionary_v32": ">>>all",
    "lfm2": "<|tool_list_start|> <|tool_call_start|>",
    "granite": "respond only with <|tool_call|>",
    "nemotron": "<TOOLCALL>[",
    "internlm": "<|action_start|><|plugin|>",
    "seed_oss": "<seed:tool_call><function=NAME><parameter=KEY>",
    "tags": "<|im_start|>",
}


def test_the_template_decides() -> None:
    """Marks in a chat template choose the format, also where the template is several by name; a
    name overrides it.
    """
    assert {detect(text): text for text in TEMPLATES.values()} == TEMPLATES
    assert detect({"default": "", "tool_use": "<tool_call>"}) == "hermes"
    assert detect(None) == "tags"
    assert detect("") == "tags"
    assert set(TEMPLATES) == set(formats())
    assert isinstance(tool_format("mistral", layout="args", chat_template="<tool_call>"), Mistral)
    assert isinstance(tool_format(chat_template="<tool_call>"), Hermes)
