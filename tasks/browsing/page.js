'use strict';
// Shows the columns that `gather` gave. What comes from the data becomes text nodes, and never markup.
(async () => {
const $ = (id) => document.getElementById(id);
const AHEAD = 6;           // rows that are drawn above and below those in sight
const LETTER = 7.3;        // pixels of a letter, rather too many
const SHOWN = 300;         // characters of a text in a row
const TOLD = 20000;        // characters of a text in full
const COMPARED = 120;      // words in which a negative is held against its query
const LEVELS = [1, 2, 3];
const STEPS = '0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_';

// -- data --------------------------------------------------------------------------------------------------------

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Response(stream).json();
}

let data;
try {
  data = await unpacked($('data').textContent);
} catch (error) {
  $('count').textContent = `This page can't be unpacked (${error.message}): a current browser can, if the file is whole.`;
  return;
}
$('data').remove();

const { queries, negatives, refused, runs, videos } = data;
const total = queries.qid.length;
const of = (column, at) => column.values[column.codes[at]];
for (const table of [...negatives, refused, ...runs]) {
  table.first = new Uint32Array(total + 1);
  table.count.forEach((count, query) => { table.first[query + 1] = table.first[query] + count; });
}
const rowsOf = (table, query) =>
  Array.from({ length: table.count[query] }, (_, index) => table.first[query] + index);
const novelties = queries.novel.values.map((several) => several.map(([type]) => type));
const lowered = (column) => column.values.map((value) => value.toLowerCase());
const searched = [queries.text, ...negatives.map((table) => table.text)].map(lowered);

// -- what is asked for ---------------------------------------------------------------------------------------------

const asked = { words: '', split: '', level: '', provider: '', composition: '', which: '', order: '' };

function choices() {
  const distinct = (values) => [...new Set(values)].filter((value) => value !== '').map((value) => [value, value]);
  const providers = negatives.flatMap((table) => table.provider.values);
  const orders = [];
  if (negatives.some((table) => table.cosine.some((value) => value !== null))) {
    orders.push(['near', 'cosine, highest first'], ['far', 'cosine, lowest first']);
  }
  runs.forEach((run, number) => orders.push([`best ${number}`, `${run.name}: best first`], [`worst ${number}`, `${run.name}: worst first`]));
  if (runs.length > 1) {
    orders.push(['gain', `${runs[1].name} better than ${runs[0].name}`], ['loss', `${runs[0].name} better than ${runs[1].name}`]);
  }
  const which = [];
  if (negatives.length) which.push(['whole', 'with all levels'], ['partly', 'lacking a level']);
  if (refused.reason.codes.length) which.push(['refused', 'refused at a stage']);
  if (runs.length) which.push(['predicted', 'with predictions']);
  return [
    ['split', 'split', 'all', distinct(queries.split.values)],
    ['level', 'level', 'all', negatives.length ? LEVELS.map((level) => [String(level), String(level)]) : []],
    ['provider', 'provider', 'all', distinct(providers)],
    ['composition', 'novel composition', 'any or none', distinct(novelties.flat()).sort()],
    ['which', 'show', 'all queries', which],
    ['order', 'order', 'as in the data', orders],
  ];
}

const seldom = new Set(['order', 'which', 'composition']); // a menu of these is of use with one choice, too

function menus() {
  for (const [name, title, none, values] of choices()) {
    if (values.length < (seldom.has(name) ? 1 : 2)) continue;
    const select = make('select', '', ...[['', none], ...values].map(([value, text]) => {
      const option = make('option', '', cut(text, 60));
      option.value = value;
      return option;
    }));
    select.name = name;
    select.addEventListener('change', () => ask(name, select.value));
    $('filters').append(make('label', '', make('span', '', title), select));
  }
}

function ask(name, value) {
  asked[name] = value;
  const select = $('filters').elements[name];
  if (select) select.classList.toggle('set', value !== '');
  search();
  chosen = 0;
  $('list').scrollTop = 0;
  draw();
  show(chosen);
}

// -- which queries, and how high each is ---------------------------------------------------------------------------

let found = new Uint32Array(0), tops = new Float64Array(1), chosen = 0, narrow = false, height = {};

const shownOf = (table, query) => rowsOf(table, query).filter((at) =>
  (!asked.level || table.level[at] === Number(asked.level)) &&
  (!asked.provider || of(table.provider, at) === asked.provider));
const refusedOf = (query) => rowsOf(refused, query).filter((at) =>
  !asked.level || refused.level[at] === 0 || refused.level[at] === Number(asked.level));
const reasonOf = (at) => `${of(refused.stage, at)}: ${of(refused.reason, at)}`;
const runOf = (run, query) => (run.count[query] ? run.first[query] : -1);

function search() {
  const words = asked.words.trim().toLowerCase();
  const hits = words && searched.map((texts) => texts.map((text) => text.includes(words)));
  const matches = (query) => {
    if (asked.split && of(queries.split, query) !== asked.split) return false;
    if (asked.composition && !novelties[queries.novel.codes[query]].includes(asked.composition)) return false;
    if ((asked.level || asked.provider) && !negatives.some((table) => shownOf(table, query).length)) return false;
    const has = negatives.length ? new Set(rowsOf(negatives[0], query).map((at) => negatives[0].level[at])).size : 0;
    if (asked.which === 'whole' && has < LEVELS.length) return false;
    if (asked.which === 'partly' && (has === LEVELS.length || !(has || refused.count[query]))) return false;
    if (asked.which === 'refused' && !refused.count[query]) return false;
    if (asked.which === 'predicted' && !runs.some((run) => run.count[query])) return false;
    return !words || hits[0][queries.text.codes[query]] || queries.qid[query].toLowerCase().includes(words) ||
      of(queries.vid, query).toLowerCase().includes(words) ||
      negatives.some((table, number) => shownOf(table, query).some((at) => hits[number + 1][table.text.codes[at]]));
  };
  const kept = [];
  for (let query = 0; query < total; query++) if (matches(query)) kept.push(query);
  found = sorted(kept);
  $('count').textContent = found.length === total ? `${number(total)} queries` : `${number(found.length)} of ${number(total)} queries`;
  $('none').hidden = found.length > 0;
  measure();
}

function sorted(kept) {
  const [order, which] = asked.order.split(' ');
  const iou = (run, query) => { const at = runOf(run, query); return at < 0 ? null : run.iou[at]; };
  const gain = (query) => { const [a, b] = runs.slice(0, 2).map((run) => iou(run, query)); return a === null || b === null ? null : b - a; };
  const cosine = (query, best) => {
    const all = negatives.flatMap((table) => shownOf(table, query).map((at) => table.cosine[at])).filter((value) => value !== null);
    return all.length ? best(...all) : null;
  };
  const keys = {
    near: (query) => cosine(query, Math.max), far: (query) => { const least = cosine(query, Math.min); return least === null ? null : -least; },
    best: (query) => iou(runs[which], query), worst: (query) => { const it = iou(runs[which], query); return it === null ? null : -it; },
    gain, loss: (query) => { const it = gain(query); return it === null ? null : -it; },
  };
  if (!keys[order]) return Uint32Array.from(kept);
  const keyed = kept.map((query) => [query, keys[order](query)]);
  keyed.sort(([, a], [, b]) => (b === null ? -Infinity : b) - (a === null ? -Infinity : a) || 0); // who has none comes last
  return Uint32Array.from(keyed, ([query]) => query);
}

// How high a line is: on a narrow screen a longer text takes two rows of letters.
const lineHeight = (text) => (narrow && text.length * LETTER > height.room ? height.tall : height.line);

function linesOf(query) {
  const sources = negatives.map((table) => shownOf(table, query));
  const caption = narrow && negatives.length > 1 ? height.line : 0;
  const heights = sources.map((lines, number) => lines.length && lines.reduce((sum, at) => sum + lineHeight(of(negatives[number].text, at)), caption));
  const told = refusedOf(query), predicted = runs.filter((run) => run.count[query]).length;
  const negated = narrow ? heights.reduce((sum, it) => sum + it, 0) : Math.max(0, ...heights);
  const title = narrow ? lineHeight(of(queries.text, query)) : 0;
  const rest = told.reduce((sum, at) => sum + lineHeight(reasonOf(at)), predicted * height.run);
  return { sources, told, height: height.head + title + negated + rest + 17 };
}

function measure() {
  narrow = matchMedia('(max-width: 999px)').matches;
  const style = getComputedStyle(document.documentElement);
  const pixels = (name) => parseFloat(style.getPropertyValue(name)), list = $('list');
  height = { head: pixels('--head'), line: pixels('--line'), tall: pixels('--tall'), run: pixels('--run'), room: list.clientWidth - 100 };
  $('captions').style.paddingRight = `${18 + list.offsetWidth - list.clientWidth}px`;
  $('queries').inert = narrow && $('detail').classList.contains('open');
  tops = new Float64Array(found.length + 1);
  found.forEach((query, index) => { tops[index + 1] = tops[index] + linesOf(query).height; });
  $('rows').style.height = `${tops[found.length]}px`;
  for (const row of drawn.values()) row.remove();
  drawn.clear();
}

// -- words ---------------------------------------------------------------------------------------------------------

function make(tag, style, ...children) {
  const element = document.createElement(tag);
  if (style) element.className = style;
  element.append(...children.filter((child) => child !== null));
  return element;
}

const number = (value) => value.toLocaleString('en');
const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);
const parts = (value, scale, digits) => (value === null ? '–' : (value / scale).toFixed(digits).replace('-', '−'));
const seconds = (value) => parts(value, 100, 1);
const WORD = /[\p{L}\p{N}\p{M}'’_-]+|[^\s]/gu;

// Which words of a text are no part of its longest common subsequence with another.
function changed(own, other) {
  const [a, b] = [own, other].map((several) => several.slice(0, COMPARED).map((word) => word.toLowerCase()));
  const wide = b.length + 1, longest = new Uint16Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * wide + j] = a[i] === b[j] ? longest[(i + 1) * wide + j + 1] + 1
        : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
    }
  }
  const flags = a.map(() => true);
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) { flags[i++] = false; j++; }
    else if (longest[(i + 1) * wide + j] >= longest[i * wide + j + 1]) i++;
    else j++;
  }
  return flags;
}

