"""Waits, reconnects and recovery, measured against their bounds: `make bounds`."""
