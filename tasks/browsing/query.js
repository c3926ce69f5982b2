// The details of the selected query: video, windows over time, predictions of runs, negatives, rejected rows.

function open() {
  byId('detail').classList.add('open');
  byId('queries').inert = narrow; // the details cover the list
  if (narrow) byId('detail').focus();
}

function close() {
  byId('detail').classList.remove('open');
  byId('queries').inert = false;
  byId('detail').querySelector('video')?.pause();
  byId('list').focus();
}

function playerOf(query) {
  const file = data.videos.files[queries.vid.codes[query]];
  if (!file) return null;
  const video = make('video', ''), [start, end] = queries.windows[query];
  video.controls = true;
  video.muted = true;
  video.preload = 'metadata';
  video.src = data.videos.folder + file + (start === undefined ? '' : `#t=${start / 100},${end / 100}`);
  const fault = 'This browser can\'t play the video here.';
  video.addEventListener('error', () => video.replaceWith(make('p', 'faint', fault)));
  return video;
}

// Windows as buttons; a click seeks the video to the window.
function lane(windows, scores, duration, style, name, video) {
  const buttons = pairs(windows).map(([start, end], rank) => {
    const button = make('button', scores && rank ? 'pale' : '');
    const score = scores ? `, score ${figure(scores[rank], 1000, 3)}` : '';
    button.type = 'button';
    button.title = `${name}: ${seconds(start)} to ${seconds(end)} s${score}`;
    button.ariaLabel = button.title;
    place(button, start, end, duration);
    button.addEventListener('click', () => {
      if (!video) return;
      video.currentTime = start / 100;
      video.play();
    });
    return button;
  });
  return make('div', `lane ${style}`, ...buttons.reverse()); // the best window is on top
}

function timeline(query, video) {
  const duration = queries.duration[query];
  if (!duration) return null;
  const plot = make('div', 'plot', lane(queries.windows[query], null, duration, '', 'true window', video),
    ...runs.map((run, which) => {
      const at = predictionOf(run, query);
      return at === null ? null : lane(run.windows[at], run.scores[at], duration, `run${which % 4}`, run.name, video);
    }));
  if (video) {
    const head = make('div', 'playhead');
    video.addEventListener('timeupdate', () => place(head, 100 * video.currentTime, 0, duration));
    plot.append(head);
  }
  const ends = ['0', `true: ${spoken(queries.windows[query])}`, `${seconds(duration)} s`];
  return make('div', '', plot, make('div', 'scale', ...ends.map((text) => make('span', '', text))));
}

