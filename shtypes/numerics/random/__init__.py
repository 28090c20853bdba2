"""Random keys and samples."""
