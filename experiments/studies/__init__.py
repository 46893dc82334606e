"""What the papers claim, tried: one command each, which leaves a table and a figure."""
