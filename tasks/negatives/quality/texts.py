"""Words, templates and normal forms, as the quality specification defines them.

It shares one function with the filter that it evaluates: `normal_form`, which defines when two queries are equal.
"""

import re
from collections.abc import Sequence

MASK = "<mask>"
WORD = re.compile(r"[a-z']+")
UNIT = re.compile(rf"(?:{MASK}|[a-z'])+")
MASK_OR_WORD = re.compile(rf"{MASK}|[a-z']+")


def words_of(text: str) -> list[str]:
    """The tokens `[a-z']+` of a text, lower-cased."""
    return WORD.findall(text.lower())


def template_words(masked: str) -> list[str]:
    """The words of a masked query, its masks among them."""
    return MASK_OR_WORD.findall(masked.lower())


def fills_of(masked: str, text: str) -> tuple[str, ...] | None:
    """The words in the masks' places, or None where the text is not the masked query with one word a mask."""
    template, words = UNIT.findall(masked.lower()), words_of(text)
    if len(template) != len(words):
        return None
    fills: list[str] = []
    for wanted, word in zip(template, words, strict=True):
        if wanted == MASK:
            fills.append(word)
        elif MASK in wanted:  # "<mask>'s"
            match = re.fullmatch(wanted.replace(MASK, "([a-z']+)"), word)
            if not match:
                return None
            fills += match.groups()
        elif wanted != word:
            return None
    return tuple(fills)


def masked_tokens(masked: str, tokens: Sequence[str]) -> list[int] | None:
    """Which of a query's tokens a masked query hides, or None where the two don't match.

    A token may be several words of the template, or none ("t-shirt" is two, "." none).
    """
    template, indices = template_words(masked), []
    place = 0
    for index, token in enumerate(tokens):
        words = words_of(token)
        if place < len(template) and template[place] == MASK and any(c.isalnum() for c in token):
            indices.append(index)
            place += 1
        elif template[place : place + len(words)] == words:
            place += len(words)
        else:
            return None
    return indices if place == len(template) else None
