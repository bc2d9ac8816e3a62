"""GPUs of this host without torch: which ones are visible, and which worker uses which."""
