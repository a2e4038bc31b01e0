"""Dataprep: from raw documents to packed token shards."""
