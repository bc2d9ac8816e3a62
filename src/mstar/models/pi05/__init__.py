"""pi0.5: a vision-language-action policy for robots."""
