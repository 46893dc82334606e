"""Diffusion of values over several hops by edge weights, and attention and diffusion in one."""

__all__ = []
