"""Readers, generators and batches that tasks share."""
