"""The demo program of ``shtypes demo``."""
