"""What waits, and what is left behind, measured against its bound: `make bounds`."""
