"""What ops cost and what runs now."""
