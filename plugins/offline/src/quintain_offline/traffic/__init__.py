"""Training on the traffic of a server: what `quintain serve --record` wrote, and how it was rated."""
