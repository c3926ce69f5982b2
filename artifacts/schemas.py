"""The single definition of every table: what a stage must write, and what a reader may rely on."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from penumbra.artifacts.errors import PenumbraError


class SchemaError(PenumbraError):
    """A table does not have its stage's columns or types."""


def _table(*columns: tuple[str, pa.DataType], optional: tuple[str, ...] = ()) -> pa.Schema:
    return pa.schema([pa.field(name, type_, nullable=name in optional) for name, type_ in columns])


WINDOWS = pa.list_(pa.list_(pa.float64(), 2))
NOVEL = pa.list_(pa.struct([("type", pa.string()), ("words", pa.list_(pa.string()))]))
SALIENCY = pa.list_(pa.struct([("clip", pa.int32()), ("scores", pa.list_(pa.int8()))]))
TOKENS = pa.list_(
    pa.struct(
        [
            ("text", pa.string()),
            ("space_after", pa.bool_()),
            ("lemma", pa.string()),
            ("pos", pa.string()),
            ("tag", pa.string()),
            ("dep", pa.string()),
            ("head", pa.int32()),
            ("primitive", pa.string()),
            ("is_subject", pa.bool_()),
        ]
    )
)
SLOTS = pa.list_(
    pa.struct([("token", pa.int32()), ("primitive", pa.string()), ("tag", pa.string()), ("word", pa.string())])
)
STRINGS = pa.list_(pa.string())
ANY_WIDTH = 0  # a fixed-size list of features is as wide as its encoder; `fitted` puts the width in
FEATURE = pa.list_(pa.float16(), ANY_WIDTH)
FEATURES = pa.list_(FEATURE)

