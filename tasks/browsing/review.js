// A reviewer's verdicts on negatives, each by a key or a button; stored in the browser and saved as a file.

const VERDICTS = {accept: ['a', 'Accept', '✓'], reject: ['r', 'Reject', '✗'], edit: ['e', 'Edit', '✎']};
const NOT_KEPT = 'This browser keeps nothing of this page (a private window?): save the review before you close it.';
const verdicts = new Map(); // by table of negatives: verdicts by query id and level
let cards = []; // table, row and element of each negative of the selected query that can be reviewed
let focused = 0; // the card in focus

const isReviewed = (table) => table.key.startsWith('negatives/');
const placeOf = (table, at, query) => JSON.stringify([queries.qid[query], table.level[at]]);
const verdictOf = (table, at, query) => verdicts.get(table)?.[placeOf(table, at, query)];
const storageName = (table) => `penumbra review ${data.dataset}/${table.key}`;

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, value);
    byId('kept').textContent = 'kept in this browser';
  } catch {
    byId('kept').textContent = NOT_KEPT;
  }
}

function storedVerdicts(table) {
  try {
    return JSON.parse(stored(storageName(table))) || {};
  } catch {
    return {};
  }
}

function countVerdicts() {
  const all = negatives.filter(isReviewed).flatMap((table) => Object.values(verdicts.get(table)));
  const number = (name) => count(all.filter((it) => it.verdict === name).length);
  byId('verdicts').textContent = `${number('accept')} accepted, ${number('reject')} rejected, ${number('edit')} edited`;
  byId('save').disabled = !all.length;
}

function prepareReview() {
  const tables = negatives.filter(isReviewed);
  byId('review').hidden = !tables.some((table) => table.level.length);
  for (const table of tables) verdicts.set(table, storedVerdicts(table));
  byId('reviewer').value = stored('penumbra reviewer') || '';
  byId('reviewer').addEventListener('input', () => store('penumbra reviewer', byId('reviewer').value));
  byId('save').addEventListener('click', saveReview);
  store('penumbra reviewer', byId('reviewer').value); // shows whether the browser can store anything
  countVerdicts();
}

// Sets the verdict of the card in focus, or removes it if it is the same.
function judge(verdict, edited) {
  const {table, at} = cards[focused], query = found[chosen], place = placeOf(table, at, query);
  const kept = {...verdicts.get(table), ...storedVerdicts(table)}; // another window may have added some
  const isTakenBack = kept[place]?.verdict === verdict && verdict !== 'edit';
  if (isTakenBack) delete kept[place];
  else kept[place] = {verdict, ...(edited && {edited}), time: new Date().toISOString()};
  verdicts.set(table, kept);
  store(storageName(table), JSON.stringify(kept));
  countVerdicts();
  markCards();
  redraw(chosen);
  if (!isTakenBack) focusNext(1);
}

function focusCard(index) {
  focused = index;
  markCards();
  cards[focused]?.element.scrollIntoView({block: 'nearest'});
}

// Moves to the next or previous negative, of this query or of the nearest query with negatives.
function focusNext(step) {
  if (cards[focused + step]) {
    focusCard(focused + step);
    return;
  }
  for (let index = chosen + step; index >= 0 && index < found.length; index += step) {
    if (!negatives.some((table) => isReviewed(table) && table.count[found[index]])) continue;
    choose(index);
    focusCard(step > 0 ? 0 : cards.length - 1);
    return;
  }
}

function startEdit() {
  const {table, at, element} = cards[focused], query = found[chosen];
  if (element.querySelector('.rewrite')) return;
  const field = make('input', 'rewrite'), save = make('button', '', 'Save');
  field.value = verdictOf(table, at, query)?.edited || of(table.text, at);
  field.ariaLabel = 'the sentence that takes its place';
  field.dir = 'auto';
  save.type = 'button';
  save.addEventListener('click', () => endEdit(field, true));
  element.querySelector('.judge').append(make('div', 'editing', field, save));
  field.focus();
}

function endEdit(field, isSaved) {
  const {table, at} = cards[focused], edited = field.value.trim();
  field.parentElement.remove();
  byId('detail').focus();
  if (isSaved && edited && edited !== of(table.text, at)) judge('edit', edited);
}

function reviewed(key, target) {
  if (target.matches('.rewrite')) {
    if (key === 'Enter' || key === 'Escape') endEdit(target, key === 'Enter');
    return key === 'Enter' || key === 'Escape';
  }
  if (target.matches('input, select') || !cards.length) return false;
  const name = Object.keys(VERDICTS).find((it) => VERDICTS[it][0] === key);
  if (name === 'edit') startEdit();
  else if (name) judge(name);
  else if (key === 'ArrowRight') focusNext(1);
  else if (key === 'ArrowLeft') focusNext(-1);
  else return false;
  return true;
}

// The buttons of a negative's card.
function judging(table, at, element) {
  if (!isReviewed(table)) return null;
  const index = cards.push({table, at, element}) - 1;
  const buttons = Object.entries(VERDICTS).map(([name, [key, text]]) => {
    const button = make('button', name, text, ' ', make('kbd', '', key));
    button.type = 'button';
    button.addEventListener('click', () => {
      focusCard(index);
      if (name === 'edit') startEdit();
      else judge(name);
    });
    return button;
  });
  element.addEventListener('click', ({target}) => { if (!target.closest('button, input')) focusCard(index); });
  const edited = make('div', 'edited');
  edited.dir = 'auto';
  return make('div', 'judge', edited, make('div', 'buttons', ...buttons));
}

function markCards() {
  cards.forEach(({table, at, element}, index) => {
    const given = verdictOf(table, at, found[chosen]);
    element.classList.toggle('focused', index === focused);
    for (const name of Object.keys(VERDICTS)) {
      element.classList.toggle(name, given?.verdict === name);
      element.querySelector(`.buttons .${name}`).ariaPressed = String(given?.verdict === name);
    }
    element.querySelector('.edited').textContent = given?.edited ? cut(given.edited, LONGEST.full) : '';
  });
}

// The mark of a negative in the list.
function verdictMark(table, at, query) {
  const given = isReviewed(table) && verdictOf(table, at, query);
  return given ? make('span', `verdict ${given.verdict}`, `${VERDICTS[given.verdict][2]} `) : null;
}

function saveReview() {
  const reviewer = byId('reviewer').value.trim();
  if (!reviewer) {
    byId('kept').textContent = 'Type your name first: the file names its reviewer.';
    byId('reviewer').focus();
    return;
  }
  for (const table of negatives.filter((it) => isReviewed(it) && Object.keys(verdicts.get(it)).length)) {
    const [stage, key] = table.key.split('/');
    const rows = queries.qid.flatMap((qid, query) => rowsOf(table, query).flatMap((at) => {
      const given = verdictOf(table, at, query), level = table.level[at];
      return given ? [{qid, level, query: of(queries.text, query), negative: of(table.text, at), ...given}] : [];
    }));
    const header = {dataset: data.dataset, stage, key, reviewer, saved: new Date().toISOString()};
    const lines = [header, ...rows].map((row) => `${JSON.stringify(row)}\n`);
    const link = make('a', '');
    link.href = URL.createObjectURL(new Blob(lines, {type: 'application/x-ndjson'}));
    link.download = `${data.dataset}-${key.slice(0, 8)}-${reviewer.replace(/[^A-Za-z0-9]+/g, '-')}.review.jsonl`;
    link.click();
    byId('kept').textContent = `saved: penumbra review ${data.dataset} --from ${link.download}`;
  }
}
