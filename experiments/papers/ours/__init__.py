"""Studies that combine the papers, or try what none of them has."""
