"""``quintain compare``: several recipes on equal tasks, seeds and budgets, intervals and fitted
laws.
"""
