"""Local mode: what one device does, on types in which the mapped mesh axes vary."""
