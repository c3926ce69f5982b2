// The data, the search and its filters, and the queries that match.

const LEVELS = [1, 2, 3];
const asked = {words: '', split: '', level: '', provider: '', novel: '', which: '', order: ''};
let data, queries, negatives, refused, runs;
let searched; // lower-case distinct texts of the queries and of each table of negatives
let found = new Uint32Array(0); // indices of the matching queries, sorted

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

function take(unpackedData) {
  data = unpackedData;
  ({queries, negatives, refused, runs} = data);
  for (const table of [...negatives, refused, ...runs, ...runs.map((run) => run.asked)]) {
    table.first = new Uint32Array(table.count.length + 1);
    table.count.forEach((rows, query) => { table.first[query + 1] = table.first[query] + rows; });
  }
  const lowered = (column) => column.values.map((value) => value.toLowerCase());
  searched = [queries.text, ...negatives.map((table) => table.text)].map(lowered);
}

const of = (column, at) => column.values[column.codes[at]];
const rowsOf = (table, query) => Array.from({length: table.count[query]}, (_, at) => table.first[query] + at);
const predictionOf = (run, query) => (run.count[query] ? run.first[query] : null);
const reasonOf = (at) => `${of(refused.stage, at)}: ${of(refused.reason, at)}`;
const asksLevel = (level) => !asked.level || level === Number(asked.level);

// The negatives and the rejected rows of a query that match the filters.
const negativesOf = (table, query) => rowsOf(table, query).filter((at) =>
  asksLevel(table.level[at]) && (!asked.provider || of(table.provider, at) === asked.provider));
const refusalsOf = (query) => rowsOf(refused, query).filter((at) => !refused.level[at] || asksLevel(refused.level[at]));

const WHICH = { // by name: the label in the menu, and whether a query matches
  negated: ['with negatives', (query) => negatives.some((table) => table.count[query])],
  whole: ['with all levels', (query) => levelsOf(query) >= LEVELS.length],
  partly: ['lacking a level', (query) => levelsOf(query) < LEVELS.length && (levelsOf(query) || refused.count[query])],
  refused: ['refused at a stage', (query) => refused.count[query]],
  predicted: ['with predictions', (query) => runs.some((run) => run.count[query])],
};

function levelsOf(query) {
  const [table] = negatives;
  return table ? new Set(rowsOf(table, query).map((at) => table.level[at])).size : 0;
}

function search() {
  const words = asked.words.trim().toLowerCase();
  const hits = words && searched.map((texts) => texts.map((text) => text.includes(words)));
  const has = (column, query) => of(column, query).toLowerCase().includes(words);
  const isAsked = (query) =>
    (!asked.split || of(queries.split, query) === asked.split) &&
    (!asked.novel || of(queries.novel, query).some(([type]) => type === asked.novel)) &&
    (!(asked.level || asked.provider) || negatives.some((table) => negativesOf(table, query).length)) &&
    (!asked.which || WHICH[asked.which][1](query));
  const isFound = (query) => hits[0][queries.text.codes[query]] || queries.qid[query].toLowerCase().includes(words) ||
    has(queries.vid, query) ||
    negatives.some((table, at) => negativesOf(table, query).some((row) => hits[at + 1][table.text.codes[row]]));
  const kept = [];
  queries.qid.forEach((_, query) => { if (isAsked(query) && (!words || isFound(query))) kept.push(query); });
  found = sorted(kept);
}

// Sorts by the selected key in descending order; queries without the key come last.
function sorted(kept) {
  const key = keyOf(asked.order);
  if (!key) return Uint32Array.from(kept);
  const keyed = kept.map((query) => [query, key(query) ?? -Infinity]);
  keyed.sort(([, a], [, b]) => (a === b ? 0 : b - a));
  return Uint32Array.from(keyed, ([query]) => query);
}

function keyOf(order) {
  const [name, which] = order.split(' ');
  const turned = (key) => (query) => { const value = key(query); return value === null ? null : -value; };
  const overlap = (run) => (query) => { const at = predictionOf(run, query); return at === null ? null : run.iou[at]; };
  const gain = (query) => {
    const [first, second] = runs.slice(0, 2).map((run) => overlap(run)(query));
    return first === null || second === null ? null : second - first;
  };
  const cosine = (choose) => (query) => {
    const all = negatives.flatMap((table) => negativesOf(table, query).map((at) => table.cosine[at]));
    const told = all.filter((value) => value !== null);
    return told.length ? choose(...told) : null;
  };
  switch (name) {
    case 'near': return cosine(Math.max);
    case 'far': return turned(cosine(Math.min));
    case 'best': return overlap(runs[which]);
    case 'worst': return turned(overlap(runs[which]));
    case 'gain': return gain;
    case 'loss': return turned(gain);
    default: return null;
  }
}
