"""Orpheus: a Llama that writes the codes of SNAC, an audio codec, which turns them into speech."""