// Puts a text into an element; words that another text lacks are marked, neighbours together.
function marked(element, text, other, tag, style) {
  const own = [...text.matchAll(WORD)], flags = changed(own.map(([word]) => word), other.match(WORD) || []);
  let end = 0;
  for (let at = 0; at < flags.length; at++) {
    if (!flags[at]) continue;
    const start = own[at].index;
    while (flags[at + 1] && !text.slice(own[at].index + own[at][0].length, own[at + 1].index).trim()) at++;
    element.append(text.slice(end, start), make(tag, style, text.slice(start, end = own[at].index + own[at][0].length)));
  }
  element.append(text.slice(end));
  element.dir = 'auto';
  return element;
}

function levelMark(level, missing) {
  const mark = make('span', `level ${missing || level > 3 ? 'none' : `l${level}`}`, level ? String(level) : '–');
  mark.title = level ? `level ${level}` : 'the query itself';
  return mark;
}

function bar(windows, duration, tone) {
  const track = make('span', `bar ${tone}`);
  track.setAttribute('role', 'img');
  track.setAttribute('aria-label', told(windows));
  for (let at = windows.length - 2; at >= 0; at -= 2) {
    const piece = make('i', '');
    place(piece, windows[at], windows[at + 1], duration);
    if (tone && at) piece.style.opacity = 0.28;
    track.append(piece);
  }
  return track;
}

