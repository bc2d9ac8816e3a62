"""A family of small models that hear, think and speak on one core, each by itself.

Their weights are files of pinned packages. Nothing is fetched when they run.
"""
