"""Experts of a component in a process of their own."""
