"""BAGEL: one model that reads text and images, writes text, and generates images."""
