"""Trees of typed values."""
