"""Random bits that do not depend on the mesh."""
