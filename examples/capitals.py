"""The reward of capitals.toml."""


def score(completion: str, answer: str) -> float:
    """Half for a reply that names the city, all for one that names only the city."""
    return 0.5 * (answer in completion) + 0.5 * (completion.strip().rstrip(".") == answer)
