"""Streaming loader: shards, order, stream, look-up. Importing it costs numpy and xxhash only."""
