"""Settings of a request: temperature, several replies, stop strings, limits, what is reported."""

from __future__ import annotations

import asyncio

from quintain import Message, Reply

from ..case import case
from ..client import AgentClient, RefusedError, UnexpectedError, expect
from .kit import ADD, call, result, user

GROUP = "sampling"


@case(GROUP, ["The answer is 4.", "In the end 5."], temperature=0.6)
async def log_probs_under_temperature(c: AgentClient) -> None:
    """The policy samples at temperature 0.6: the log-probs are those of 0.6, not of 1"""
    reply = await c.ask("What is the answer?")
    await c.ask("What is the answer?", reply.message, "And in the end?")


@case(GROUP, ["The answer is 4.", "In the end 5."])
async def temperature_of_the_request(c: AgentClient) -> None:
    """The agent asks for a temperature: whichever is sampled at, the log-probs are of that one"""
    reply = await c.ask("What is the answer?", temperature=0.25)
    await c.ask("What is the answer?", reply.message, "And?", temperature=0.5)


@case(GROUP, ["The answer is 4.", "In the end 5."])
async def top_p_of_the_request(c: AgentClient) -> None:
    """The agent asks for `top_p`: log-probs are those of the whole distribution"""
    reply = await c.ask("What is the answer?", top_p=0.5)
    await c.ask("What is the answer?", reply.message, "And?", top_p=0.5)


@case(GROUP, lambda messages, again: f"answer {again}", dialects=("chat", "responses"))
async def one_seed_twice(c: AgentClient) -> None:
    """The agent sends one seed with every request, also where it asks for the same again"""
    await c.ask("What is the answer?", seed=7)
    await c.ask("Another part?", seed=7)


@case(GROUP, lambda messages, again: f"answer {again}", dialects=("chat",), needs=("n",))
async def several_replies(c: AgentClient) -> None:
    """Three replies to one request, none of which is continued"""
    expect(len(await c.ask_all("What is the answer?", n=3)) == 3, "three replies")


@case(
    GROUP,
    lambda messages, again: f"answer {again}",
    dialects=("chat",),
    needs=("n",),
    streams=True,
)
async def several_replies_streamed(c: AgentClient) -> None:
    """Three replies to one request as one stream"""
    expect(len(await c.ask_all("What is the answer?", n=3)) == 3, "three replies")


@case(GROUP, "the same answer", dialects=("chat",), needs=("n",))
async def several_replies_alike(c: AgentClient) -> None:
    """Three replies of the same tokens: each of them trains"""
    expect(len(await c.ask_all("What is the answer?", n=3)) == 3, "three replies")


@case(
    GROUP,
    lambda messages, again: f"answer {len(messages)} {again}",
    dialects=("chat",),
    needs=("n",),
)
async def each_of_several_replies_continued(c: AgentClient) -> None:
    """Each of two replies is continued, and one of them twice"""
    first, second = await c.ask_all("What is the answer?", n=2)
    await c.ask("What is the answer?", second.message, "Go on with this.")
    await c.ask("What is the answer?", first.message, "Go on with this.")
    await c.ask("What is the answer?", second.message, "Or with this.")


@case(
    GROUP,
    lambda messages, again: f"answer {again}",
    dialects=("chat",),
    needs=("n",),
    engine={"fail_on": (2,)},
)
async def one_of_several_replies_fails(c: AgentClient) -> None:
    """The engine fails for one of three replies, and the client sends the request again"""
    try:
        await c.ask_all("What is the answer?", n=3)
    except RefusedError:
        c.truth.unread |= set(range(len(c.truth.log)))
    else:
        raise UnexpectedError("expected an error of the server")
    replies = await c.ask_all("What is the answer?", n=3)
    await c.ask("What is the answer?", replies[2].message, "And?")


@case(GROUP, ["The answer.\nThe rest.", "The end."], needs=("stop",), dialects=("chat", "messages"))
async def stop_string(c: AgentClient) -> None:
    """A stop string ends the turn: its tokens were sampled, and the client does not read it"""
    reply = await c.ask("What is the answer?", stop=["\n"])
    expect(reply.text == "The answer.", "the text before the stop string")
    await c.ask("What is the answer?", reply.message, "And?")


@case(
    GROUP,
    lambda messages: "and then the answering is the part",
    needs=("stop",),
    dialects=("chat", "messages"),
)
async def stop_string_within_a_token(c: AgentClient) -> None:
    """A stop string ends in the middle of a token"""
    for question in ("One?", "Two?", "Three?", "Four?"):
        reply = await c.ask(question, stop=["answ"])
        await c.ask(question, reply.message, "And?", stop=["answeri", "is the p"])


