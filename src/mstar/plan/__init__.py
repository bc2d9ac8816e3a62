"""From a walk and a placement to integer tables: what runs where, what crosses, and a request's progress through it."""