SCHEMAS: dict[str, pa.Schema] = {
    "annotations": _table(
        ("qid", pa.string()),
        ("vid", pa.string()),
        ("split", pa.string()),
        ("query", pa.string()),
        ("duration", pa.float64()),
        ("windows", WINDOWS),
        ("novel", NOVEL),
        ("saliency", SALIENCY),
        optional=("saliency",),
    ),
    "tags": _table(("qid", pa.string()), ("tokens", TOKENS)),
    "dictionary": _table(
        ("primitive", pa.string()),
        ("tag", pa.string()),
        ("word", pa.string()),
        ("lemma", pa.string()),
        ("count", pa.int64()),
    ),
    "masks": _table(
        ("qid", pa.string()),
        ("level", pa.int8()),
        ("ratio", pa.float64()),
        ("masked_query", pa.string()),
        ("slots", SLOTS),
    ),
    "fills": _table(
        ("qid", pa.string()),
        ("level", pa.int8()),
        ("provider", pa.string()),
        ("model", pa.string()),
        ("prompt", pa.string()),
        ("words", STRINGS),
        ("query", pa.string()),
        ("status", pa.string()),
        ("problem", pa.string()),
        ("attempts", pa.int32()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("cost_usd", pa.float64()),
        ("cached", pa.bool_()),
        optional=("prompt", "query", "problem"),
    ),
    "embeddings": _table(("text", pa.string()), ("encoder", pa.string()), ("embedding", pa.list_(pa.float32()))),
    "negatives": _table(
        ("qid", pa.string()),
        ("level", pa.int8()),
        ("positive", pa.string()),  # the query that it negates
        ("query", pa.string()),
        ("words", STRINGS),
        ("provider", pa.string()),
        ("model", pa.string()),
        ("similarity", pa.float32()),
        ("plausibility", pa.float32()),
        ("checks", STRINGS),
        optional=("plausibility",),
    ),
    "text_features": _table(("text", pa.string()), ("encoder", pa.string()), ("tokens", FEATURES), ("pooled", FEATURE)),
    "video_features": _table(
        ("vid", pa.string()),
        ("encoder", pa.string()),
        ("clip_length", pa.float64()),
        ("duration", pa.float64()),
        ("features", FEATURES),
    ),
    # patches: int8 of every frame, row, column and channel; times their frame's scale they are the states
    "patch_features": _table(
        ("vid", pa.string()),
        ("encoder", pa.string()),
        ("seconds", pa.list_(pa.float32())),
        ("grid", pa.list_(pa.int32(), 2)),
        ("scale", pa.list_(pa.float32())),
        ("patches", pa.large_binary()),
    ),
    "rejected": _table(("qid", pa.string()), ("stage", pa.string()), ("reason", pa.string()), ("value", pa.string())),
    "in_video_negatives": _table(
        ("qid", pa.string()), ("negative_qid", pa.string()), ("iou", pa.float64()), ("similarity", pa.float32())
    ),
    # split: whether there are both; otherwise they are the query itself
    "visual_dynamic_queries": _table(
        ("qid", pa.string()), ("static", pa.string()), ("dynamic", pa.string()), ("split", pa.bool_())
    ),
    "metrics": _table(
        ("run", pa.string()),
        ("epoch", pa.int32()),
        ("step", pa.int64()),
        ("split", pa.string()),
        ("name", pa.string()),
        ("value", pa.float64()),
    ),
    "predictions": _table(
        ("run", pa.string()),
        ("split", pa.string()),
        ("qid", pa.string()),
        ("windows", pa.list_(pa.struct([(name, pa.float64()) for name in ("start", "end", "score")]))),
        ("saliency", pa.list_(pa.float32())),
    ),
    "evaluation": _table(
        ("run", pa.string()),
        ("split", pa.string()),
        ("subset", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ),
    # split "": a figure of the whole run
    "ablation": _table(
        ("row", pa.string()),
        ("seed", pa.int64()),
        ("run", pa.string()),
        ("split", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
    ),
    # level 0: a figure of no single level
    "measures": _table(
        ("qid", pa.string()),
        ("level", pa.int8()),
        ("provider", pa.string()),
        ("vid", pa.string()),
        ("known_query", pa.bool_()),
        ("template_kept", pa.bool_()),
        ("words", STRINGS),
        ("slots", pa.int16()),
        ("same_slot_class", pa.int16()),
        ("equal_to_original", pa.int16()),
        ("length", pa.int16()),
        ("closed_vocabulary", pa.bool_()),
        ("copy", pa.bool_()),
        ("false_negative", pa.bool_()),
        ("false_negative_lemmatised", pa.bool_()),
        ("test_splits", STRINGS),
        ("trained", pa.bool_()),
        ("held_out_composition", pa.bool_()),
        ("held_out_word", pa.bool_()),
        ("similarity", pa.float64()),
        optional=("template_kept", "slots", "same_slot_class", "equal_to_original", "similarity"),
    ),
    "quality": _table(
        ("level", pa.int8()), ("provider", pa.string()), ("metric", pa.string()), ("value", pa.float64())
    ),
    "summary": _table(("section", pa.string()), ("text", pa.string())),
}


MADE_BY = {  # the flow that makes a stage, where it is not build-negatives
    "text_features": "extract-features",
    "video_features": "extract-features",
    "patch_features": "extract-features",
    "metrics": "train-grounding",
    "visual_dynamic_queries": "train-grounding",
    "predictions": "evaluate-grounding",
    "evaluation": "evaluate-grounding",
    "ablation": "ablation",
}


def making(stage: str, dataset: str) -> str:
    """The command that makes a stage of a data set."""
    return f"penumbra run {MADE_BY.get(stage, 'build-negatives')} {dataset}"


def fitted(stage: str, schema: pa.Schema) -> pa.Schema:
    """A stage's schema; where the stage leaves the width of features open, with that of `schema`."""
    fields = []
    for field in SCHEMAS[stage]:
        index = schema.get_field_index(field.name)
        fields.append(field if index < 0 else field.with_type(_with_width(field.type, schema.field(index).type)))
    return pa.schema(fields)


def is_features(type_: pa.DataType) -> bool:
    """Whether a column holds features: vectors of halves, one or a list of them in a row."""
    value = type_.value_type if pa.types.is_list(type_) else type_
    return bool(pa.types.is_fixed_size_list(value) and value.value_type == pa.float16())


def lengths(column: pa.ChunkedArray) -> list[int]:
    """How many vectors each row of a column of features has."""
    if pa.types.is_fixed_size_list(column.type):
        return [1] * len(column)
    import pyarrow.compute as pc  # a tenth of a second

    counts: list[int] = pc.list_value_length(column).to_pylist()
    return counts


def _with_width(wanted: pa.DataType, given: pa.DataType) -> pa.DataType:
    if wanted == FEATURE and pa.types.is_fixed_size_list(given):
        return pa.list_(pa.float16(), given.list_size)
    if wanted == FEATURES and pa.types.is_list(given):
        return pa.list_(_with_width(FEATURE, given.value_type))
    return wanted


def conform(table: pa.Table, stage: str) -> pa.Table:
    """Return the table with its stage's exact schema.

    Raises `SchemaError` naming the stage and the column that is missing, foreign, of another type or null.
    """
    schema = fitted(stage, table.schema)
    missing = [name for name in schema.names if name not in table.column_names]
    foreign = [name for name in table.column_names if name not in schema.names]
    if missing or foreign:
        raise SchemaError(f"{stage}: missing columns {missing}, unknown columns {foreign}")
    for field in schema:
        if not field.nullable and table[field.name].null_count:
            raise SchemaError(f"{stage}: column {field.name} holds {table[field.name].null_count} nulls")
    columns = [_cast(table[field.name], field, stage) for field in schema]
    return pa.table(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, stage: str) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        raise SchemaError(f"{stage}: column {field.name} is no {field.type} ({error})") from error


def table_of(stage: str, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """Build a stage's table from rows as dictionaries."""
    try:
        return conform(pa.Table.from_pylist(list(rows), schema=SCHEMAS[stage]), stage)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaError(f"{stage}: {error}") from error


def shortened(table: pa.Table) -> pa.Table:
    """The table for people: features as their shape, as in "62 × 512", and bytes as their number."""
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        if pa.types.is_large_binary(field.type):
            sizes = [f"{size} bytes" for size in pc.binary_length(table[field.name]).to_pylist()]
            table = table.set_column(index, field.name, pa.array(sizes, pa.string()))
        if is_features(field.type):
            column = table[field.name]
            if pa.types.is_list(field.type):
                width = field.type.value_type.list_size
                shapes = [f"{rows} × {width}" for rows in pc.list_value_length(column).to_pylist()]
            else:
                shapes = [str(field.type.list_size)] * len(column)
            table = table.set_column(index, field.name, pa.array(shapes, pa.string()))
    return table
