// Elements, numbers as text, and calls to the server. Text from the server becomes text nodes and
// attributes only: nothing here parses HTML.

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// ---- numbers: protobuf's JSON has 64-bit integers as strings

export const number = (value) => Number(value || 0);

export function count(value) {
  const n = number(value);
  if (n < 10000) return n.toLocaleString('en-US');
  const [div, unit] = n < 1e6 ? [1e3, 'k'] : n < 1e9 ? [1e6, 'M'] : [1e9, 'G'];
  return trim(n / div) + unit;
}

export function plural(n, one, many = one + 's') {
  return `${count(n)} ${n === 1 ? one : many}`;
}

function trim(x) {
  return x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
}

// [figure, unit]
export function durationParts(ms) {
  if (!(ms > 0)) return ['0', 'ms'];
  if (ms < 1) return [(ms * 1000).toFixed(0), '\u00b5s'];
  if (ms < 1000) return [trim(ms), 'ms'];
  if (ms < 60000) return [trim(ms / 1000), 's'];
  return [trim(ms / 60000), 'min'];
}

export const duration = (ms) => durationParts(ms).join('\u00a0');

export function bytes(value) {
  let n = number(value);
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; ++i) n /= 1024;
  return `${i === 0 ? n : trim(n)}\u00a0${units[i]}`;
}

export function ago(us, nowUs) {
  const s = Math.max(0, (nowUs - us) / 1e6);
  if (s < 5) return 'just now';
  if (s < 60) return `${Math.floor(s)} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

export function uptime(us) {
  const s = Math.floor(us / 1e6);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const clock = (us) => new Date(us / 1000).toLocaleTimeString('en-GB');
export const shortKey = (key) => key.slice(0, 12);

// ---- the server

const kTimeoutMs = 10000;

export class ApiError extends Error {
  constructor(message, code) {
    super(message);
    this.code = code;  // 0 where the server was not reached
  }
}

async function ask(path, options, signal) {
  const limit = AbortSignal.timeout(kTimeoutMs);
  const both = signal ? AbortSignal.any([signal, limit]) : limit;
  let response;
  try {
    response = await fetch(path, { ...options, signal: both });
  } catch (error) {
    if (signal && signal.aborted) throw error;
    throw new ApiError('The server does not answer.', 0);
  }
  if (response.ok) return response;
  let message = `The server answered with ${response.status}.`;
  try {
    message = (await response.json()).error || message;
  } catch (error) {
    // Not JSON: the code has to do.
  }
  throw new ApiError(message, response.status);
}

export async function getJson(path, signal) {
  return (await ask(path, {}, signal)).json();
}

export async function postJson(path, signal) {
  return (await ask(path, { method: 'POST', headers: { 'Kiln-Page': '1' } }, signal)).json();
}

export async function getText(path, signal) {
  return (await ask(path, {}, signal)).text();
}

// ---- parts of the page

export function chip(text, kind, dot) {
  return h('span', { class: `chip ${kind || ''} ${dot ? 'dot' : ''}` }, text);
}

export function card(title, extra, ...body) {
  return h('section', { class: 'card', 'aria-label': title },
    h('div', { class: 'card-head' }, h('h2', {}, title), h('span', { class: 'grow' }), extra), body);
}

export function loading(text) {
  return h('div', { class: 'loading', role: 'status' }, h('span', { class: 'spinner', 'aria-hidden': 'true' }), text);
}

// items: [{id, label}]; arrow keys move, as in any tab list.
export function tabs(label, items, selected, onselect, controls) {
  const list = h('div', { class: 'tabs', role: 'tablist', 'aria-label': label });
  const select = (id, focus) => {
    for (const button of list.children) {
      const on = button.dataset.id === id;
      button.setAttribute('aria-selected', on);
      button.tabIndex = on ? 0 : -1;
      if (on && focus) button.focus();
    }
  };
  for (const item of items) {
    list.append(h('button', {
      type: 'button', role: 'tab', 'data-id': item.id, 'aria-controls': controls, onclick: () => {
        select(item.id, false);
        onselect(item.id);
      },
    }, item.label));
  }
  list.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = items.findIndex((item) => item.id === document.activeElement.dataset.id);
    const next = items[(at + step + items.length) % items.length];
    event.preventDefault();
    select(next.id, true);
    onselect(next.id);
  });
  select(selected, false);
  return { element: list, select };
}

export function announce(text) {
  setText(document.getElementById('live'), text);
}
