"""Commands for authors of plugins: `doctor` imports and times every component, each distribution in its own process."""
