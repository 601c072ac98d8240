"""What an agent cannot use of a turn: told apart from its own faults, because only the policy
learns from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quintain import Turn

from .request import ANY_TOOL, TurnRequest


def turn_fault(request: TurnRequest, turn: Turn) -> str:
    """Return why *turn* is not what *request* asked for; empty if it is.

    A call of a tool that was not offered, a call that cannot be read or whose arguments do not fit,
    no call where one was demanded, or a reply that does not fit the schema that was asked for.
    """
    from quintain_tools.formats import fault_of

    specs = {tool.name: tool for tool in request.tools}
    for call in turn.calls if request.calls_allowed else ():
        if call.error:
            return f"the policy wrote a call that cannot be read ({call.error})"
        if call.name not in specs:
            return f"the policy called {call.name!r}, which is no tool of the agent"
        if reason := fault_of(dict(call.arguments), specs[call.name]):
            return f"the policy called {call.name!r} with wrong arguments ({reason})"
    called = {call.name for call in turn.calls}
    if request.must_call and not (
        called if request.must_call == ANY_TOOL else request.must_call in called
    ):
        return "the policy did not call the tool that tool_choice demands"
    if (
        request.schema is not None
        and not turn.calls
        and (reason := format_mismatch(turn.reply, request.schema))
    ):
        return f"the policy's reply does not fit the format that the agent asked for ({reason})"
    return ""


def format_mismatch(reply: str, schema: Mapping[str, Any]) -> str:
    """Return why a reply is no JSON that fits *schema*; empty if it is. Bounds and patterns are not
    compared.
    """
    from quintain_tools.formats import mismatch

    try:
        value = json.loads(reply)
    except (ValueError, RecursionError) as e:
        return f"not JSON: {e}"
    return mismatch(value, schema, schema)
