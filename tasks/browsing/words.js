'use strict';
// Elements, texts and figures. Data are inserted as text nodes and properties, never as markup.

const LONGEST = {row: 300, full: 20000}; // highest number of characters shown
const COMPARED = 120; // highest number of words compared between two texts
const WORD = /[\p{L}\p{N}\p{M}'’_-]+|[^\s]/gu;

const byId = (id) => document.getElementById(id);

function make(tag, style, ...children) {
  const element = document.createElement(tag);
  if (style) element.className = style;
  element.append(...children.filter((child) => child !== null));
  return element;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);
const count = (value) => value.toLocaleString('en');
const figure = (value, scale, digits) => (value === null ? '–' : (value / scale).toFixed(digits).replace('-', '−'));
const seconds = (value) => figure(value, 100, 1);
const pairs = (flat) => Array.from({length: flat.length / 2}, (_, at) => flat.slice(2 * at, 2 * at + 2));
const spoken = (flat) =>
  pairs(flat).map(([start, end]) => `${seconds(start)} to ${seconds(end)} s`).join(', ') || 'no window';

// Returns which words of a text are not in its longest common subsequence with another text.
function changed(own, other) {
  const [a, b] = [own, other].map((several) => several.slice(0, COMPARED).map((word) => word.toLowerCase()));
  const longest = Array.from({length: a.length + 1}, () => new Uint8Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  const flags = a.map(() => true);
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      flags[i++] = false;
      j++;
    } else if (longest[i + 1][j] >= longest[i][j + 1]) i++;
    else j++;
  }
  return flags;
}

// Inserts a text into an element and marks words that another text lacks, adjacent words together.
function marked(element, text, other, tag, style) {
  const own = [...text.matchAll(WORD)];
  const flags = changed(own.map(([word]) => word), other.match(WORD) || []);
  const after = (at) => own[at].index + own[at][0].length;
  let end = 0;
  for (let at = 0; at < flags.length; at++) {
    if (!flags[at]) continue;
    const start = own[at].index;
    while (flags[at + 1] && !text.slice(after(at), own[at + 1].index).trim()) at++;
    element.append(text.slice(end, start), make(tag, style, text.slice(start, after(at))));
    end = after(at);
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

function place(element, start, end, duration) {
  const share = (time) => 100 * Math.min(1, Math.max(0, duration ? time / duration : 0));
  element.style.left = `${share(start)}%`;
  element.style.width = `${share(end) - share(start)}%`;
}

// Windows on a bar of the video's length; of a run's windows the best is on top and the others are pale.
function bar(windows, duration, ofRun) {
  const track = make('span', 'bar');
  track.setAttribute('role', 'img');
  track.setAttribute('aria-label', spoken(windows));
  pairs(windows).map(([start, end], rank) => {
    const piece = make('i', ofRun && rank ? 'pale' : '');
    place(piece, start, end, duration);
    return piece;
  }).reverse().forEach((piece) => track.append(piece));
  return track;
}
