"""Commands about components: `info` describes one, `doctor` imports and times them, one process per
distribution.
"""
