"""Plays episodes with the client of OpenEnv: ``python their_client.py URL SCRIPT``, where SCRIPT is
JSON: a list of resets with their replies. Prints what came back as JSON.
"""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient


async def main(url, script):
    seen = []
    async with GenericEnvClient(base_url=url) as client:
        for parameters, actions in script:
            first = await client.reset(**parameters)
            episode = [first, *[await client.step(action) for action in actions]]
            state = await client.state()
            seen.append(
                {
                    "steps": [
                        {"observation": r.observation, "reward": r.reward, "done": r.done}
                        for r in episode
                    ],
                    "state": state,
                }
            )
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