function place(element, start, end, duration) {
  const share = (time) => 100 * Math.min(1, Math.max(0, duration ? time / duration : 0));
  element.style.left = `${share(start)}%`;
  element.style.width = `${share(end) - share(start)}%`;
}

const pairs = (flat) => Array.from({ length: flat.length / 2 }, (_, at) => flat.slice(2 * at, 2 * at + 2));
const told = (flat) => pairs(flat).map(([start, end]) => `${seconds(start)} to ${seconds(end)} s`).join(', ') || 'no window';

// -- rows ----------------------------------------------------------------------------------------------------------

const drawn = new Map(); // by place among the found

function titleOf(query, element) {
  const text = of(queries.text, query);
  if (!text) {
    element.classList.add('unknown');
    element.append(`${cut(queries.qid[query], SHOWN)} is no query of the data set`);
    return element;
  }
  const last = negatives.length ? rowsOf(negatives[0], query).pop() : undefined;
  if (last === undefined) { element.append(cut(text, SHOWN)); element.dir = 'auto'; return element; }
  return marked(element, cut(text, SHOWN), cut(of(negatives[0].text, last), SHOWN), 'span', 'was');
}

function negativeLine(table, at, query) {
  const cosine = table.cosine[at], meter = make('i', '');
  meter.style.width = `${Math.max(0, cosine || 0) / 10}%`;
  const line = make('div', 'line',
    levelMark(table.level[at]),
    marked(make('span', 'text'), cut(of(table.text, at), SHOWN), cut(of(queries.text, query), SHOWN), 'mark', ''),
    make('span', 'who', cut(of(table.provider, at), 40)),
    make('span', 'cosine', make('span', 'meter', meter), make('span', 'number', parts(cosine, 1000, 2))),
    make('span', 'number plausibility faint', parts(table.plausibility[at], 100, 2)));
  line.style.height = `${lineHeight(of(table.text, at))}px`;
  return line;
}

