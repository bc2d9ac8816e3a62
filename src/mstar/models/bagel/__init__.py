"""BAGEL: one model that reads text and pictures, writes text, and draws."""
