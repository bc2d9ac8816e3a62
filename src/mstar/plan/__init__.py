"""Planner: compiles walks and a placement to integer tables, and executes them for one request (`runtime`)."""
