"""Recovery of requests whose workers were lost."""