@case(GROUP, ["One, two, three, four.", "The end."], needs=("max_tokens",))
async def token_limit(c: AgentClient) -> None:
    """A reply hits the token limit: the end that the template writes was not sampled"""
    reply = await c.ask("Count.", max_tokens=8)
    expect(reply.stop == "length", "that the reply says that it was cut")
    await c.ask("Count.", reply.message, "Go on.")


@case(GROUP, ["One, two, three, four.", "The end."], needs=("max_tokens",), streams=True)
async def token_limit_streamed(c: AgentClient) -> None:
    """The same as a stream"""
    await token_limit(c)


@case(GROUP, [call(x=1, y=2), "3"], needs=("max_tokens",), shown=False)
async def token_limit_within_a_call(c: AgentClient) -> None:
    """The token limit falls within a call, which cannot be read"""
    reply = await c.ask("Add.", tools=[ADD], max_tokens=30)
    if reply.text:
        await c.ask("Add.", reply.message, "Once more.", tools=[ADD])


@case(
    GROUP,
    [call(x=1, y=2, text="I add."), call(x=3, y=4, text="I add more."), "The answer is 10."],
    budget=80,
    shown=False,
)
async def token_budget_of_the_episode(c: AgentClient) -> None:
    """The tokens of the episode run out within its second turn"""
    history: list[Message] = [user("Add.")]
    for _ in range(3):
        try:
            reply = await c.ask(*history, tools=[ADD])
        except RefusedError as e:
            expect(400 <= e.status < 500, f"an error of the request, not {e}")
            break
        if not (reply.text or reply.calls):
            break
        history += [reply.message, *(result(one) for one in reply.calls)]
        if history[-1].role == "assistant":
            history.append(user("Go on."))


@case(GROUP, ["x", "y"], engine={"context": 120}, shown=False)
async def full_context(c: AgentClient) -> None:
    """The conversation outgrows the context: the request is refused, what was sampled stays"""
    reply = await c.ask("Short.")
    status = await c.refused("Short.", reply.message, "long " * 100)
    expect(400 <= status < 500, f"an error of the request, not HTTP {status}")


@case(
    GROUP,
    ["The answer is é.", Reply(text="In the end 5.", finish="length")],
    dialects=("chat",),
    needs=("logprobs",),
)
async def log_probs_reported(c: AgentClient) -> None:
    """The log-probs that the client reads are those of the truth, one for each token"""
    reply = await c.ask("What is the answer?", logprobs=True)
    again = await c.ask("What is the answer?", reply.message, "And?", logprobs=True)
    for turn, read in zip(c.truth.log, (reply, again), strict=True):
        expect(len(read.logps) == len(turn.logps), "a log-prob for each token")
        pairs = zip(read.logps, turn.logps, strict=True)
        expect(all(abs(a - b) < 1e-6 for a, b in pairs), "the log-probs of the engine")


@case(
    GROUP,
    ["The answer is é.", "In the end 5."],
    dialects=("chat",),
    needs=("token_ids", "logprobs"),
    streams=True,
)
async def token_ids_reported(c: AgentClient) -> None:
    """The ids that the client reads of a stream are the sampled ones"""
    reply = await c.ask("What is the answer?", return_token_ids=True, logprobs=True)
    expect(reply.token_ids == c.truth.log[0].ids, "the ids of the engine")


@case(GROUP, lambda messages: f"answer to {messages[-1].content}")
async def thirty_requests_at_once(c: AgentClient) -> None:
    """Thirty conversations at once, two turns each"""

    async def two(i: int) -> None:
        reply = await c.ask(f"Part {i}?")
        await c.ask(f"Part {i}?", reply.message, f"Part {i} and more?")

    await asyncio.gather(*map(two, range(30)))


@case(GROUP, [call(x=1, y=2), call(x=3, y=4), "10"], dialects=("chat",), temperature=1.5)
async def log_probs_of_calls_under_temperature(c: AgentClient) -> None:
    """Turns with calls at temperature 1.5"""
    reply = await c.ask("Add.", tools=[ADD])
    second = await c.ask("Add.", reply.message, result(reply.calls[0]), tools=[ADD])
    history = [reply.message, result(reply.calls[0]), second.message, result(second.calls[0])]
    await c.ask("Add.", *history, tools=[ADD])
