"""A taskset for the environment server of verifiers, in an interpreter that has it."""

import os

import verifiers.v1 as vf


class ServedData(vf.TaskData):
    answer: str


class ServedTask(vf.Task[ServedData]):
    @vf.reward(weight=1.0)
    async def exact(self, trace) -> float:
        if trace.last_reply == "raise":
            raise ValueError("the reward is broken")
        if trace.last_reply == "die":
            os._exit(3)
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 4)

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.last_reply))


class ServedConfig(vf.TasksetConfig):
    size: int = 20


class Served(vf.Taskset[ServedTask, ServedConfig]):
    def load(self):
        for i in range(self.config.size):
            data = ServedData(prompt=f"{i} + {i}?", system_prompt="Digits.", answer=str(2 * i))
            yield ServedTask(data, self.config.task)


__all__ = ["Served"]
