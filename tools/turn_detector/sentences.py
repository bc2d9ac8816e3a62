"""Texts of the turn detector's data: what users say to an assistant, and what they say while it speaks.

The texts of a split are in no other one. Backchannels are a small set of words, so the test split has those of training
too, spoken by other voices; `NEW_BACKCHANNELS` are in the test split only.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["sentence", "pause", "short", "backchannel"]
Split = Literal["train", "validation", "test"]


@dataclass(frozen=True, slots=True)
class Line:
    """A text to speak. A `pause` breaks off at its end, where its speaker will continue."""

    text: str
    kind: Kind


_TEMPLATES = {
    "train": (
        "Could you book a table for {number} at the {place} {day}?",
        "I would like to order {thing} and {thing} for {person}.",
        "What is the weather going to be like in {city} {day}?",
        "Please remind me to call {person} about {thing} {day}.",
        "Can you tell me how to get from the {place} to {city}?",
        "I think we should move the meeting with {person} to {day}.",
        "How many people live in {city}, and is it larger than {city}?",
        "Turn off the lights in the {place} and lock the door.",
        "My flight to {city} leaves {day}, so I need a taxi.",
        "When does the train to {city} leave from the {place}?",
        "I was wondering whether you could help me with {thing}.",
        "Tell me a story about {person} and {thing}.",
        "Send a message to {person} that I will be late {day}.",
        "Is there a good place to buy {thing} near the {place}?",
        "I have lost {thing}, and I do not know where to look.",
        "Set a timer for {number} minutes.",
        "Play some music by {person} in the {place}.",
        "What did {person} say about {thing}?",
        "We are planning a trip to {city} with {number} friends {day}.",
        "The doctor told me that I should not eat {thing} anymore.",
        "Why is {thing} so expensive in {city}?",
        "Add {thing} to my shopping list, please.",
        "I am not sure if {person} received the letter about {thing}.",
        "Who was the first person to bring {thing} to {city}?",
        "Let us start with {thing}, and then talk about {city}.",
        "Do you know if the {place} is open {day}?",
        "My name is {person}, and I am calling about {thing}.",
        "That is not what I meant.",
        "I need to cancel my appointment {day}.",
        "Where can I park near the {place}?",
    ),
    "validation": (
        "Can I bring {thing} on the plane to {city}?",
        "I want to change my order, because {person} does not like {thing}.",
        "How long does it take to walk to the {place}?",
        "Write down that {person} owes me {thing}.",
        "The last time I was in {city}, it rained for {number} days.",
    ),
    "test": (
        "Would you mind checking whether {person} has arrived in {city}?",
        "I have been waiting for {thing} since {day}.",
        "Which of the hotels in {city} has a view of the {place}?",
        "Please read me the news about {city} and {thing}.",
        "There is a problem with {thing} that I bought {day}.",
        "How do I make {thing} without sugar?",
        "If it rains {day}, we can meet {person} at the {place}.",
        "Explain to me why {person} moved to {city}.",
        "Call the {place} and ask for {number} tickets.",
        "It would be nice to have {thing} for breakfast.",
        "Are there any buses to the {place} after midnight?",
        "My sister wants to study in {city}, but she is afraid of flying.",
    ),
}
_SLOTS = {
    "train": {
        "number": "two|three|five|seven|twelve|twenty",
        "place": "station|library|kitchen|airport|museum|harbor|school|garage",
        "day": "tomorrow|on Monday|next week|tonight|in the morning|on Friday evening",
        "thing": "a bicycle|coffee|the blue jacket|my passport|two pizzas|the insurance|a birthday cake|bananas|"
        "the rent",
        "person": "Anna|my brother|Doctor Miller|the landlord|Peter|my boss|grandmother",
        "city": "Paris|Boston|Tokyo|Madrid|Chicago|Berlin|Sydney",
    },
    "validation": {
        "number": "four|nine|thirty",
        "place": "theater|market|office",
        "day": "on Tuesday|this afternoon|next month",
        "thing": "a guitar|fresh bread|the green umbrella",
        "person": "Laura|my neighbor|Mister Brown",
        "city": "London|Denver|Cairo",
    },
    "test": {
        "number": "six|eight|fifteen",
        "place": "bakery|stadium|castle|hospital",
        "day": "on Sunday|yesterday|last winter|this evening",
        "thing": "a laptop|orange juice|the red carpet|apple pie|a new phone",
        "person": "Martin|my cousin|the professor|Susan",
        "city": "Rome|Oslo|Toronto|Lisbon",
    },
}
_PAUSES = {
    "train": ("um", "uh", "so", "and", "because", "you know", "well"),
    "validation": ("um", "or", "but"),
    "test": ("um", "uh", "like", "and then", "but", "or"),
}
_SHORT = {
    "train": (
        "Stop.|Wait.|No.|Hold on.|What?|Cancel that.|Be quiet.|Next one, please.|Start again.|Excuse me.|Not that one.|"
        "Say that again.|How much?|Where?|No, the other one.|Tomorrow at five.|Never mind.|In the kitchen.|"
        "Louder, please.|Why?|Thank you, that is enough.|Go back.|Wait a minute.|I have a question."
    ),
    "validation": "Pause.|Who?|No, thanks.|Repeat that.|Two of them.|Hang on.",
    "test": (
        "Stop it.|Wait, wait.|When?|No, no.|Skip this.|Just a second.|On Monday.|The second one.|Stop talking.|"
        "What was that?"
    ),
}
BACKCHANNELS = (
    "Yes.|Yeah.|Okay.|Right.|I see.|Sure.|Hm.|Mm-hmm.|Uh-huh.|Got it.|Oh.|Ah.|Yep.|Alright.|Great.|Cool.|Nice.|Really?|"
    "Wow.|Yeah, yeah.|Oh, okay.|Of course.|Good.|Mhm, okay.|Yes, yes."
)
NEW_BACKCHANNELS = "Oh, yeah.|Okay, okay.|Right, right.|Oh, nice.|Yeah, sure.|Ah, I see."


def sentences(split: Split, count: int, rng: random.Random) -> list[Line]:
    """Complete sentences."""
    return [Line(_fill(split, rng), "sentence") for _ in range(count)]


def pauses(split: Split, count: int, rng: random.Random) -> list[Line]:
    """Beginnings of sentences, some of which end with a filler word. A comma makes a voice sound unfinished."""
    lines = list[Line]()
    while len(lines) < count:
        words = re.sub(r"[.?]", "", _fill(split, rng)).split()
        if len(words) < 4:
            continue
        start = " ".join(words[: rng.randint(2, len(words) - 1)]).rstrip(",")
        filler = f", {rng.choice(_PAUSES[split])}" if rng.random() < 0.4 else ""
        lines.append(Line(f"{start}{filler},", "pause"))
    return lines


def short_turns(split: Split) -> list[Line]:
    """Short turns, which interrupt the assistant: commands, questions and answers."""
    return [Line(text, "short") for text in _SHORT[split].split("|")]


def backchannels(split: Split) -> list[Line]:
    """What a listener says without wanting to speak."""
    texts = BACKCHANNELS.split("|") + (NEW_BACKCHANNELS.split("|") if split == "test" else [])
    return [Line(text, "backchannel") for text in texts]


def _fill(split: Split, rng: random.Random) -> str:
    template = rng.choice(_TEMPLATES[split])
    return re.sub(r"{(\w+)}", lambda slot: rng.choice(_SLOTS[split][slot[1]].split("|")), template)
