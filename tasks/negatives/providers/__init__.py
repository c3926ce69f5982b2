"""The interface of providers, which fill the slots of masked queries with words.

A provider is a group of parameters, `ProviderSettings`, that makes a `Provider`; docs/extending.md has an example.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any, ClassVar, Protocol

from penumbra.artifacts.errors import PenumbraError
from penumbra.artifacts.locations import PROJECT
from penumbra.tasks.parameter_group import Parameters
from penumbra.tasks.text.dictionary import AllowedWords, Dictionary
from penumbra.tasks.text.relations import Tokens
from penumbra.tasks.text.wordnet import lemma, stands_alone, takes_object

OBJECTS = ("dobj", "obj")  # arcs to a verb's direct object
CLAUSES = ("relcl", "acl", "acl:relcl")  # a verb of such a clause may have its object outside
FOLDER = PROJECT / "prompts"
PASSIVES = ("nsubjpass", "auxpass", "nsubj:pass", "aux:pass")


@dataclass(frozen=True)
class Slot:
    """A masked token: its index among the query's tokens, its primitive class and fine tag, its word and lemma.

    `is_subject`: it is the query's subject, which takes only nouns that are subjects of verbs.
    """

    token: int
    primitive: str
    tag: str
    word: str
    lemma: str
    is_subject: bool = False

    @property
    def kind(self) -> tuple[str, str, str, str, bool]:
        """The fields that determine which words the slot may take."""
        return self.primitive, self.tag, self.word, self.lemma, self.is_subject

    def allowed(self, dictionary: Dictionary) -> AllowedWords:
        return dictionary.allowed(*self.kind)

    def may_take(self, word: str, dictionary: Dictionary) -> bool:
        """Return whether a word is on offer for the slot and is no form of its own word."""
        _, offer, excluded = self.allowed(dictionary)
        return word in offer.index_of and offer.index_of[word] not in excluded

    def no_word_problem(self) -> str:
        role = " that is a verb's subject" if self.is_subject else ""
        return f"no other {self.primitive} than {self.word!r}{role} in the training split"

    def surface(self, word: str) -> str:
        """Return the word as it is written in the slot, with the capital of the word that it replaces."""
        return word.capitalize() if self.word[:1].isupper() else word


def has_valence(tokens: Tokens, slot: Slot, word: str) -> bool:
    """Return whether a verb can take the direct object of the verb that it replaces, or do without one.

    True if the replaced verb itself could not: then the parser is wrong or the verb has a particle.
    """
    verb = tokens[slot.token]
    arcs = {token["dep"] for token in tokens if token["head"] == slot.token}
    if slot.primitive != "verb" or verb["dep"] in CLAUSES or not arcs.isdisjoint(PASSIVES):
        return True
    can = stands_alone if arcs.isdisjoint(OBJECTS) else takes_object
    return can(lemma(word, "verb")) or not can(lemma(slot.word, "verb"))


@dataclass(frozen=True)
class MaskedQuery:
    """A query with the slots of each level; `levels[0]` is level `first`.

    `part` is (index, number of shares): the share of each slot's words that is on offer.
    """

    qid: str
    tokens: list[dict[str, Any]]
    levels: tuple[tuple[Slot, ...], ...]
    first: int = 1
    part: tuple[int, int] = (0, 1)

    def chains(self) -> list["MaskedQuery"]:
        """Split the levels into chains: a new one begins where a level has the same slots as the level before.

        Within a chain, a level keeps the words of the level before and adds its own. Levels with the same slots (a
        query of two words masks 1, 1 and 2) differ by their words alone, so chains are offered different words.
        """
        starts = [i for i, slots in enumerate(self.levels) if i == 0 or slots == self.levels[i - 1]]
        return [
            MaskedQuery(self.qid, self.tokens, self.levels[start:end], self.first + start, (index, len(starts)))
            for index, (start, end) in enumerate(pairwise([*starts, len(self.levels)]))
        ]


@dataclass(frozen=True)
class Fill:
    """One candidate for a query at a level: a word for each slot, or the problem that prevented it.

    `model` names the model that answered where it differs from the provider's `model`; `cached` says that another run,
    or the same question of another query, paid for the answer.
    """

    qid: str
    level: int
    words: tuple[str, ...]
    problem: str = ""
    attempts: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0
    cached: bool = False
    model: str = ""


class Provider(ABC):
    """Fills slots. `name` is what users type, `model` the exact model, `prompt` the label of its prompt if any."""

    name: str
    model: str
    prompt: str | None

    @abstractmethod
    def fill(self, queries: Sequence[MaskedQuery], candidates: int) -> Iterator[Fill]:
        """Yield at most `candidates` fills for each query and level, in any order; equal seeds give equal fills."""


class SharedSettings(Protocol):
    @property
    def seed(self) -> int: ...

    @property
    def options(self) -> int: ...  # words on offer to a hosted model for a slot

    @property
    def vocabulary(self) -> str: ...  # open, or dictionary: the words that a local model may take

    @property
    def prompt(self) -> str: ...  # of the hosted models


@dataclass(frozen=True)
class TrainingText:
    """The training split: its dictionary, and the tokens of its queries, which can be read once."""

    dictionary: Dictionary
    tokens: Iterable[Tokens]


class ProviderSettings(Parameters):
    """The parameters of a provider, with the method that makes it; `provider` is the name that users type."""

    provider: ClassVar[str]
    about: ClassVar[str]  # short description
    version: ClassVar[int] = 1  # increased by each change of the provider's fills

    @property
    def on_device(self) -> bool:
        """Whether the provider needs a GPU or all cores: then no local worker, only a cluster's, creates it."""
        return False

    def key_parameters(self, filling: SharedSettings) -> dict[str, Any]:
        """Return what the fills depend on besides masks, dictionary, seed and number of candidates."""
        return {}

    @abstractmethod
    def make(self, training: TrainingText, filling: SharedSettings, run: str) -> Provider:
        """Return the provider; `run` is the id of the flow run that fills."""


# -- prompts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """A template; `label` (name@digest of the file) is the value of a row's `prompt` column."""

    label: str
    static: str
    template: str

    def fill(self, **variables: str) -> str:
        return Template(self.template).substitute(variables)


def load_prompt(name: str, *variables: str, folder: Path = FOLDER) -> Prompt:
    """Read `<folder>/<name>.txt`: a head, the static text and the text with exactly these variables.

    The three parts are separated by lines of three dashes. The static text is the beginning of every request, so that
    services can cache it. Raises `PenumbraError` that names the file and what is wrong with it.
    """
    path = folder / f"{name}.txt"
    if not re.match(r"[a-z0-9][a-z0-9-]*\Z", name) or not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.txt")))
        raise PenumbraError(f"no prompt {name!r} in {folder}; there are: {known}")
    content = path.read_text(encoding="utf-8")
    parts = content.split("\n---\n")
    if len(parts) != 3:
        raise PenumbraError(f"{path}: a prompt is a head, a static text and a text with variables, separated by '---'")
    used = set(re.findall(r"\$\{?([a-z_]+)\}?", parts[2]))
    if used != set(variables):
        raise PenumbraError(f"{path}: uses the variables {sorted(used)}, but needs {sorted(variables)}")
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Prompt(f"{name}@{digest}", parts[1].strip(), parts[2].strip())