function refusedLine(at) {
  const line = make('div', 'line why', levelMark(refused.level[at], true), make('span', 'text refused', cut(reasonOf(at), SHOWN)));
  line.style.height = `${lineHeight(reasonOf(at))}px`;
  return line;
}

function runLine(run, which, query) {
  const at = runOf(run, query), [start, end] = run.windows[at];
  const says = start === undefined ? 'no window' : `${seconds(start)} – ${seconds(end)} s`;
  const name = make('span', 'text', make('b', '', cut(run.name, 60)), make('span', 'faint', says));
  return make('div', `line run run${which % 4}`, make('span', 'dot'), name,
    bar(run.windows[at], queries.duration[query], 'run'),
    make('span', 'number', make('span', 'unit', 'IoU '), parts(run.iou[at], 1000, 2)));
}

function rowOf(index) {
  const query = found[index], { sources, told: refusals, height: high } = linesOf(query);
  const row = make('div', 'row',
    make('div', 'head', titleOf(query, make('span', 'query')), make('span', 'tag', of(queries.split, query)),
      make('span', 'time', bar(queries.windows[query], queries.duration[query], ''),
        make('span', 'seconds', queries.duration[query] ? `${seconds(queries.duration[query])} s` : ''))),
    ...runs.map((run, which) => (run.count[query] ? runLine(run, which, query) : null)),
    make('div', negatives.length > 1 ? 'sources several' : 'sources', ...negatives.map((table, number) => make('div', 'source',
      make('div', 'caption', sources[number].length ? cut(table.name, 60) : ''), ...sources[number].map((at) => negativeLine(table, at, query))))),
    ...refusals.map(refusedLine));
  row.id = `row-${index}`;
  row.setAttribute('role', 'option');
  row.setAttribute('aria-posinset', index + 1);
  row.setAttribute('aria-setsize', found.length);
  row.setAttribute('aria-selected', index === chosen);
  row.style.height = `${high}px`;
  row.style.transform = `translateY(${tops[index]}px)`;
  row.addEventListener('click', () => { choose(index); open(); });
  return row;
}

