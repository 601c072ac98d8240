"""A third party's package."""
