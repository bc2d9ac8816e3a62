"""Twenty simple questions with their accepted answers, for the first answers of the assistant and of SmolLM2.

They are facts that a model of 135 million parameters can know, chosen from a pool of fifty of which SmolLM2 answers 33
right by the same rule. Arithmetic is not among them.
"""

import re

REQUIRED_RIGHT = 18
"""Minimum number of right answers."""
SIMPLE_QUESTIONS = {
    "What is the capital of France?": ("paris",),
    "What is the capital of Italy?": ("rome",),
    "What is the capital of Japan?": ("tokyo",),
    "What is the capital of Germany?": ("berlin",),
    "What is the capital of Egypt?": ("cairo",),
    "What is the largest ocean on Earth?": ("pacific",),
    "What is the tallest mountain in the world?": ("everest",),
    "Which planet is known as the Red Planet?": ("mars",),
    "On which continent is Brazil?": ("south america",),
    "How many days are in a week?": ("seven", "7"),
    "How many sides does a triangle have?": ("three", "3"),
    "What is the chemical symbol of water?": ("h2o", "h₂o"),
    "What gas do humans need to breathe?": ("oxygen",),
    "Who wrote Romeo and Juliet?": ("shakespeare",),
    "Who painted the Mona Lisa?": ("leonardo", "vinci"),
    "Who was the first person to walk on the Moon?": ("armstrong",),
    "Who developed the theory of relativity?": ("einstein",),
    "What color is the sky on a clear day?": ("blue",),
    "What is the opposite of hot?": ("cold",),
    "In which country is the Eiffel Tower?": ("france",),
}
"""Question → words of which the answer must contain one."""


def is_right(question, answer):
    """Whether the first sentence of an answer has an accepted word; what follows it is not judged."""
    first_sentence = re.split(r"(?<=[.!?])\s|\n", answer.strip())[0].lower()
    return any(re.search(rf"\b{re.escape(word)}\b", first_sentence) for word in SIMPLE_QUESTIONS[question])


def wrong_answers(answers):
    """The questions of a mapping from question to answer that are not answered right, with their answers."""
    return {question: answer for question, answer in answers.items() if not is_right(question, answer)}
