"""Walk graph as data (intermediate representation): nodes, types, checks, text form, JSON. Standard library only."""
