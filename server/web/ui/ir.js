// Reads what the page needs out of the compiler's textual IR, and draws code.
import { h } from './dom.js';

const kName = /@(?:"((?:[^"\\]|\\.)*)"|([^\s[,()]+))/;
const kQuoted = /"((?:[^"\\]|\\.)*)"/g;

// Kernels and library calls of a module, in order: {kind, name, ops, reads, writes, line, end,
// style}. Lines count from 0. Text that is no module gives an empty list.
export function parseModule(text) {
  const items = [];
  let item = null;
  text.split('\n').forEach((line, i) => {
    if (line.startsWith('  kernel ')) {
      item = {
        kind: 'launch', name: nameIn(line), line: i, end: i, ops: origins(line), reads: new Set(), writes: new Set(),
        style: /^ {2}kernel @(?:"(?:[^"\\]|\\.)*"|\S+) contraction /.test(line) ? 'contraction' : 'pointwise',
      };
      items.push(item);
    } else if (line.startsWith('  library ')) {
      const [args, results] = splitLast(line, ') -> (');
      items.push({
        kind: 'library', name: unescape((kQuoted.exec(line) || ['', ''])[1]), line: i, end: i, ops: origins(line).slice(0, 1),
        reads: new Set(namesIn(args)), writes: new Set(namesIn(results)), style: 'library',
      });
      kQuoted.lastIndex = 0;
    } else if (item && line === '  }') {
      item.end = i;
      item = null;
    } else if (item) {
      readBody(line, item);
    }
  });
  return items;
}

// One line of a kernel's body.
function readBody(line, item) {
  const writes = /^\s*store\b/.test(line);
  for (const name of namesIn(line)) (writes ? item.writes : item.reads).add(name);
  if (item.style === 'pointwise' && /= (reduce|scan)\./.test(line)) item.style = 'reduction';
}

function nameIn(line) {
  const match = kName.exec(line);
  return match ? unescape(match[1] ?? match[2]) : '';
}

function namesIn(text) {
  return [...text.matchAll(new RegExp(kName, 'g'))].map((m) => unescape(m[1] ?? m[2]));
}

function origins(line) {
  const at = line.indexOf(' from "');
  return at < 0 ? [] : [...line.slice(at).matchAll(kQuoted)].map((m) => unescape(m[1]));
}

function splitLast(text, mark) {
  const at = text.lastIndexOf(mark);
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + mark.length)];
}

function unescape(text) {
  return text.replace(/\\(.)/g, '$1');
}

export function kernelText(text, item) {
  return text.split('\n').slice(item.line, item.end + 1).map((l) => l.replace(/^ {2}/, '')).join('\n');
}

// A generated source starts with the same prelude in every kernel: where the kernel's own text
// begins, in lines. 0 where it cannot be told.
export function ownStart(source) {
  const at = source.lastIndexOf('\nnamespace {\n');
  return at < 0 ? 0 : source.slice(0, at + 1).split('\n').length - 1;
}

// Assembly without the directives that say which line of the source is next, and for each of its
// lines that line's number, 0 where it has none. Prelude and kernel count as one text.
export function readAssembly(text) {
  const lines = [];
  const sourceLines = [];
  let current = 0;
  for (const line of text.split('\n')) {
    const at = /^\t\.loc\t\d+ (\d+)/.exec(line);
    if (at) current = Number(at[1]);
    if (at || /^\t\.file\t\d|^\.L(?:tmp|func_begin)\d+:/.test(line)) continue;
    lines.push(line);
    sourceLines.push(/^\t[^.]/.test(line) ? current : 0);
  }
  return { text: lines.join('\n'), sourceLines };
}

const kWords = {
  cpp: /\b(?:struct|void|const|long|int|float|double|bool|char|auto|for|if|else|return|static|inline|template|typename|class|namespace|extern|using|unsigned|signed|short|while|constexpr)\b/,
  ir: /\b(?:module|buffer|kernel|library|phase|from|load|store|const|cast|select|contraction|input|output|temp)\b|\breduce\.\w+|%\d+/,
  asm: /^\s*\.[\w.]+|^\s*[a-z][a-z0-9]*\b/,
};
const kComments = { cpp: /\/\/.*$/, ir: /\/\/.*$/, asm: /#.*$/ };

// `mark(line text, number)` may return nodes instead of the plain line. `first`: number of the
// first line.
export function renderCode(text, language, label, mark, first = 1) {
  const pre = h('pre', { class: 'code', tabindex: '0', 'aria-label': label });
  if (first > 1) pre.style.counterReset = `line ${first - 1}`;
  const lines = text.replace(/\n$/, '').split('\n');
  const out = document.createDocumentFragment();
  lines.forEach((line, i) => {
    const marked = mark ? mark(line, i) : null;
    out.append(h('span', { class: 'l' }, marked || paint(line, language), '\n'));
  });
  pre.append(out);
  return pre;
}

function paint(line, language) {
  const comment = kComments[language].exec(line);
  const code = comment ? line.slice(0, comment.index) : line;
  const parts = [];
  const pattern = new RegExp(`("(?:[^"\\\\]|\\\\.)*")|(${kWords[language].source})`, 'g');
  let at = 0;
  for (const match of code.matchAll(pattern)) {
    if (match[0] === '') continue;
    parts.push(code.slice(at, match.index), h('span', { class: match[1] ? 'q' : 'k' }, match[0]));
    at = match.index + match[0].length;
  }
  parts.push(code.slice(at));
  if (comment) parts.push(h('span', { class: 'c' }, comment[0]));
  return parts;
}
