"""The recipes of docs/ that need large packages or a database: each runs as printed, and once with a failure."""
