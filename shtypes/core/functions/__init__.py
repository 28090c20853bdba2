"""The local functions that several ops share."""
