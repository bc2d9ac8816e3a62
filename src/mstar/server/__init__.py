"""Front ends: they speak to clients, and hold nothing that could not be lost."""
