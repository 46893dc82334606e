"""Everything that trains."""
