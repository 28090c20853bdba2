"""Reports about traced programs: types, communication, memory, compute, and typed listings."""
