"""Voxtral: a language model that reads audio."""
