"""List the functions whose docstring does not begin with a verb, in the package or in a FOLDER.

The first word is looked up in a list of verbs. A property may begin with a noun, as an attribute
does, and so may what a person reads in a table: the formula of a piece and the help of a command.

python tools/docstrings.py [FOLDER]
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "core" / "quintain"

VERBS = frozenset(
    """
    Abandon Accept Accumulate Add Adjust Admit Advance Aggregate Agree Allocate Allow Announce Answer Append Apply
    Arrange Ask Assert Assign Attach Audit Average Await Begin Bind Block Bound Build Call Cancel Change
    Check Choose Clear Clip Close Collect Combine Compact Compare Complete Compute Configure Confine
    Connect Continue Convert Copy Count Create Cut Deal Decide Decode Decorate Define Delete Deliver
    Describe Detect Digest Discard Divide Do Draw Drop Embed Emit Empty Encode End Ensure Enter
    Estimate Evaluate Exclude Execute Expand Expect Explain Extend Extract Fetch Fill Find Finish Fit Flush
    Follow Forget Fork Format Free Freeze Gather Generate Get Give Go Grade Group Grow Guard Hand Handle Hide
    Hold Ignore Import Initialise Insert Install Interrupt Invert Join Judge Keep Kill Launch Lay
    Leave Let Limit Link List Listen Load Lock Log Look Make Map Mark Mask Match Measure Merge
    Minimize Move Multiply Name Normalise Note Notify Offer Open Order Overwrite Pack Pad Parse Pass Pause
    Pick Place Plan Play Pop Post Prepare Print Probe Process Propose Prune Publish Pull Pump Push Put
    Queue Quote Raise Rank Read Rebuild Receive Reconnect Record Refuse Register Reject Release
    Remark Remember Remove Rename Render Repeat Replace Reply Report Request Require Reserve Reset Resize
    Resolve Restart Restore Resume Retry Return Reuse Rewrite Round Run Sample Save Say Scale Score
    Search See Seed Select Send Serve Set Shade Shard Shift Show Shuffle Shut Simulate Skip Sleep Sort Split
    Spread Start State Step Stop Store Sum Swap Switch Sync Tag Take Teach Tell Test Time Tokenize Track Train
    Translate Treat Trim Truncate Try Turn Undo Unpack Unregister Update Upload Use Validate Verify
    Wait Wake Walk Warn Watch Work Wrap Write Yield
    """.split()
)

SHOWN = {
    *("property", "cached_property"),
    *("advantage", "per_group", "objective", "correction", "aggregation", "group_filter"),
    *("optimizer_step", "command", "group", "decides"),
    *("reward", "group_reward", "case"),
}
"""Decorators of what may begin with a noun."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented(source: str) -> Iterator[tuple[Function, str]]:
    """Yield the functions of a file that have a docstring, and its first word."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function) and (text := ast.get_docstring(node)):
            yield node, text.split()[0].rstrip(".,:;")


def may_begin_with_noun(function: Function) -> bool:
    """Return whether a decorator says so."""
    names = {ast.unparse(node).partition("(")[0] for node in function.decorator_list}
    return not SHOWN.isdisjoint(name.rpartition(".")[2] for name in names)


def without_verb(source: str) -> list[tuple[int, str, str]]:
    """Return line, name and first word of each function whose docstring begins with no verb."""
    return [
        (function.lineno, function.name, word)
        for function, word in documented(source)
        if word not in VERBS and not may_begin_with_noun(function)
    ]


def main() -> None:
    """Print them, and how many there are."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else PACKAGE
    functions = found = 0
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        functions += sum(1 for _ in documented(source))
        for line, name, word in without_verb(source):
            found += 1
            print(f"{path.relative_to(ROOT)}:{line}: {name} begins with {word!r}")
    print(f"{found} of {functions} functions with a docstring begin with no verb")


if __name__ == "__main__":
    main()
