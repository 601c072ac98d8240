"""Components and hooks: found from metadata, imported on first use, isolated from one another."""
