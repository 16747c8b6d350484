"""Fuzzing: the targets of the core, in Rust, and those of the binding, in `arrow_fuzz` and `read_fuzz`."""
