"""From one process to a cluster: `workers`, asynchronous `schedules`, `ray`."""
