"""Looking at runs: `viewer`, `watch`, `compare`, `alerts` and `trackers`."""
