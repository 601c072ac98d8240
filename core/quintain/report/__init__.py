"""What a run shows: on the screen, in pictures, at its end."""
