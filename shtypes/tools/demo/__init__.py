"""The program that ``shtypes demo`` shows."""
