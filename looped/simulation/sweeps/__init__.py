"""Many runs: grids of points and seeds, comparisons seed by seed, searches of capacities.

grid, paired         every point on every seed; differences by pair
comparison, sweep    the commands' two questions
capacity             the largest rate that meets an objective
keeper               results that are written while they grow
"""
