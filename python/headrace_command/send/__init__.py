"""The verb `send`."""