function indexAt(offset) {
  let low = 0, high = Math.max(0, found.length - 1);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle] <= offset) low = middle; else high = middle - 1;
  }
  return low;
}

function draw() {
  const list = $('list');
  const from = Math.max(0, indexAt(list.scrollTop) - AHEAD);
  const to = Math.min(found.length, indexAt(list.scrollTop + list.clientHeight) + 1 + AHEAD);
  for (const [index, row] of drawn) {
    if (index < from || index >= to) { row.remove(); drawn.delete(index); }
  }
  for (let index = from; index < to; index++) {
    if (!drawn.has(index)) {
      const row = rowOf(index), after = drawn.get(index + 1);
      drawn.set(index, row);
      $('rows').insertBefore(row, after || null);
    }
  }
  if (drawn.has(chosen)) list.setAttribute('aria-activedescendant', `row-${chosen}`);
  else list.removeAttribute('aria-activedescendant');
}

function choose(index) {
  if (!found.length) return;
  const before = drawn.get(chosen);
  if (before) before.setAttribute('aria-selected', 'false');
  chosen = Math.min(found.length - 1, Math.max(0, index));
  const list = $('list'), room = list.clientHeight;
  if (tops[chosen] < list.scrollTop) list.scrollTop = tops[chosen];
  else if (tops[chosen + 1] > list.scrollTop + room) list.scrollTop = tops[chosen + 1] - room;
  draw();
  drawn.get(chosen).setAttribute('aria-selected', 'true');
  show(chosen);
}

// -- the chosen query ----------------------------------------------------------------------------------------------

function open() {
  $('detail').classList.add('open');
  $('queries').inert = narrow; // it covers them
  if (narrow) $('detail').focus();
}

function close() {
  $('detail').classList.remove('open');
  $('queries').inert = false;
  const video = $('detail').querySelector('video');
  if (video) video.pause();
  $('list').focus();
}

function playerOf(query) {
  const file = videos.files[queries.vid.codes[query]];
  if (!file) return null;
  const video = make('video', ''), [start, end] = queries.windows[query];
  video.controls = true;
  video.muted = true;
  video.preload = 'metadata';
  video.src = videos.folder + file + (start === undefined ? '' : `#t=${start / 100},${end / 100}`);
  video.addEventListener('error', () => video.replaceWith(make('p', 'hint', 'This browser can\'t play the video here.')));
  return video;
}

function lane(windows, scores, duration, tone, name, video) {
  const track = make('div', `lane ${tone}`);
  pairs(windows).map(([start, end], rank) => {
    const button = make('button', '');
    button.type = 'button';
    place(button, start, end, duration);
    if (tone && rank) button.style.opacity = 0.3;
    button.title = `${name}: ${seconds(start)} to ${seconds(end)} s${scores ? `, score ${parts(scores[rank], 1000, 3)}` : ''}`;
    button.setAttribute('aria-label', button.title);
    button.addEventListener('click', () => { if (video) { video.currentTime = start / 100; video.play(); } });
    return button;
  }).reverse().forEach((button) => track.append(button)); // the best one lies on top
  return track;
}

