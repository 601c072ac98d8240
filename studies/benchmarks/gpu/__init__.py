"""The kit for one GPU: `run.sh` runs its parts, `report` makes tables of what they measured."""
