"""The walk graph as data: nodes, types, checker, text and JSON forms. Imports the standard library only."""
