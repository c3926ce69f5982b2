// Menus, keyboard, and start of the page.

const ALWAYS = new Set(['novel', 'which', 'order']); // menus that are shown even with a single choice

function choices() {
  const alike = (values) => [...new Set(values)].filter(Boolean).sort().map((value) => [value, value]);
  const levels = negatives.length ? LEVELS.map((level) => [String(level), String(level)]) : [];
  const which = [...(negatives.length ? ['negated', 'whole', 'partly'] : []), ...(refused.level.length ? ['refused'] : []),
    ...(runs.length ? ['predicted'] : [])].map((name) => [name, WHICH[name][0]]);
  const isTold = negatives.some((table) => table.cosine.some((value) => value !== null));
  const orders = isTold ? [['near', 'cosine, highest first'], ['far', 'cosine, lowest first']] : [];
  runs.forEach(({name}, at) => {
    orders.push([`best ${at}`, `${name}: best first`], [`worst ${at}`, `${name}: worst first`]);
  });
  if (runs.length > 1) {
    const [first, second] = runs.map((run) => run.name);
    orders.push(['gain', `${second} better than ${first}`], ['loss', `${first} better than ${second}`]);
  }
  return [
    ['split', 'split', 'all', queries.split.values.filter(Boolean).map((split) => [split, split])],
    ['level', 'level', 'all', levels],
    ['provider', 'provider', 'all', alike(negatives.flatMap((table) => table.provider.values))],
    ['novel', 'novel', 'all', alike(queries.novel.values.flat().map(([type]) => type))],
    ['which', 'show', 'all queries', which],
    ['order', 'order', 'as in the data', orders],
  ];
}

function menus() {
  for (const [name, title, none, values] of choices()) {
    if (values.length < (ALWAYS.has(name) ? 1 : 2)) continue;
    const menu = make('select', '', ...[['', none], ...values].map(([value, text]) => {
      const option = make('option', '', cut(text, 60));
      option.value = value;
      return option;
    }));
    menu.name = name;
    menu.value = asked[name];
    menu.classList.toggle('set', menu.value !== '');
    menu.addEventListener('change', () => {
      menu.classList.toggle('set', menu.value !== '');
      ask(name, menu.value);
    });
    byId('filters').append(make('label', '', make('span', '', title), menu));
  }
}

// The column headings: one line each for the query, its negatives and predictions.
function captions() {
  const head = (text, style = '') => make('span', style, text), several = negatives.length > 1;
  const heads = (table) => make('div', 'line', head(several ? cut(table.name, 60) : 'negatives', 'wide'),
    several ? null : head('provider'), head('cosine', 'number'), head('plausibility', 'number'));
  const sources = negatives.map((table) => (several ? make('div', '', heads(table)) : heads(table)));
  byId('captions').append(
    make('div', 'head', head('query'), head('split', 'tag'), make('span', 'time', head('true windows'), head('video', 'seconds'))),
    make('div', several ? 'sources several' : '', ...sources),
    runs.length ? make('div', 'line run', head('run and its first window', 'wide'), head('predicted windows'), head('IoU', 'number')) : '');
}

function ask(name, value) {
  asked[name] = value;
  search();
  const all = queries.qid.length;
  const splits = queries.split.values.filter((split) => split && found.some((query) => of(queries.split, query) === split));
  const what = [`${found.length === all ? '' : `${count(found.length)} of `}${count(all)} queries`,
    asked.which && WHICH[asked.which][0], splits.length && `split ${splits.map((split) => cut(split, 60)).join(', ')}`];
  byId('count').textContent = what.filter(Boolean).join(' · ');
  byId('none').hidden = found.length > 0;
  chosen = 0;
  measure();
  byId('list').scrollTop = 0;
  draw();
  show(found[chosen]);
}

function clear() {
  for (const name of Object.keys(asked)) asked[name] = '';
  for (const menu of byId('filters').elements) {
    menu.value = '';
    menu.classList.remove('set');
  }
  byId('words').value = '';
  ask('words', '');
  byId('list').focus();
}

function moved(key) {
  const list = byId('list'), page = Math.max(1, indexAt(list.scrollTop + list.clientHeight) - indexAt(list.scrollTop));
  const places = {ArrowDown: chosen + 1, j: chosen + 1, ArrowUp: chosen - 1, k: chosen - 1, PageDown: chosen + page,
    PageUp: chosen - page, Home: 0, End: found.length - 1};
  return places[key];
}

function play() {
  const video = byId('detail').querySelector('video');
  if (video?.paused) video.play();
  else video?.pause();
}

// Returns whether the page handled a key; in an input field it handles only keys that leave the field.
function pressed(key, target) {
  const words = byId('words'), list = byId('list');
  if (reviewed(key, target)) return true;
  if (target.matches('.rewrite')) return false;
  if (key === 'Escape' && target === words && words.value) {
    words.value = '';
    ask('words', '');
  } else if (key === 'Escape') close();
  else if (target === words && (key === 'Enter' || key === 'ArrowDown')) list.focus();
  else if (target.matches('input, select')) return false;
  else if (key === '/') {
    words.focus();
    words.select();
  } else if (key === 'p') play();
  else if (key === 'Enter' && target === list) {
    open();
    byId('detail').focus();
  } else if (moved(key) !== undefined && (target === list || target === document.body || key === 'j' || key === 'k')) {
    choose(moved(key));
  } else return false;
  return true;
}

function listen() {
  const list = byId('list');
  let frame = 0;
  list.addEventListener('scroll', () => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  }, {passive: true});
  new ResizeObserver(() => requestAnimationFrame(() => {
    const at = indexAt(list.scrollTop);
    measure();
    list.scrollTop = tops[at];
    draw();
  })).observe(list);
  addEventListener('keydown', (event) => {
    if (!(event.ctrlKey || event.metaKey || event.altKey) && pressed(event.key, event.target)) event.preventDefault();
  });
  byId('words').addEventListener('input', () => ask('words', byId('words').value));
  byId('filters').addEventListener('submit', (event) => event.preventDefault());
  byId('more').addEventListener('click', () => {
    byId('more').ariaExpanded = byId('filters').classList.toggle('open');
  });
  byId('clear').addEventListener('click', clear);
}

async function begin() {
  try {
    take(await unpacked(byId('data').textContent));
  } catch (error) {
    const remedy = 'take a current browser, or write the page anew';
    byId('count').textContent = `The data can't be unpacked (${error.message}): ${remedy}.`;
    return;
  }
  byId('data').remove();
  asked.which = runs.length ? 'predicted' : 'negated';
  if (!queries.qid.some((_, query) => WHICH[asked.which][1](query))) asked.which = '';
  menus();
  captions();
  prepareReview();
  ask('words', '');
  listen();
  byId('list').focus();
  document.documentElement.dataset.ready = 'yes';
}

begin();
