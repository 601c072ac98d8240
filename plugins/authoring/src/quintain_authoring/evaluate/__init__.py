"""``quintain eval``: a model, a server, a run or a control policy on an environment."""
