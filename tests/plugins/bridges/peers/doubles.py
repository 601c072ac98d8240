"""A taskset of verifiers, for an interpreter that has it."""

import verifiers.v1 as vf


class DoubleData(vf.TaskData):
    answer: str


class DoubleTask(vf.Task[DoubleData]):
    @vf.reward(weight=1.0)
    async def exact(self, trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 4)


class DoublesConfig(vf.TasksetConfig):
    size: int = 3


class Doubles(vf.Taskset[DoubleTask, DoublesConfig]):
    def load(self):
        for i in range(self.config.size):
            data = DoubleData(prompt=f"{i} + {i}?", system_prompt="Digits.", answer=str(2 * i))
            yield DoubleTask(data, self.config.task)


__all__ = ["Doubles"]
