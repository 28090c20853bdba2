"""In which ways is a primitive computed along a dim that is sharded? Bodies of shards, chosen by what they send."""
