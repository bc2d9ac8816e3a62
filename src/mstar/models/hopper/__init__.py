"""Hopper: the policy of a robot with one leg, trained by others, as small as a policy can be."""
