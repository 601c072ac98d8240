"""Training on data that exists: `sft`, `preference`, `distill` and `reward_model`."""
