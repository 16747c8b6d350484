"""Rows that go into a cluster while slots move, masters fail and connections break; then each outcome is checked.

`laboratory` runs a campaign. `faults` are what happens, `episode` is one dispatcher with some of them, and its verdict.
"""
