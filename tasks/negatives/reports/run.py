"""The report of a `build-negatives` run: what a person wants to know without the code, in the Prefect UI."""

from collections import Counter
from collections.abc import Iterable

from penumbra.artifacts.manifest import Artifact, Manifest
from penumbra.artifacts.markdown import code, markdown_table
from penumbra.artifacts.prefect_ui import publish_report
from penumbra.artifacts.store import Store
from penumbra.tasks.negatives.references import Negatives
from penumbra.tasks.stage import logger, side_effect_task

FLOW = "build-negatives"


def write_report(store: Store, made: Negatives, summary: Artifact) -> str:
    """The report's markdown: the run's outcome first, then what the summary counts, stages and refusals."""
    manifests = [store.manifest(artifact) for artifact in made.stages]
    lead, *counted = store.table(summary).to_pylist()
    reasons = store.manifest(made.rejected)
    refused = Counter[str]()
    for manifest in manifests:
        refused.update(manifest.rejected)
    whole = "" if made.masks else " that are whole sentences"
    return "\n\n".join(
        [
            f"# {made.annotations.dataset}: hard negatives{whole}",
            f"{lead['text']} They lie in `{made.negatives.path}`.",
            *(f"## {it['section']}\n\n{it['text']}" for it in counted),
            "## Stages",
            stage_table(manifests),
            f"## Rejected: {reasons.rows:,}",
            markdown_table(("reason", "count"), refused.most_common()) if refused else "Nothing was rejected.",
        ]
    )


def stage_table(manifests: Iterable[Manifest]) -> str:
    """A line for each stage: what went in and came out, how long it took, and its key."""
    rows = [
        (m.stage, m.unit, f"{m.taken:,}", f"{m.kept:,}", f"{m.taken - m.kept:,}", f"{m.seconds:.1f}", code(m.key))
        for m in manifests
    ]
    return markdown_table(("stage", "counted in", "in", "out", "rejected", "seconds", "key"), rows)


def outcome(store: Store, made: Negatives) -> str:
    """How a run ended, in one line: negatives, what was taken from corpus for want of others, what was left out."""
    read, negatives = store.manifest(made.annotations), store.manifest(made.negatives)
    if made.masks is None:
        return whole_outcome(store, made)
    masked = store.manifest(made.masks)
    substitutes = [
        store.manifest(artifact) for artifact in made.fills if "substitutes" in store.manifest(artifact).parameters
    ]
    taken = sum(manifest.kept for manifest in substitutes)
    parts = [f"{negatives.rows:,} negatives for {masked.kept:,} queries"]
    parts += [f"{taken:,} levels that no provider filled were offered corpus's words"] if taken else []
    refused, unmasked = read.taken - read.kept, masked.taken - masked.kept
    parts += [f"{refused:,} of {read.taken:,} rows of the files were rejected"] if refused else []
    parts += [f"{unmasked:,} queries could not be masked"] if unmasked else []
    missing = masked.rows - negatives.rows
    parts += [f"{missing:,} levels have none"] if missing else []
    return "; ".join(parts if refused or unmasked or missing else [*parts, "none is missing"])


def whole_outcome(store: Store, made: Negatives) -> str:
    """The same of whole sentences, which may be of few queries, and the commonest reason why any were refused."""
    negatives = store.manifest(made.negatives)
    queries = {qid for part in store.parts(made.negatives, ["qid"]) for qid in part["qid"].to_pylist()}
    training = sum(part["split"].to_pylist().count("train") for part in store.parts(made.annotations, ["split"]))
    told = f"{negatives.rows:,} negatives for {len(queries):,} of {training:,} training queries"
    told += f"; {negatives.taken - negatives.kept:,} rejected"
    for reason, times in Counter(negatives.rejected).most_common(1):
        told += f", {times:,} of them: {reason} (the table `rejected` has each)"
    return told


@side_effect_task("report")
def report_negatives(made: Negatives, summary: Artifact) -> str:
    """Publish the report of a run; returns its outcome in one line."""
    store = Store()
    publish_report(made.annotations.dataset, FLOW, write_report(store, made, summary))
    line = outcome(store, made)
    logger().info(line)
    return line
