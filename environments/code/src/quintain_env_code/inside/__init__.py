"""Programs that run inside the sandboxes. They import the standard library and one another only."""
