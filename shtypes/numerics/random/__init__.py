"""Keys and samples."""
