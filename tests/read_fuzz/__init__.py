"""Laboratory: random tables that are written in each layout and read back."""
