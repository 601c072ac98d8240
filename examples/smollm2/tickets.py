"""The reward of tickets.toml: the right queue, and a little for the name of any queue."""

QUEUES = ("billing", "delivery", "returns", "login", "repair", "cancel", "sales", "praise")


def score(completion: str, answer: str) -> float:
    """1 for the right queue, 0.1 for another one, 0 for any other text."""
    word = completion.strip().rstrip(".").lower()
    if word not in QUEUES:
        return 0.0
    return 1.0 if word == answer else 0.1
