"""The verb `dead-letters`."""
