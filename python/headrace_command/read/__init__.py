"""The verb `read`."""
