"""Resources servers of NeMo-Gym's own package, unmodified, for an interpreter that has it:
``python their_server.py NAME PORT``; without a port it prints the folder of the rows.
"""

import importlib
import sys
from pathlib import Path
from unittest.mock import MagicMock

import uvicorn
from nemo_gym.server_utils import ServerClient

NAMES = {
    "example_multi_step": "ExampleMultiStepResourcesServer",
    "example_single_tool_call": "SimpleWeatherResourcesServer",
    "mcqa": "MCQAResourcesServer",
}

name, *port = sys.argv[1:]
module = importlib.import_module(f"resources_servers.{name}.app")
if not port:
    print(Path(module.__file__).parent / "data" / "example.jsonl")
else:
    kind = getattr(module, NAMES[name])
    config = kind.model_fields["config"].annotation(
        host="127.0.0.1", port=int(port[0]), entrypoint="", name=name
    )
    server = kind(config=config, server_client=MagicMock(spec=ServerClient))
    uvicorn.run(server.setup_webserver(), host="127.0.0.1", port=int(port[0]), log_level="warning")