function saliencyOf(run, at, query, which) {
  const values = [...run.saliency[at]].map((step) => STEPS.indexOf(step)), duration = queries.duration[query];
  if (!values.length || !duration) return null;
  const picture = (tag, attributes, ...children) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...children);
    return element;
  };
  const clip = run.clip ? 100 * run.clip : duration / values.length;
  const x = (time) => (100 * Math.min(1, time / duration)).toFixed(2), y = (value) => (50 - value * 46 / 63).toFixed(1);
  const line = values.map((value, index) => `${index ? 'L' : 'M'}${x((index + 0.5) * clip)} ${y(value)}`).join('');
  const area = `${line}L${x((values.length - 0.5) * clip)} 50L${x(clip / 2)} 50Z`;
  const truth = pairs(queries.windows[query]).map(([start, end]) => picture('rect', { x: x(start), width: x(end) - x(start), y: 0, height: 50 }));
  return picture('svg', { class: `saliency run${which % 4}`, viewBox: '0 0 100 50', preserveAspectRatio: 'none', role: 'img',
    'aria-label': `saliency of ${values.length} clips, from ${run.least[at]} to ${run.greatest[at]}` }, ...truth, picture('path', { d: area }));
}

function timeline(query, video) {
  const duration = queries.duration[query];
  const plot = make('div', 'plot', lane(queries.windows[query], null, duration, '', 'truth', video),
    ...runs.map((run, which) => {
      const at = runOf(run, query);
      return at < 0 ? null : lane(run.windows[at], run.scores[at], duration, `run${which % 4}`, run.name, video);
    }));
  if (video) {
    const head = make('div', 'playhead');
    head.style.left = '0';
    video.addEventListener('timeupdate', () => { head.style.left = `${Math.min(100, 10000 * video.currentTime / duration)}%`; });
    plot.append(head);
  }
  const ends = ['0', `true: ${told(queries.windows[query])}`, `${seconds(duration)} s`].map((text) => make('span', '', text));
  return make('div', '', plot, make('div', 'scale', ...ends));
}

function runCard(run, which, query) {
  const at = runOf(run, query);
  if (at < 0) return null;
  const several = pairs(run.windows[at]).map(([start, end], rank) => make('li', '',
    make('span', '', `${seconds(start)} – ${seconds(end)} s`), make('span', '', parts(run.scores[at][rank], 1000, 3))));
  return make('section', `card run${which % 4}`,
    make('div', 'spread', make('b', '', make('span', 'dot'), ` ${run.name}`), make('span', 'faint', `IoU ${parts(run.iou[at], 1000, 3)}`)),
    saliencyOf(run, at, query, which), make('ol', 'windows', ...several));
}

function negativeCard(table, at, query) {
  const checks = of(table.checks, at), about = [
    ['', of(table.provider, at)], ['', of(table.model, at)],
    ['cosine ', parts(table.cosine[at], 1000, 3)], ['plausibility ', parts(table.plausibility[at], 100, 2)]];
  const card = make('div', 'card negative', levelMark(table.level[at]), make('div', '',
    marked(make('div', 'full'), cut(of(table.text, at), TOLD), cut(of(queries.text, query), TOLD), 'mark', ''),
    make('div', 'about', ...about.map(([name, value]) => make('span', 'value', name + cut(value, SHOWN))))));
  if (checks.length) card.title = `passed: ${checks.join(', ')}`;
  return card;
}

function refusedCard(at) {
  const level = refused.level[at], value = of(refused.value, at);
  return make('div', 'card negative', levelMark(level, true), make('div', '',
    make('div', 'refused', of(refused.reason, at)),
    make('div', 'about', make('span', '', of(refused.stage, at)), value ? make('span', 'value', cut(value, TOLD)) : null)));
}

function titled(title, cards) {
  return cards.some((card) => card !== null) ? [make('h3', '', title), ...cards] : [];
}

