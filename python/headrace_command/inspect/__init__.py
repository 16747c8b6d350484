"""The verb `inspect`."""
