"""Random schedules of streams and of readers that begin anywhere: what their positions promise, and what they do."""
