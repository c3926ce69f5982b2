"""The definition of every table: its columns, their types and what they hold.

A stage must write these columns, and a reader may rely on them. The reference in `docs/` is written from them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from penumbra.artifacts.errors import ArtifactError

TEXT, BOOL = pa.string(), pa.bool_()
INT8, INT16, INT32, INT64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT32, FLOAT64 = pa.float32(), pa.float64()
TEXTS = pa.list_(TEXT)
WINDOWS = pa.list_(pa.list_(FLOAT64, 2))
NOVEL = pa.list_(pa.struct({"type": TEXT, "words": TEXTS}))
SALIENCY = pa.list_(pa.struct({"clip": INT32, "scores": pa.list_(INT8)}))
TOKEN = {"text": TEXT, "space_after": BOOL, "lemma": TEXT, "pos": TEXT, "tag": TEXT, "dep": TEXT, "head": INT32}
TOKENS = pa.list_(pa.struct({**TOKEN, "primitive": TEXT, "is_subject": BOOL}))
SLOTS = pa.list_(pa.struct({"token": INT32, "primitive": TEXT, "tag": TEXT, "word": TEXT}))
MOMENTS = pa.list_(pa.struct({"start": FLOAT64, "end": FLOAT64, "score": FLOAT64}))
ANY_WIDTH = 0  # of features, whose width is their encoder's: `conform` replaces it
FEATURE = pa.list_(pa.float16(), ANY_WIDTH)
FEATURES = pa.list_(FEATURE)


class Column(NamedTuple):
    """A column of a table. `description` is markdown."""

    type: pa.DataType
    description: str
    nullable: bool = False


class Table(NamedTuple):
    """A table: what one row is, and the columns by name."""

    row: str
    columns: dict[str, Column]


def _table(row: str, /, **columns: Column) -> Table:
    return Table(row, columns)


QID = Column(TEXT, "id of the query")
LEVEL = Column(INT8, "1 (fewest words replaced) to 3")
PROVIDER = Column(TEXT, "the provider that filled the masks")
RUN = Column(TEXT, "name of the training run")
METRIC = Column(TEXT, "name of the figure")

TABLES = {
    "annotations": _table(
        "a query",
        qid=QID,
        vid=Column(TEXT, "id of the query's video"),
        split=Column(
            TEXT,
            "`train`, `val`, `test`, `composition` (Novel-Composition), `word` (Novel-Word), `test_iid` or `test_ood`",
        ),
        query=Column(TEXT, "the sentence, without leading and trailing blanks"),
        duration=Column(FLOAT64, "duration of the video in seconds"),
        windows=Column(WINDOWS, "moments, `[start, end]` in seconds; empty if the split's moments are hidden"),
        novel=Column(NOVEL, "novel pairs of lemmas, by type of composition, or novel words, by part of speech"),
        saliency=Column(SALIENCY, "scores (0 to 4) of three annotators for clips of 2 s; null without them", True),
    ),
    "tags": _table(
        "a query",
        qid=QID,
        tokens=Column(
            TOKENS,
            "tokens: `text`, `space_after`, `lemma`, universal `pos`, fine `tag`, dependency `dep` on `head`, "
            "`primitive` class if the token may be masked, and `is_subject`",
        ),
    ),
    "dictionary": _table(
        "a word of one primitive class and one fine tag, counted over the training split",
        primitive=Column(TEXT, "`verb`, `noun`, `adjective`, `preposition` or `adverb`"),
        tag=Column(TEXT, "fine part-of-speech tag"),
        word=Column(TEXT, "the word as the queries write it"),
        lemma=Column(TEXT, "the word's lemma"),
        count=Column(INT64, "number of occurrences"),
        is_subject=Column(BOOL, "whether the word may fill a subject's slot: it mostly is a verb's subject"),
    ),
    "masks": _table(
        "a query at a level",
        qid=QID,
        level=Column(INT8, "1 (fewest words masked) to 3"),
        ratio=Column(FLOAT64, "share of the query's primitives that is masked"),
        masked_query=Column(TEXT, "the query with `<mask>` in place of each masked word"),
        slots=Column(SLOTS, "masked words: index `token`, `primitive` class, fine `tag`, and the `word`"),
    ),
    "fills": _table(
        "a query at a level from one provider",
        qid=QID,
        level=LEVEL,
        provider=PROVIDER,
        model=Column(TEXT, "the model that answered, or the statistics that words were drawn from"),
        prompt=Column(TEXT, "file and digest of the prompt; null if no model was asked", True),
        words=Column(TEXTS, "one word for each slot"),
        negative=Column(TEXT, "the filled sentence; null if there is none", True),
        status=Column(TEXT, "`filled` or `failed`"),
        problem=Column(TEXT, "the problem with the answer, or the reason why another provider was used", True),
        attempts=Column(INT32, "number of requests to the provider"),
        prompt_tokens=Column(INT64, "tokens sent"),
        completion_tokens=Column(INT64, "tokens received"),
        cost_usd=Column(FLOAT64, "cost in US dollars"),
        cached=Column(BOOL, "whether the answer came from the cache"),
    ),
    "embeddings": _table(
        "a distinct text",
        text=Column(TEXT, "the text"),
        encoder=Column(TEXT, "the sentence encoder"),
        embedding=Column(pa.list_(FLOAT32), "the embedding, of length 1"),
    ),
    "negatives": _table(
        "a query at a level: the negative that was chosen",
        qid=QID,
        level=LEVEL,
        query=Column(TEXT, "the query that the sentence negates"),
        negative=Column(TEXT, "the sentence"),
        words=Column(TEXTS, "the replacing words; empty for a whole sentence with another number of words"),
        provider=Column(TEXT, "the provider; `nearest` (another query), `imported` (a file) or `reviewer` (edited)"),
        model=Column(TEXT, "the model that answered, the statistics of the words, the file, or the reviewer"),
        similarity=Column(FLOAT32, "cosine similarity of the sentence embeddings of negative and query"),
        plausibility=Column(FLOAT32, "how natural the negative reads; null if that was not measured", True),
        checks=Column(TEXTS, "names of the checks that the negative passed"),
    ),
    "text_features": _table(
        "a distinct text",
        text=Column(TEXT, "a query or a negative"),
        encoder=Column(TEXT, "the text encoder"),
        tokens=Column(FEATURES, "token states, start and end tokens included, without padding"),
        pooled=Column(FEATURE, "state of the whole text"),
    ),
    "video_features": _table(
        "a video",
        vid=Column(TEXT, "id of the video"),
        encoder=Column(TEXT, "the vision encoder, or the names of the imported sources"),
        clip_length=Column(FLOAT64, "seconds of a clip"),
        duration=Column(FLOAT64, "duration of the video in seconds"),
        features=Column(FEATURES, "one vector for each clip"),
    ),
    "patch_features": _table(
        "a video",
        vid=Column(TEXT, "id of the video"),
        encoder=Column(TEXT, "the vision encoder"),
        seconds=Column(pa.list_(FLOAT32), "time of each frame"),
        grid=Column(pa.list_(INT32, 2), "rows and columns of patches"),
        scale=Column(pa.list_(FLOAT32), "one factor for each frame: `patches` times it are the hidden states"),
        patches=Column(pa.large_binary(), "int8 values of shape [frames, rows, columns, channels]"),
        frames=Column(FEATURES, "one vector for each frame, in the space that it shares with texts"),
    ),
    "rejected": _table(
        "a rejected row of any stage",
        qid=Column(TEXT, "id of the query, the video or other item that was rejected"),
        stage=Column(TEXT, "the stage that rejected it"),
        reason=Column(TEXT, "the reason"),
        value=Column(TEXT, "the value that was rejected"),
    ),
    "reviews": _table(
        "a reviewer's verdict on a negative",
        qid=QID,
        level=LEVEL,
        query=Column(TEXT, "the query that the sentence negates"),
        negative=Column(TEXT, "the sentence"),
        verdict=Column(TEXT, "`accept`, `reject` or `edit`"),
        edited=Column(TEXT, "the sentence that takes its place; null unless the verdict is `edit`", True),
        reviewer=Column(TEXT, "name of the reviewer"),
        time=Column(TEXT, "when the verdict was given, ISO 8601 in UTC"),
        source=Column(TEXT, "`fills`, `nearest` or `imported`: where the negative is from"),
        words=Column(TEXTS, "the negative's replacing words"),
        provider=Column(TEXT, "the negative's provider"),
        model=Column(TEXT, "the negative's model"),
    ),
    "in_video_negatives": _table(
        "a query and another query of the same video",
        qid=QID,
        negative_qid=Column(TEXT, "id of the other query, which is a negative of the first one"),
        iou=Column(FLOAT64, "largest temporal IoU of their windows"),
        similarity=Column(FLOAT32, "cosine similarity of their sentence embeddings"),
    ),
    "visual_dynamic_queries": _table(
        "a query",
        qid=QID,
        static=Column(TEXT, "the query's noun chunks"),
        dynamic=Column(TEXT, "the rest of the query"),
        split=Column(BOOL, "whether the query has both; if not, both columns are the query itself"),
    ),
    "metrics": _table(
        "a figure of a step or epoch of a training run",
        run=RUN,
        epoch=Column(INT32, "epoch of the training"),
        step=Column(INT64, "step of the training"),
        split=Column(TEXT, "`train` or `validation`"),
        name=Column(TEXT, "name of the loss or figure"),
        value=Column(FLOAT64, "value of the loss or figure"),
    ),
    "predictions": _table(
        "a query that a training run predicted moments for",
        run=RUN,
        split=Column(TEXT, "split of the query"),
        qid=QID,
        windows=Column(MOMENTS, "`start` and `end` in seconds and `score`, best first"),
        saliency=Column(pa.list_(FLOAT32), "saliency score of each clip of the video"),
        existence=Column(
            FLOAT32,
            "how likely the moment is in the video at all, 0 to 1; null if the run is not calibrated, and in "
            "predictions of versions before there was such a number",
            True,
        ),
    ),
    "calibration": _table(
        "a number of a training run",
        run=RUN,
        name=Column(
            TEXT,
            "a number of the model's that says how likely a moment exists, whose value is its weight in the log-odds; "
            "their `bias`; the `threshold` of existence below which a moment is not in the video; `AUROC` on "
            "validation; and the sentences of each kind that all this was fitted on",
        ),
        value=Column(FLOAT64, "value of the number"),
    ),
    "existence": _table(
        "a sentence that is false of a query's video, and that a training run was asked",
        run=RUN,
        split=Column(TEXT, "split of the query"),
        qid=QID,
        kind=Column(TEXT, "`another video`, `near real`, `level 1 by corpus` …, or the kind of an imported sentence"),
        sentence=Column(TEXT, "the sentence"),
        other_qid=Column(TEXT, "id of the query of another video that a near real sentence is; else null", True),
        existence=Column(FLOAT32, "its existence in the query's video; null if the run is not calibrated", True),
        exchanged=Column(FLOAT32, "existence of the query in the video of a near real sentence; else null", True),
        windows=Column(MOMENTS, "`start` and `end` in seconds and `score`, best first"),
    ),
    "evaluation": _table(
        "a figure of a training run",
        run=RUN,
        split=Column(TEXT, "the split that was evaluated"),
        subset=Column(
            TEXT,
            "`all`, a type of novel composition, or `held out` for the figures of the model's own family. Baselines"
            " over all queries of the split are `constant window` (the best one of the training split), `constant "
            "window by verb`, and `another query` (the run's predictions for a query of another video). Kinds of false "
            "sentences (`existence`) are subsets, too",
        ),
        metric=METRIC,
        value=Column(FLOAT64, "value in percent, except `queries` and `sentences` (counts) and probabilities"),
    ),
    "ablation": _table(
        "a figure of a row of a grid, trained with one seed",
        row=Column(TEXT, "label of the grid's row; `constant window` for the baseline of the training split"),
        seed=Column(INT64, "seed of the training"),
        run=RUN,
        split=Column(TEXT, "the split that was evaluated; empty for a figure of the whole run"),
        metric=METRIC,
        value=Column(FLOAT64, "value of the figure"),
    ),
    "measures": _table(
        "a negative, chosen or drawn, and what its text shows",
        qid=QID,
        level=LEVEL,
        provider=PROVIDER,
        vid=Column(TEXT, "id of the query's video"),
        known_query=Column(BOOL, "whether the data set has the query in that video"),
        template_kept=Column(BOOL, "whether only masked words changed, one word each; null without masks", True),
        words=Column(TEXTS, "the words that fill the masks"),
        slots=Column(INT16, "number of these words that could be evaluated", True),
        same_slot_class=Column(INT16, "of these, words that the training split has with the slot's tag", True),
        equal_to_original=Column(INT16, "of these, words that equal the masked word", True),
        may_be_true=Column(BOOL, "whether all of them are entailed, so that it may be true of the moment", True),
        length=Column(INT16, "number of words"),
        closed_vocabulary=Column(BOOL, "whether the training split has every word"),
        copy=Column(BOOL, "whether the negative equals its own query"),
        false_negative=Column(BOOL, "whether the negative equals another query of the same video"),
        false_negative_lemmatised=Column(BOOL, "whether its lemmas equal those of a query of the same video"),
        test_splits=Column(TEXTS, "the splits except `train` that have the negative as a query"),
        trained=Column(BOOL, "whether `train` has the negative as a query"),
        held_out_composition=Column(BOOL, "whether it has both words of a composition novel in a test split"),
        held_out_word=Column(BOOL, "whether it has a word that is novel in a test split"),
        similarity=Column(FLOAT64, "cosine similarity to the query, if it is known", True),
    ),
    "quality": _table(
        "a figure about negatives",
        level=Column(INT8, "1 to 3; 0 for a figure of no single level"),
        provider=PROVIDER,
        metric=METRIC,
        value=Column(FLOAT64, "value of the figure"),
    ),
    "summary": Table(
        "a section of the report of build-negatives",
        {"section": Column(TEXT, "title of the section"), "text": Column(TEXT, "text of the section, in markdown")},
    ),
}

TABLES["judging_negatives"] = Table(
    "a sentence that is false of a query's video, for judging alone",
    TABLES["negatives"].columns
    | {
        "level": Column(INT8, "1 (fewest words replaced) to 3; 0 for a sentence of a file"),
        "provider": Column(TEXT, "the provider; for a sentence of a file its kind, such as `another domain`"),
        "similarity": Column(FLOAT32, "cosine similarity of the sentence embeddings, if it is known", True),
    },
)
TABLES["judging_texts"] = Table("a distinct false sentence for judging", TABLES["text_features"].columns)

SCHEMAS: dict[str, pa.Schema] = {
    stage: pa.schema([pa.field(name, it.type, it.nullable) for name, it in table.columns.items()])
    for stage, table in TABLES.items()
}

ADDED = {"predictions": {"existence"}}  # stage → columns that artifacts of an older version lack: null there
RENAMED = {  # stage → names of columns in artifacts that an older version made, and their names today
    "negatives": {"positive": "query", "query": "negative"},
    "fills": {"query": "negative"},
}


def renamed_columns(stage: str, names: Sequence[str]) -> Mapping[str, str]:
    """Return the old and the new names of the columns of a table that an older version wrote, else nothing."""
    renamed = RENAMED.get(stage, {})
    is_older = renamed.keys() <= set(names) and "negative" not in names
    return renamed if is_older else {}


def is_features(type_: pa.DataType) -> bool:
    """Return whether a column holds features: vectors of half floats, one or a list of them in a row."""
    value = type_.value_type if pa.types.is_list(type_) else type_
    return bool(pa.types.is_fixed_size_list(value) and value.value_type == pa.float16())


def conform(table: pa.Table, stage: str) -> pa.Table:
    """Return the table with its stage's exact schema; raise `ArtifactError` naming a column that does not fit."""
    schema = SCHEMAS[stage]
    missing = [name for name in schema.names if name not in table.column_names]
    unknown = [name for name in table.column_names if name not in schema.names]
    if missing or unknown:
        raise ArtifactError(f"{stage}: missing columns {missing}, unknown columns {unknown}")
    fields, columns = [], []
    for field in schema:
        column = table[field.name]
        if not field.nullable and column.null_count:
            raise ArtifactError(f"{stage}: column {field.name} holds {column.null_count} nulls")
        type_ = _with_width(field.type, column.type)
        try:
            columns.append(column.cast(type_))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
            raise ArtifactError(f"{stage}: column {field.name} is no {type_} ({error})") from error
        fields.append(field.with_type(type_))
    return pa.table(columns, schema=pa.schema(fields))


