"""V-JEPA 2: what clips show and what is hidden in them; V-JEPA 2-AC: what a robot's actions lead to, and plans."""
