"""The cotangent map, and gradients of typed losses."""
