"""All architectures that docs/architectures.md lists, in its order."""

from tests.architectures.decoders import DECODERS
from tests.architectures.others import OTHER_ARCHITECTURES
from tests.architectures.speech import SPEECH_ARCHITECTURES

ARCHITECTURES = (*DECODERS, *SPEECH_ARCHITECTURES, *OTHER_ARCHITECTURES)
