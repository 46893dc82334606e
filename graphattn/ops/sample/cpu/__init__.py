"""Samplers for CPUs: compiled loops over queries. Each query has its own random bits."""

__all__ = []
