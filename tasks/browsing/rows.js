// The list: only visible rows are drawn, at the sum of the heights of all rows above.

const AHEAD = 6; // rows drawn above and below the visible rows
const LETTER = 7.3; // width of a letter in pixels, rounded up
const drawn = new Map(); // row elements by position among the matching queries
let tops = new Float64Array(1); // where each row begins, in pixels
let chosen = 0, narrow = false, height = {};

// A line's height: on a narrow screen a longer text takes two rows of letters.
const lineHeight = (text) => (narrow && text.length * LETTER > height.room ? height.tall : height.line);

function heightOf(query) {
  const caption = narrow && negatives.length > 1 ? height.line : 0;
  const several = negatives.map((table) => {
    const rows = negativesOf(table, query);
    return rows.length && rows.reduce((sum, at) => sum + lineHeight(of(table.text, at)), caption);
  });
  const negated = narrow ? several.reduce((sum, it) => sum + it, 0) : Math.max(0, ...several);
  const title = narrow ? lineHeight(of(queries.text, query)) : 0;
  const predicted = runs.filter((run) => run.count[query]).length * height.run;
  const told = refusalsOf(query).reduce((sum, at) => sum + lineHeight(reasonOf(at)), 0);
  return height.head + title + predicted + negated + told + 17;
}

function measure() {
  narrow = matchMedia('(max-width: 999px)').matches;
  const list = byId('list'), style = getComputedStyle(document.documentElement);
  const pixels = (name) => parseFloat(style.getPropertyValue(`--${name}`));
  height = {room: list.clientWidth - 100};
  for (const name of ['head', 'line', 'tall', 'run']) height[name] = pixels(name);
  tops = new Float64Array(found.length + 1);
  found.forEach((query, index) => { tops[index + 1] = tops[index] + heightOf(query); });
  byId('rows').style.height = `${tops[found.length]}px`;
  byId('captions').style.paddingRight = `${18 + list.offsetWidth - list.clientWidth}px`;
  byId('queries').inert = narrow && byId('detail').classList.contains('open');
  byId('rows').replaceChildren();
  drawn.clear();
}

function titleOf(query) {
  const text = cut(of(queries.text, query), LONGEST.row), title = make('span', 'query');
  title.dir = 'auto';
  if (!text) {
    title.classList.add('unknown');
    title.append(`${cut(queries.qid[query], LONGEST.row)} is no query of the data set`);
    return title;
  }
  const last = negatives.length ? rowsOf(negatives[0], query).pop() : undefined;
  const other = last === undefined ? text : cut(of(negatives[0].text, last), LONGEST.row);
  return marked(title, text, other, 'span', 'was');
}

function line(style, high, ...cells) {
  const element = make('div', `line ${style}`, ...cells);
  element.style.height = `${high}px`;
  return element;
}

function negativeLine(table, at, query) {
  const text = of(table.text, at), meter = make('i', '');
  meter.style.width = `${Math.max(0, table.cosine[at] || 0) / 10}%`;
  return line('', lineHeight(text),
    levelMark(table.level[at]),
    marked(make('span', 'text', verdictMark(table, at, query)), cut(text, LONGEST.row),
      cut(of(queries.text, query), LONGEST.row), 'mark', ''),
    make('span', 'who', cut(of(table.provider, at), 40)),
    make('span', 'cosine', make('span', 'meter', meter), make('span', 'number', figure(table.cosine[at], 1000, 2))),
    make('span', 'number plausibility faint', figure(table.plausibility[at], 100, 2)));
}

function refusalLine(at) {
  const text = make('span', 'text refused', cut(reasonOf(at), LONGEST.row));
  return line('why', lineHeight(reasonOf(at)), levelMark(refused.level[at], true), text);
}

function runLine(run, which, query) {
  const at = predictionOf(run, query);
  if (at === null) return null;
  const [start, end] = run.windows[at];
  const window = start === undefined ? 'no window' : `${seconds(start)} – ${seconds(end)} s`;
  return line(`run run${which % 4}`, height.run,
    make('span', 'dot'),
    make('span', 'text', make('b', '', cut(run.name, 60)), make('span', 'faint', window)),
    bar(run.windows[at], queries.duration[query], true),
    make('span', 'number', make('span', 'unit', 'IoU '), figure(run.iou[at], 1000, 2)));
}

function rowOf(index) {
  const query = found[index], duration = queries.duration[query];
  const time = make('span', 'time', bar(queries.windows[query], duration, false),
    make('span', 'seconds', duration ? `${seconds(duration)} s` : ''));
  const sources = negatives.map((table) => {
    const rows = negativesOf(table, query);
    const caption = make('div', 'caption', rows.length ? cut(table.name, 60) : '');
    return make('div', '', rows.length ? caption : null, ...rows.map((at) => negativeLine(table, at, query)));
  });
  const row = make('div', 'row',
    make('div', 'head', titleOf(query), make('span', 'tag', cut(of(queries.split, query), 60)), time),
    ...runs.map((run, which) => runLine(run, which, query)),
    make('div', negatives.length > 1 ? 'sources several' : 'sources', ...sources),
    ...refusalsOf(query).map(refusalLine));
  row.id = `row-${index}`;
  row.role = 'option';
  row.ariaPosInSet = index + 1;
  row.ariaSetSize = found.length;
  row.ariaSelected = index === chosen;
  row.style.height = `${tops[index + 1] - tops[index]}px`;
  row.style.transform = `translateY(${tops[index]}px)`;
  row.addEventListener('click', () => {
    choose(index);
    open();
  });
  return row;
}

// Returns the position of the row at a height in pixels.
function indexAt(offset) {
  let low = 0, high = Math.max(0, found.length - 1);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle] <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}

function draw() {
  const list = byId('list');
  const from = Math.max(0, indexAt(list.scrollTop) - AHEAD);
  const to = Math.min(found.length, indexAt(list.scrollTop + list.clientHeight) + 1 + AHEAD);
  for (const [index, row] of drawn) {
    if (index >= from && index < to) continue;
    row.remove();
    drawn.delete(index);
  }
  for (let index = to - 1; index >= from; index--) {
    if (drawn.has(index)) continue;
    drawn.set(index, rowOf(index));
    byId('rows').insertBefore(drawn.get(index), drawn.get(index + 1) || null);
  }
  if (drawn.has(chosen)) list.setAttribute('aria-activedescendant', `row-${chosen}`);
  else list.removeAttribute('aria-activedescendant');
}

function redraw(index) {
  drawn.get(index)?.remove();
  drawn.delete(index);
  draw();
}

function choose(index) {
  if (!found.length) return;
  const before = drawn.get(chosen), list = byId('list');
  if (before) before.ariaSelected = false;
  chosen = Math.min(found.length - 1, Math.max(0, index));
  if (tops[chosen] < list.scrollTop) list.scrollTop = tops[chosen];
  if (tops[chosen + 1] > list.scrollTop + list.clientHeight) list.scrollTop = tops[chosen + 1] - list.clientHeight;
  draw();
  drawn.get(chosen).ariaSelected = true;
  show(found[chosen]);
}
