"""Workers: each owns components and runs its part of every walk that calls them."""
