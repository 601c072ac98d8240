"""Commands for authors: `quintain new`, `quintain check`, `quintain rescore`."""
