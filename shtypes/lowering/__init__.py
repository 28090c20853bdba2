"""How typed programs run: each operation as one shard_map, or a whole program as one region."""
