"""Scores a reply to a line of ``tasks.jsonl``: ``python3 score.py ID < reply`` prints
``{"reward": 1.0}``.

Exit status: 0 with a reward, 3 without one, where the environment failed and not the reply, 2 for
an ID that no line has.
"""

import json
import sys

from grade import HERE, scored


def main(name: str) -> int:
    # `splitlines` would end a line within a text, at U+2028 for one.
    for line in (HERE / "tasks.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        if row["id"] == name:
            reward = scored(row["environment"], sys.stdin.read())
            if reward is None:
                return 3
            print(json.dumps({"reward": reward}))
            return 0
    print(f"no task {name!r}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