function show(index) {
  const detail = $('detail'), query = found[index];
  const playing = detail.querySelector('video');
  if (playing) { playing.pause(); playing.removeAttribute('src'); playing.load(); }
  detail.scrollTop = 0;
  if (query === undefined) { detail.replaceChildren(); return; }
  const back = make('button', '', '← All queries');
  back.id = 'close';
  back.type = 'button';
  back.addEventListener('click', close);
  const text = of(queries.text, query), title = make('h2', '', text ? cut(text, TOLD) : `${queries.qid[query]} is no query of the data set`);
  title.dir = 'auto';
  const video = playerOf(query), vid = of(queries.vid, query), split = of(queries.split, query);
  const facts = [split, vid && `video ${vid}`, queries.qid[query]].filter(Boolean).map((fact) => make('span', '', cut(fact, SHOWN)));
  const novel = of(queries.novel, query).map(([type, words]) => make('span', 'novel', `${type}: ${cut(words.join(' '), 80)}`));
  detail.replaceChildren(back, title, make('div', 'facts', ...facts, ...novel), ...[video].filter(Boolean),
    ...(queries.duration[query] ? [timeline(query, video)] : []),
    ...titled(runs.length > 1 ? 'What the runs predict' : 'What the run predicts', runs.map((run, which) => runCard(run, which, query))).filter(Boolean),
    ...negatives.flatMap((table) => titled(`${table.name === 'negatives' ? 'Negatives' : table.name}`, rowsOf(table, query).map((at) => negativeCard(table, at, query)))),
    ...titled('Refused', rowsOf(refused, query).map(refusedCard)));
}

// -- hands ---------------------------------------------------------------------------------------------------------

function moves(event) {
  const page = Math.max(1, indexAt($('list').scrollTop + $('list').clientHeight) - indexAt($('list').scrollTop));
  return { ArrowDown: chosen + 1, j: chosen + 1, ArrowUp: chosen - 1, k: chosen - 1, PageDown: chosen + page, PageUp: chosen - page,
    Home: 0, End: found.length - 1 }[event.key];
}

addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = event.target, types = at.matches('input, select, textarea');
  if (event.key === 'Escape') {
    if (at === $('words') && $('words').value) { $('words').value = ''; ask('words', ''); } else close();
  } else if (types) {
    if (at === $('words') && ['Enter', 'ArrowDown'].includes(event.key)) $('list').focus(); else return;
  } else if (event.key === '/') {
    $('words').focus();
    $('words').select();
  } else if (event.key === 'p') {
    const video = $('detail').querySelector('video');
    if (video && video.paused) video.play(); else if (video) video.pause();
  } else if (event.key === 'Enter' && at === $('list')) {
    open();
    $('detail').focus();
  } else if (moves(event) !== undefined && (at === $('list') || at === document.body || ['j', 'k'].includes(event.key))) {
    choose(moves(event));
  } else return;
  event.preventDefault();
});

let frame = 0;
$('list').addEventListener('scroll', () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(draw); }, { passive: true });
new ResizeObserver(() => requestAnimationFrame(() => {
  const at = indexAt($('list').scrollTop);
  measure();
  $('list').scrollTop = tops[at];
  draw();
})).observe($('list'));
$('words').addEventListener('input', () => ask('words', $('words').value));
$('filters').addEventListener('submit', (event) => event.preventDefault());
$('more').addEventListener('click', () => $('more').setAttribute('aria-expanded', $('filters').classList.toggle('open')));
$('clear').addEventListener('click', () => {
  Object.keys(asked).forEach((name) => { asked[name] = ''; });
  $('words').value = '';
  $('filters').reset();
  $('filters').querySelectorAll('select').forEach((select) => select.classList.remove('set'));
  ask('words', '');
  $('list').focus();
});

function captions() {
  const several = negatives.length > 1, one = negatives.length ? ['provider', 'cosine', 'plausibility'] : ['', '', 'IoU'];
  $('captions').append(...(several
    ? negatives.map((table) => make('div', '', make('b', '', cut(table.name, 60)), make('span', '', 'cosine, plausibility')))
    : ['query and negatives', ...one].map((name) => make('span', '', name))));
  $('captions').classList.toggle('several', several);
}

menus();
captions();
search();
draw();
show(chosen);
$('list').focus();
document.documentElement.dataset.ready = 'yes';
})();
