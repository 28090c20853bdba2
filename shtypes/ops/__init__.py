"""The user's functions, one file per family; their typing is in `rules`."""
