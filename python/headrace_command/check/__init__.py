"""The verb `check`."""
