"""What typed programs are made of: `local`, `reshard`, the collectives of local mode, and the doors to plain arrays."""
