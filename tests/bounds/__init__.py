"""Waits, reconnects and recovery, measured against their bounds: the laboratory `bounds`."""
