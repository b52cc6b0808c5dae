"""Many runs: grids of points and seeds, comparisons seed by seed, searches of capacities."""
