"""An einsum whose communication overlaps with its products: rings of permutes between dots."""
