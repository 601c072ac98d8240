"""Functions that algorithms are made of: advantages, objectives, corrections, aggregations, group
filters.
"""
