"""The command `headrace`. It imports headrace itself only once its arguments are parsed, so that `--help` is quick."""
