"""Fault tests of reading: processes that read behind the fault proxy, streams that change meanwhile, and a checker."""