def _with_width(wanted: pa.DataType, given: pa.DataType) -> pa.DataType:
    """Return the wanted type; features get the width of the given type."""
    if wanted == FEATURE and pa.types.is_fixed_size_list(given):
        return pa.list_(pa.float16(), given.list_size)
    if wanted == FEATURES and pa.types.is_list(given):
        return pa.list_(_with_width(FEATURE, given.value_type))
    return wanted


def table_of(stage: str, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Return a stage's table of rows that are dictionaries."""
    try:
        return conform(pa.Table.from_pylist(list(rows), schema=SCHEMAS[stage]), stage)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ArtifactError(f"{stage}: {error}") from error


def for_display(table: pa.Table) -> pa.Table:
    """Return the table with features as their shape, such as "62 × 512", and bytes as their number."""
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        column = table[field.name]
        if pa.types.is_large_binary(field.type):
            texts = [f"{size} bytes" for size in pc.binary_length(column).to_pylist()]
        elif is_features(field.type) and pa.types.is_list(field.type):
            texts = [f"{rows} × {field.type.value_type.list_size}" for rows in pc.list_value_length(column).to_pylist()]
        elif is_features(field.type):
            texts = [str(field.type.list_size)] * len(column)
        else:
            continue
        table = table.set_column(index, field.name, pa.array(texts, TEXT))
    return table
