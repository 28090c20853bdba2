"""What a program needs on each device: its steps on shards, what of them is in memory, and when."""
