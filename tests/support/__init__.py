"""Helpers for several test files: servers, certificates, MONITOR."""

from support.certs import Certs, KeyPair, make_certs
from support.monitor import Command, Monitor
from support.servers import Program, find_programs, missing_in_ci, programs_with

__all__ = [
    "Certs",
    "Command",
    "KeyPair",
    "Monitor",
    "Program",
    "find_programs",
    "make_certs",
    "missing_in_ci",
    "programs_with",
]
