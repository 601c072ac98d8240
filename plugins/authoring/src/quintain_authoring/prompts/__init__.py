"""Optimises the system message of an environment with GEPA: `quintain prompt`."""
