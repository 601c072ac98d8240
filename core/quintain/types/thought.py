"""The thought in a text that a policy wrote: the one rule where nothing but the text is known."""

from __future__ import annotations

import re

OPENINGS = ("<think>", "<thinking>", "◁think▷")
"""What opens a thought; what closes it has a slash behind the first character."""
_QUOTED = re.compile(r"""\A.*[`"']\Z|^[ \t]*(?:`{3}|~{3})""", re.DOTALL | re.MULTILINE)
"""All that ends with a quote, or the beginning of a line of a fence: an odd number quotes what
follows.
"""


def split_thought(text: str) -> tuple[str, str]:
    """Return the thought of *text* and what follows it; no thought and the whole text if there is
    none. Linear in its length.

    A thought stands between tags at the very start. A chat template may open it, so a closing tag
    without an opening one before it ends a thought, too, unless it is quoted or in a fence. A
    thought that is opened and not closed is none, because the policy was cut off or misused the
    tag, and rewards must see what it wrote.
    """
    start = text.lstrip()
    for opening in OPENINGS:
        thought, closed, rest = start.partition(f"{opening[0]}/{opening[1:]}")
        if start.startswith(opening):
            return (thought.removeprefix(opening).strip(), rest.lstrip()) if closed else ("", text)
        if closed and opening not in thought and not len(_QUOTED.findall(thought)) % 2:
            return thought.strip(), rest.lstrip()
    return "", text
