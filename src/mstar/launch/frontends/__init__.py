"""Front ends that are processes of their own, on one port."""
