"""Claims and what proves them: `python -m bench NAME` measures one here and now, `python -m bench all` each of them.

A bench prints a table for people and, last, one JSON line: what is claimed, the value measured, the bar, whether it
holds. Only what such a line said may be quoted, with its date.
"""
