"""What load planning computes from a cluster's load history: forecasts, splits, capacities."""
