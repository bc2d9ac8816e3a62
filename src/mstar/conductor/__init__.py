"""The conductor: it owns requests, runs their routes, and has walks begun anew when a worker dies."""
