"""Train the shipped English pipeline: tagger, morphologizer, parser and rule lemmatizer in at most 8 MB.

    python -m workshop.tagger.train TREEBANK [--output models/tagger]

TREEBANK is a folder with UD English-EWT's `train.conllu`, `dev.conllu` and `test.conllu`
(universaldependencies.org, CC BY-SA 4.0). Training takes about 25 minutes on one core and needs
`pip install -e '.[tagger]'` for the lemma tables.
"""

import json
import random
import tempfile
from pathlib import Path

import spacy
import typer
from spacy.cli.train import train as spacy_train
from spacy.language import Language
from spacy.lookups import load_lookups
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from penumbra.tasks.text.tags import PIPELINE_FOLDER
from workshop.tagger.captions import TreebankLexicon, caption_trees, read_conllu, to_clear_style, to_doc
from workshop.tagger.instructions import IMPERATIVE, instruction_trees

CAPTIONS = 10000
INSTRUCTIONS = 9000
RAREST_LOGPROB = {"noun": -15, "verb": -17, "adj": -15}  # the unigram log-probability of the rarest common words


def write_corpora(treebank: Path, folder: Path) -> None:
    """Write `train.spacy` (as printed, lower-cased, captions, instructions) and `dev.spacy` (half lower-cased)."""
    vocab = spacy.blank("en").vocab
    sentences = list(read_conllu(treebank / "train.conllu"))
    trees = [to_clear_style(words) for words in sentences]
    trees += [words for words in trees if words[0].dep == "ROOT" and words[0].morph == IMPERATIVE]  # these twice
    docs = [to_doc(vocab, words, lower=lower) for words in trees for lower in (False, True)]
    lexicon = TreebankLexicon(sentences, *common_words())
    synthetic = caption_trees(lexicon, CAPTIONS) + instruction_trees(lexicon, INSTRUCTIONS)
    docs += [to_doc(vocab, words) for words in synthetic]
    random.Random(0).shuffle(docs)
    DocBin(docs=docs, store_user_data=False).to_disk(folder / "train.spacy")
    dev = [to_clear_style(words) for words in read_conllu(treebank / "dev.conllu")]
    dev_docs = [to_doc(vocab, words, lower=i % 2 == 0) for i, words in enumerate(dev)]
    DocBin(docs=dev_docs).to_disk(folder / "dev.spacy")


def common_words() -> tuple[dict[str, set[str]], dict[str, list[str]]]:
    """Return WordNet's common words by class and its irregular verb forms, from spacy-lookups-data."""
    index = load_lookups("en", tables=["lemma_index", "lemma_exc"])
    logprob = load_lookups("en", tables=["lexeme_prob"]).get_table("lexeme_prob")
    words, common = index.get_table("lemma_index"), {}
    for pos, rarest in RAREST_LOGPROB.items():
        common[pos] = {it for it in words[pos] if it.isalpha() and len(it) > 2 and logprob.get(it, -99) > rarest}
    return common, index.get_table("lemma_exc")["verb"]


def score(nlp: Language, path: Path, *, lower: bool = False) -> dict[str, float]:
    """Return the accuracy on a CoNLL-U file with its own tokens: UPOS, fine tag, attachment."""
    examples = []
    for words in read_conllu(path):
        reference = to_doc(nlp.vocab, to_clear_style(words), lower=lower)
        spaces = [bool(token.whitespace_) for token in reference]
        examples.append(Example(Doc(nlp.vocab, [token.text for token in reference], spaces), reference))
    scores = nlp.evaluate(examples)
    return {name: round(scores[name], 4) for name in ("pos_acc", "tag_acc", "dep_uas", "dep_las")}


def main(treebank: Path, output: Path = PIPELINE_FOLDER, epochs: int = 10) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(treebank, folder)
        paths = {f"paths.{name}": str(folder / f"{name}.spacy") for name in ("train", "dev")}
        config = Path(__file__).with_name("config.cfg")
        spacy_train(config, folder, overrides={**paths, "training.max_epochs": epochs})
        nlp = spacy.load(folder / "model-best")
    lemmatizer = nlp.add_pipe("lemmatizer", config={"mode": "rule"})  # with its tables: it needs no other package
    lemmatizer.initialize(lambda: [], nlp=nlp)
    nlp.meta.update(name="penumbra", license="CC BY-SA 4.0", sources=[{"name": "UD English-EWT"}])
    nlp.config["paths"].update(train=None, dev=None)  # in a temporary folder
    nlp.to_disk(output, exclude=["vectors"])
    test = treebank / "test.conllu"
    print(json.dumps({"test": score(nlp, test), "test, lower case": score(nlp, test, lower=True)}, indent=1))


if __name__ == "__main__":
    typer.run(main)
