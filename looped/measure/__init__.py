"""What benchmarks, simulations and evaluations share: statistics, capacity, results and pages."""
