"""A laboratory of faults: real servers behind a proxy that cuts and stalls, random faults from a seed, one checker."""
