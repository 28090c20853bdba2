"""shtypes: a sharding-in-types array frontend for JAX."""
