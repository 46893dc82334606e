"""Studies of the papers' claims: each is a command that writes a table and a figure."""
