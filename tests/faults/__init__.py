"""Fault tests: real servers behind a proxy that cuts and stalls, random faults from a seed, and one checker."""
