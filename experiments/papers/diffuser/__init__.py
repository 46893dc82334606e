"""Studies of Diffuser: attention diffusion along local, global and random edges."""
