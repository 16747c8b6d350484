"""What headrace stores, in golden files: entries, markers, positions, shards and dead letters."""
