"""Orpheus: text to speech with a Llama that writes the codes of the audio codec SNAC."""
