"""The conductor: admits requests, runs their routes, dispatches walks to workers, and retries them when workers die."""
