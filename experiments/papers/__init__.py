"""Studies of the papers' claims. Each study is a command that writes a table and a figure."""
