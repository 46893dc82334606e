"""What a run leaves behind: its folder, pictures and tables, and weights to begin with."""