function drawing(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Saliency over time, drawn over the true windows.
function saliencyOf(run, at, query) {
  const values = run.saliency[at].map((value) => value ?? 0), duration = queries.duration[query];
  if (!values.length || !duration) return null;
  const clip = run.clip ? 100 * run.clip : duration / values.length;
  const x = (time) => (100 * Math.min(1, time / duration)).toFixed(2);
  const least = Math.min(...values), greatest = Math.max(...values), span = greatest - least || 1;
  const y = (value) => (50 - 46 * (value - least) / span).toFixed(1);
  const points = values.map((value, index) => `${x((index + 0.5) * clip)} ${y(value)}`);
  const area = `M${points.join('L')}L${x((values.length - 0.5) * clip)} 50L${x(clip / 2)} 50Z`;
  const truth = pairs(queries.windows[query]).map(([start, end]) =>
    drawing('rect', {x: x(start), width: x(end) - x(start), y: 0, height: 50}));
  const label = `saliency of ${values.length} clips, from ${figure(least, 1000, 3)} to ${figure(greatest, 1000, 3)}`;
  const frame = {class: 'saliency', viewBox: '0 0 100 50', preserveAspectRatio: 'none'};
  return drawing('svg', {...frame, role: 'img', 'aria-label': label}, ...truth, drawing('path', {d: area}));
}

function runCard(run, which, query) {
  const at = predictionOf(run, query);
  if (at === null) return null;
  const windows = pairs(run.windows[at]).map(([start, end], rank) => make('li', '',
    make('span', '', `${seconds(start)} – ${seconds(end)} s`),
    make('span', '', figure(run.scores[at][rank], 1000, 3))));
  const exists = run.existence[at] === null ? '' : `existence ${figure(run.existence[at], 1000, 2)} · `;
  return make('section', `card run${which % 4}`,
    make('div', 'spread',
      make('b', '', make('span', 'dot'), ` ${run.name}`),
      make('span', 'faint', `${exists}IoU ${figure(run.iou[at], 1000, 3)}`)),
    saliencyOf(run, at, query), make('ol', 'windows', ...windows), askedList(run.asked, query));
}

// The existence that a run predicts for false sentences.
function askedList(table, query) {
  const lines = rowsOf(table, query).map((at) => make('li', '',
    make('span', '', `${of(table.kind, at)}: ${cut(of(table.text, at), LONGEST.row)}`),
    make('span', '', `${figure(table.existence[at], 1000, 2)}${table.existence[at] < table.threshold ? ' not in this video' : ''}`)));
  if (!lines.length) return null;
  return make('div', '', make('div', 'about', `existence of false sentences; below ${figure(table.threshold, 1000, 2)}: not in this video`),
    make('ol', 'windows', ...lines));
}

function negativeCard(table, at, query) {
  const about = [of(table.provider, at), of(table.model, at), `cosine ${figure(table.cosine[at], 1000, 3)}`,
    `plausibility ${figure(table.plausibility[at], 100, 2)}`];
  const text = cut(of(table.text, at), LONGEST.full), positive = cut(of(queries.text, query), LONGEST.full);
  const card = make('div', 'card negative', levelMark(table.level[at]), make('div', '',
    marked(make('div', 'full'), text, positive, 'mark', ''),
    make('div', 'about', ...about.map((fact) => make('span', '', cut(fact, LONGEST.row))))));
  card.lastChild.append(judging(table, at, card) || '');
  const checks = of(table.checks, at);
  if (checks.length) card.title = `passed: ${checks.join(', ')}`;
  return card;
}

function refusalCard(at) {
  const about = [of(refused.stage, at), cut(of(refused.value, at), LONGEST.full)].filter(Boolean);
  return make('div', 'card negative', levelMark(refused.level[at], true), make('div', '',
    make('div', 'refused', of(refused.reason, at)),
    make('div', 'about', ...about.map((fact) => make('span', '', fact)))));
}

function titled(title, cards) {
  const there = cards.filter((card) => card !== null);
  return there.length ? [make('h3', '', title), ...there] : [];
}

function factsOf(query) {
  const video = of(queries.vid, query);
  const facts = [of(queries.split, query), video && `video ${video}`, queries.qid[query]].filter(Boolean);
  const labels = of(queries.novel, query).map(([type, words]) => `${type}: ${words.join(' ')}`);
  const novel = labels.map((label) => make('span', 'novel', cut(label, 80)));
  return make('div', 'facts', ...facts.map((fact) => make('span', '', cut(fact, LONGEST.row))), ...novel);
}

function show(query) {
  const detail = byId('detail'), playing = detail.querySelector('video');
  if (playing) { // releases the file
    playing.removeAttribute('src');
    playing.load();
  }
  detail.replaceChildren();
  [cards, focused] = [[], 0];
  detail.scrollTop = 0;
  if (query === undefined) return;
  const back = make('button', '', '← All queries');
  back.id = 'close';
  back.type = 'button';
  back.addEventListener('click', close);
  const text = of(queries.text, query) || `${queries.qid[query]} is no query of the data set`;
  const title = make('h2', '', cut(text, LONGEST.full)), video = playerOf(query);
  title.dir = 'auto';
  const parts = [back, title, factsOf(query), video, timeline(query, video),
    ...titled('Predicted', runs.map((run, which) => runCard(run, which, query))),
    ...negatives.flatMap((table) =>
      titled(table.name, rowsOf(table, query).map((at) => negativeCard(table, at, query)))),
    ...titled('Refused', rowsOf(refused, query).map(refusalCard))];
  detail.append(...parts.filter((part) => part !== null));
  markCards();
}
