"""The command `headrace`. It imports headrace itself only after parsing its arguments, so that `--help` is fast."""
