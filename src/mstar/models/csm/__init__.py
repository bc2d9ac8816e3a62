"""CSM: text to speech with a Llama backbone, a depth decoder and the codec Mimi."""
