"""The call that a chat template writes is read back, or the tools are described in a message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from studies.benchmarks.templates import CASES, outcomes, tokenizer_with

from quintain import Message, ToolSpec
from quintain.errors import UsageError
from quintain.models import HFTokenizer
from quintain_tools.formats import mismatch, tool_format, unknown_types
from quintain_tools.formats.own_call import PROBE, own_call

BAR = "\uff5c"
NAME, DATA = "{{ c.function.name }}", "{{ c.function.arguments | tojson }}"
JSON_CALL = f'{{{{ \'{{"name": "\' }}}}{NAME}", "arguments": {DATA}{{{{ \'}}\' }}}}'


@dataclass(frozen=True, kw_only=True)
class Writes:
    """How a family writes a turn: around a thought, around its calls, one call, and between two."""

    form: str
    call: str
    thought: tuple[str, str] = ("<think>", "</think>")
    calls: tuple[str, str] = ("", "")
    joint: str = ""
    prompt: str = ""

    @property
    def template(self) -> str:
        opening, closing = self.thought
        calls = (
            f"{{% if m.tool_calls %}}{self.calls[0]}{{% for c in m.tool_calls %}}{self.call}"
            f"{{% if not loop.last %}}{self.joint}{{% endif %}}{{% endfor %}}{self.calls[1]}{{% endif %}}"
        )
        return (
            "{% if tools %}<|tools|>{{ tools | tojson }}<|end|>{% endif %}"
            "{% for m in messages %}<|{{ m.role }}|>"
            f"{{% if m.reasoning_content %}}{opening}{{{{ m.reasoning_content }}}}{closing}{{% endif %}}"
            f"{{{{ m.content }}}}{calls}<|end|>{{% endfor %}}"
            f"{{% if add_generation_prompt %}}<|assistant|>{self.prompt}{{% endif %}}"
        )


def parameters(before: str, after: str) -> str:
    """A loop over the arguments; ``v`` is text or JSON."""
    return (
        "{% for k, v in c.function.arguments | items %}"
        f"{before}{{{{ v if v is string else v | tojson }}}}{after}{{% endfor %}}"
    )


def of_gemma(value: str) -> str:
    return f'<|"|>{{{{ {value} }}}}<|"|>'


DSML = f"{BAR}DSML{BAR}"
FAMILIES = {
    "Kimi K2": Writes(
        form="kimi_k2",
        calls=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        call=f"<|tool_call_begin|>functions.{NAME}:{{{{ loop.index0 }}}}"
        f"<|tool_call_argument_begin|>{DATA}<|tool_call_end|>",
    ),
    "DeepSeek V3.2": Writes(
        form="invoke",
        calls=(f"<{DSML}function_calls>\n", f"</{DSML}function_calls>"),
        call=f'<{DSML}invoke name="{NAME}">\n'
        + parameters(
            f'<{DSML}parameter name="{{{{ k }}}}" string="{{{{ (v is string) | tojson }}}}">',
            f"</{DSML}parameter>\n",
        )
        + f"</{DSML}invoke>\n",
    ),
    "MiniMax-M2": Writes(
        form="invoke",
        calls=("<minimax:tool_call>\n", "</minimax:tool_call>"),
        call=f'<invoke name="{NAME}">\n'
        + parameters('<parameter name="{{ k }}">', "</parameter>\n")
        + "</invoke>\n",
    ),
    "Command R7B": Writes(
        form="cohere",
        thought=("<|START_THINKING|>", "<|END_THINKING|>"),
        calls=("<|START_ACTION|>[\n", "\n]<|END_ACTION|>"),
        call='{{ \'{"tool_call_id": "\' }}{{ loop.index0 }}", "tool_name": "'
        + f'{NAME}", "parameters": {DATA}{{{{ "}}" }}}}',
        joint=",\n",
    ),
    "GigaChat 3": Writes(
        form="gigachat", call=f"<|message_sep|>function call<|role_sep|>\n{JSON_CALL}"
    ),
    "GigaChat 3.1": Writes(form="gigachat", call=f"<|function_call|>{JSON_CALL}"),
    "Apertus": Writes(
        form="apertus",
        thought=("<|inner_prefix|>", "<|inner_suffix|>"),
        calls=("<|tools_prefix|>[", "]<|tools_suffix|>"),
        call=f'{{{{ \'{{"\' }}}}{NAME}": {DATA}{{{{ "}}" }}}}',
        joint=", ",
    ),
    "Apriel": Writes(
        form="apriel",
        thought=("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]\n"),
        calls=("<tool_calls>[", "]</tool_calls>"),
        call=JSON_CALL,
        joint=", ",
    ),
    "Hunyuan": Writes(
        form="jamba", calls=("<tool_calls>[", "]</tool_calls>"), call=JSON_CALL, joint=","
    ),
    "MiniMax-M1": Writes(
        form="jamba", calls=("<tool_calls>\n", "\n</tool_calls>"), call=JSON_CALL, joint="\n"
    ),
    "Functionary 3.1": Writes(
        form="functionary", call=f"<function={NAME}>{DATA}</function>{{# ipython #}}"
    ),
    "Functionary 3.2": Writes(form="functionary_v32", call=f">>>{NAME}\n{DATA}", prompt=">>>"),
    "LFM2": Writes(
        form="lfm2",
        calls=("<|tool_call_start|>[", "]<|tool_call_end|>"),
        call=f"{NAME}("
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v | tojson }}"
        '{{ ", " if not loop.last }}{% endfor %})',
        joint=", ",
    ),
    "Granite 3": Writes(form="granite", calls=("<|tool_call|>[", "]"), call=JSON_CALL, joint=", "),
    "Phi-4-mini": Writes(
        form="granite", calls=("<|tool_call|>[", "]<|/tool_call|>"), call=JSON_CALL, joint=", "
    ),
    "Nemotron Nano 2": Writes(
        form="nemotron", calls=("<TOOLCALL>[", "]</TOOLCALL>"), call=JSON_CALL, joint=", "
    ),
    "InternLM": Writes(
        form="internlm", call=f"<|action_start|><|plugin|>\n{JSON_CALL}<|action_end|>\n"
    ),
    "Seed-OSS": Writes(
        form="seed_oss",
        thought=("<seed:think>", "</seed:think>"),
        call=f"<seed:tool_call>\n<function={NAME}>\n"
        + parameters("<parameter={{ k }}>", "</parameter>\n")
        + "</function>\n</seed:tool_call>",
    ),
    "Qwen3-Coder": Writes(
        form="qwen3_coder",
        call=f"<tool_call>\n<function={NAME}>\n"
        + parameters("<parameter={{ k }}>\n", "\n</parameter>\n")
        + "</function>\n</tool_call>",
    ),
    "Qwen3": Writes(form="hermes", call=f"<tool_call>\n{JSON_CALL}\n</tool_call>", joint="\n"),
}
GEMMA = (  # texts between tokens of their own, at each level
    '{% macro value(v) %}{% if v is string %}<|"|>{{ v }}<|"|>'
    "{% elif v is mapping %}{{ '{' }}{% for k, w in v | dictsort %}"
    "<|\"|>{{ k }}<|\"|>:{{ value(w) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}"
    "{% elif v is iterable %}[{% for w in v %}{{ value(w) }}{{ ',' if not loop.last }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
FAMILIES["Gemma 4"] = Writes(
    form="gemma",
    thought=("<|channel>thought\n", "\n<channel|>"),
    call=f"<|tool_call>call:{NAME}{{{{ '{{' }}}}"
    "{% for k, v in c.function.arguments | dictsort %}{{ k }}:{{ value(v) }}"
    "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}<tool_call|>",
)


@cache
def tokenizer_of(name: str) -> HFTokenizer:
    template = FAMILIES[name].template
    return tokenizer_with(f"{GEMMA}{template}" if name == "Gemma 4" else template)


@pytest.mark.keeps("Kimi K2", "DeepSeek V3.2", "Functionary 3.2", "Gemma 4")
@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_writes_is_read_back(name: str) -> None:
    """A call, two calls, a call after a thought, unicode and nested values come back, and the
    template lists the tools itself.
    """
    tokenizer = tokenizer_of(name)
    form = tokenizer.tool_format

    assert form.name == FAMILIES[name].form
    assert form.treatment.lists_tools
    assert "reads the call" in form.summary
    assert outcomes(tokenizer) == dict.fromkeys(CASES, "yes")


@pytest.mark.keeps("Kimi K2", "Functionary 3.2")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_sampled_call_stays_as_it_was_sampled(name: str) -> None:
    """The turn that the policy wrote stands unchanged in the prompt of the next turn."""
    tokenizer = tokenizer_of(name)
    called, question = own_call(tokenizer), [Message("user", "?")]
    prompt = tokenizer.render(question, [PROBE])
    result = Message("tool", "mild", call_id="call00000", name="probe_tool")
    later = tokenizer.render([*question, Message("assistant", called), result], [PROBE])

    assert later.startswith(f"{prompt}{called}")
    assert "mild" in later.removeprefix(f"{prompt}{called}")


def test_a_template_whose_call_nothing_reads() -> None:
    """Calls in an unknown form: the tools are described, the template does not list them, and the
    report says both.
    """
    template = Writes(form="", call=f"(({NAME} // {DATA}))").template
    tokenizer = tokenizer_with(template)
    form = tokenizer.tool_format
    text = tokenizer.render([Message("user", "?")], [PROBE])

    assert form.name == "tags"
    assert "<|tools|>" not in text
    assert "<probe_tool>word</probe_tool>" in text
    assert form.summary.startswith("tags; a message describes the tools: the chat template writes")
    assert "((probe_tool //" in form.summary
    assert tokenizer.tool_note == f"tool calls: {form.summary}"


def test_a_template_without_tools_needs_no_line() -> None:
    """A run with a model that knows no tools says nothing of them until they are asked for."""
    plain = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    tokenizer = tokenizer_with(plain)

    assert tokenizer.tool_note == ""
    assert tokenizer.tool_format.summary == (
        "tags; a message describes the tools: the chat template writes no calls"
    )


def test_a_template_for_tools_alone_is_read_with_tools() -> None:
    """One that fails without tools works with them, and its refusal is a typed sentence."""
    template = "{% for t in tools %}{% endfor %}" + FAMILIES["Qwen3"].template
    tokenizer = tokenizer_with(template)

    assert tokenizer.tool_format.name == "hermes"
    assert "probe_tool" in tokenizer.render([Message("user", "?")], [PROBE])
    with pytest.raises(UsageError, match="refuses the messages .user.: TypeError"):
        tokenizer.render([Message("user", "?")])


TEXT: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
}
F = ToolSpec(name="f", parameters=TEXT)
UNCLOSED = {
    "qwen3_coder": "<tool_call><function=f><parameter=a>1{}</function></tool_call>"
    "<tool_call><function=f><parameter=a>2</parameter></function></tool_call>",
    "seed_oss": "<seed:tool_call><function=f><parameter=a>1{}</function></seed:tool_call>"
    "<seed:tool_call><function=f><parameter=a>2</parameter></function></seed:tool_call>",
    "glm": "<tool_call>f<arg_key>a</arg_key><arg_value>1{}</tool_call>"
    "<tool_call>f<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>",
    "tags": "<f>1{}<f>2</f>",
    "invoke": '<invoke name="f"><parameter name="a">1{}</invoke>'
    '<invoke name="f"><parameter name="a">2</parameter></invoke>',
    "gemma": '<|tool_call>call:f{{a:<|"|>1{}}}<tool_call|><|tool_call>call:f{{a:<|"|>2<|"|>}}<tool_call|>',
    "hermes": '<tool_call>{{"name": "f", "arguments": {{"a": "1{}}}}}</tool_call>'
    '<tool_call>{{"name": "f", "arguments": {{"a": "2"}}}}</tool_call>',
    "kimi_k2": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{{"a": "1{}<|tool_call_end|>'
    '<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{{"a": "2"}}<|tool_call_end|>',
    "lfm2": "<|tool_call_start|>[f(a='1{})]<|tool_call_end|><|tool_call_start|>[f(a='2')]<|tool_call_end|>",
    "functionary": '<function=f>{{"a": "1{}}}</function><function=f>{{"a": "2"}}</function>',
    "granite": '<|tool_call|>[{{"name": "f", "arguments": {{"a": "1{}}}}}]'
    '<|tool_call|>[{{"name": "f", "arguments": {{"a": "2"}}}}]',
}


@pytest.mark.parametrize("name", UNCLOSED)
@pytest.mark.parametrize("inside", ["", " more\n", " é {x} 5 > 3"])
def test_an_unclosed_value_swallows_nothing(name: str, inside: str) -> None:
    """The call whose value has no end is a fault, and the next one is read."""
    calls = tool_format(name).parse(UNCLOSED[name].format(inside), tools=[F]).calls

    assert [bool(c.error) for c in calls] == [True, False]
    assert calls[1].arguments == {"a": "2"}


SCHEMAS: list[tuple[Any, Any, bool]] = [
    ({"type": "STRING"}, "x", True),
    ({"type": "Dict[str, int]"}, {"x": 1}, True),
    ({"type": "tuple"}, [1], True),
    ({"type": ["string", "datetime"]}, 5, True),
    ({"type": None}, 5, True),
    ({"type": "array", "items": {"type": "float"}}, [1.5], True),
    ({"type": "string", "nullable": True}, None, True),
    ({"type": "string", "nullable": False}, None, False),
    ({"anyOf": [{"type": "integer"}, {"type": "Optional[str]"}]}, "x", True),
    ({"enum": [1, 2.5]}, 1.0, True),
    ({"enum": [1]}, True, False),
    ({"const": 0}, False, False),
    ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, {"a": 1}, True),
    ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, {"b": 1}, False),
    ({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}, {"x-1": "a"}, True),
    ({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}, {"x-1": 1}, False),
    ({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}, {"y": "a"}, False),
    ({"patternProperties": {"(": {}}, "additionalProperties": False}, {"y": "a"}, True),
    ({"type": "string"}, 5, False),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "fits"), SCHEMAS)
def test_a_schema_that_its_author_got_wrong_faults_no_value(
    schema: Any, value: Any, fits: bool
) -> None:
    """A type that JSON schema does not have allows every value."""
    assert (mismatch(value, schema, schema) == "") == fits


def test_wrong_types_of_a_schema_are_named_with_their_place() -> None:
    """At every level, once each, and none in a right schema."""
    inner = {"type": "array", "items": {"anyOf": [{"type": "float"}, {"type": "null"}]}}
    schema = {"type": "OBJECT", "properties": {"type": {"type": "string"}, "x": inner}}

    assert sorted(line.partition(",")[0] for line in unknown_types(schema)) == [
        "parameters.properties.x.items.anyOf[0].type is 'float'",
        "parameters.type is 'OBJECT'",
    ]
    assert [*unknown_types(TEXT)] == []


def test_a_tool_with_a_strange_schema_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """At the first prompt that offers it, before the policy writes anything."""
    strange = {"type": "object", "properties": {"a": {"type": "dict"}}}
    tool = ToolSpec(name="f", parameters=strange)
    tokenizer = tokenizer_with(FAMILIES["Qwen3"].template)
    for _ in range(2):
        tokenizer.render([Message("user", "?")], [tool, PROBE])

    (record,) = caplog.records
    assert record.getMessage().startswith("tool f: parameters.properties.a.type is 'dict'")


VALUES: list[tuple[str, Any, str, Any]] = [
    ("qwen3_coder", {"allOf": [{"type": "object"}]}, '{"x": 1}', {"x": 1}),
    ("qwen3_coder", {}, "[1, 2]", [1, 2]),
    ("qwen3_coder", {}, "12", "12"),
    ("qwen3_coder", {}, "{x}", "{x}"),
    ("qwen3_coder", {"type": "object"}, "{'x': None}", {"x": None}),
    ("seed_oss", {"type": "array"}, "['a', True]", ["a", True]),
    ("qwen3_coder", {"type": "string"}, "{'x': 1}", "{'x': 1}"),
]


@pytest.mark.parametrize(("name", "schema", "text", "value"), VALUES)
def test_text_of_an_argument_without_a_type(name: str, schema: Any, text: str, value: Any) -> None:
    """An object or a list where the schema allows one, in JSON or as Python writes it."""
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"a": schema}})
    (call,) = (
        tool_format(name)
        .parse(f"<function=f><parameter=a>{text}</parameter></function>", tools=[tool])
        .calls
    )

    assert (call.error, call.arguments) == ("", {"a": value})
