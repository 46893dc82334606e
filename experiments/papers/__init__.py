"""Studies that try the papers' claims: one command each, which leaves a table and a figure."""
