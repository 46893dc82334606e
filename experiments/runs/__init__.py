"""Runs: their folders, figures and tables, and pre-trained weights."""
