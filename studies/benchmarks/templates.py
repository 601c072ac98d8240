"""Whether the calls that chat templates write are read back, for a folder of real templates.

    python -m studies.benchmarks.templates FOLDER      two minutes for 150 files `*.jinja`

Templates are not part of this repository: take them from model folders, or from the repositories of
servers that keep some. Each is put on a tokenizer of bytes whose special tokens are the marks that
it names. A conversation with a turn of the assistant is rendered, and the text of that turn is
parsed as if the model had written it. The cells of a row:

- `yes`: the same calls, or thought and calls, came back.
- `-`: the template does not write it, or refuses the messages.
- `NO`: something else came back.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.plugins.tools.formats.chat_templates import Family, wear

from quintain import Message, ToolCall, ToolSpec
from quintain.errors import UsageError
from quintain.interfaces.tokenizer import LITERAL
from quintain.models import HFTokenizer
from quintain_tools.formats.own_call import written_turn

from .common import table

WEATHER = ToolSpec(
    name="get_weather",
    description="Say how the weather will be.",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "of the forecast"},
            "days": {"type": "integer", "description": "from today"},
            "options": {"type": "object", "description": "of the report"},
        },
        "required": ["city"],
    },
)
THOUGHT = "A short thought."
NESTED = {"units": ["K", "C"], "parts": {"wind": True, "rain": {"mm": 1.5}}}


def _call(**arguments: Any) -> ToolCall:
    return ToolCall(name=WEATHER.name, arguments=arguments, id="call00001")


CASES: dict[str, tuple[str, tuple[ToolCall, ...]]] = {
    "call": ("", (_call(city="Ulm", days=3),)),
    "two calls": ("", (_call(city="Ulm"), _call(city="Bern", days=2))),
    "thought": (THOUGHT, (_call(city="Ulm", days=3),)),
    "unicode": ("", (_call(city='Z\u00fcrich \u6771\u4eac \U0001f327 "x" & <b>'),)),
    "nested": ("", (_call(city="Ulm", options=NESTED),)),
}
"""Thought and calls of each turn."""

MARK = re.compile(r"<[|\uff5c/]?[^\s<>{}%'\"]{1,40}>|\[/?[A-Z_]{3,20}\]")


def outcomes(tokenizer: HFTokenizer) -> dict[str, str]:
    """Return for each of `CASES` what came back of the turn that *tokenizer* renders."""
    return {name: _outcome(tokenizer, *case) for name, case in CASES.items()}


def _outcome(tokenizer: HFTokenizer, thought: str, calls: tuple[ToolCall, ...]) -> str:
    treatment = tokenizer.tool_format.treatment
    if len(calls) > 1 and treatment.given == "data" and not treatment.parallel:
        return "-"
    turn = Message("assistant", "", reasoning=thought, calls=calls)
    try:
        opening = tokenizer.tool_format.form.THOUGHT[0]
        text = written_turn(tokenizer.render, turn, [WEATHER], opening).replace(LITERAL, "")
    except UsageError:
        return "-"
    if WEATHER.name not in text or (thought and thought not in text):
        return "-"
    back = tokenizer.parse(text, [WEATHER])
    wanted = [(c.name, c.arguments, "") for c in calls]
    same = [(c.name, c.arguments, c.error) for c in back.calls] == wanted
    return "yes" if same and back.reasoning == thought else "NO"


def tokenizer_with(template: str) -> HFTokenizer:
    """Return a tokenizer of bytes with *template* and the marks that it names."""
    marks = tuple(dict.fromkeys(MARK.findall(template)))
    family = Family(template=template, end="</s>", form="tags", special=marks)
    return HFTokenizer(wear(family))


def rows_of(folder: Path) -> Iterator[list[str]]:
    """Yield a row per different template of *folder*: its name, format and outcomes."""
    seen = set()
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text()
        digest = hashlib.sha256(template.encode()).digest()
        if digest in seen:
            continue
        seen.add(digest)
        try:
            tokenizer = tokenizer_with(template)
            form = tokenizer.tool_format
        except UsageError as e:
            yield [path.stem, "refused", "", *("-" for _ in CASES), str(e)]
            continue
        kind = "own" if form.native else "described"
        yield [path.stem, form.name, kind, *outcomes(tokenizer).values(), form.why]


def main() -> None:
    rows = list(rows_of(Path(sys.argv[1])))
    print(table(["template", "format", "tools are", *CASES, "why"], rows))
    for kind in ("own", "described", ""):
        cells = [cell for row in rows if row[2] == kind for cell in row[3:8]]
        count = Counter(cells)
        print(f"{kind or 'refused'}: {sum(r[2] == kind for r in rows)} templates, {dict(count)}")


if __name__ == "__main__":
    main()
