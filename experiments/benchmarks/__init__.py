"""Benchmarks of speed and memory. Results are compared as ratios within one run."""
