"""Recording of profiles, and their replay in the capacity simulation."""
