"""The ops that random programs draw, by family. Importing a file registers its ops."""

from tests.random_ops import arithmetic, arranging, control, functions, local, positions, whole

__all__ = ["arithmetic", "arranging", "control", "functions", "local", "positions", "whole"]
