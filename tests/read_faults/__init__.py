"""Fault tests of reading: processes that read behind the fault proxy, streams that change under them, and a checker."""
