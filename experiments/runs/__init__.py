"""Runs: their folder, pictures and tables, and weights to begin with."""
