// The page's frame: which view is shown, and the state of the server in the header.
import { h, replace, setText, getJson, uptime, number, announce } from './dom.js';
import { Overview } from './overview.js';
import { CompileView } from './compile.js';

const kPollMs = 1500;
const kMaxPollMs = 12000;

const main = document.getElementById('main');
const statusChip = document.getElementById('status');
const serverText = document.getElementById('server');

let view = null;
let timer = 0;
let failures = 0;
let lastStatus = '';

// "#/compiles/KEY/TAB?name=value"
function parseRoute() {
  const [path, query] = (location.hash.slice(1) || '/').split('?');
  const parts = path.split('/').filter(Boolean).map(safeDecode);
  return { parts, query: new URLSearchParams(query || '') };
}

function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch (error) {
    return text;
  }
}

function makeView(route) {
  if (route.parts.length === 0) return new Overview(route);
  if (route.parts[0] === 'compiles' && /^[0-9a-f]{64}$/.test(route.parts[1] || '')) return new CompileView(route);
  return {
    title: 'Not found',
    element: h('div', { class: 'card empty' }, h('strong', {}, 'There is no such page.'), h('a', { href: '#/' }, 'Go to the overview')),
    accepts: () => false,
  };
}

function navigate() {
  const route = parseRoute();
  if (view && view.accepts(route)) return;
  const first = view === null;
  if (view && view.close) view.close();
  view = makeView(route);
  replace(main, view.element);
  document.title = view.title ? `${view.title} \u00b7 Kiln` : 'Kiln';
  if (!first) {
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  poll();
}

function setStatus(text, kind) {
  if (text === lastStatus) return;
  lastStatus = text;
  statusChip.className = `chip dot ${kind}`;
  setText(statusChip, text);
  announce(`Server: ${text}`);
}

// One request at a time; none while nobody looks.
async function poll() {
  clearTimeout(timer);
  if (document.hidden) return;
  const asked = view;
  let activity = null;
  try {
    activity = await getJson(view.needs ? view.needs() : '/api/v1/activity?recent=1&slowest=1');
    failures = 0;
  } catch (error) {
    ++failures;
    setStatus(error.code ? 'Error' : 'Unreachable', 'bad');
    if (asked === view && view.offline) view.offline(error);
  }
  if (asked !== view) return;  // the other view's own question is under way
  clearTimeout(timer);
  timer = setTimeout(poll, Math.min(kPollMs * 2 ** Math.min(failures, 3), kMaxPollMs));
  if (!activity) return;
  setStatus(activity.draining ? 'Draining' : 'Serving', activity.draining ? 'warn' : 'good');
  setText(serverText, `version ${activity.version}, up ${uptime(number(activity.now_unix_us) - number(activity.started_unix_us))}`);
  if (view.update) view.update(activity);
}

window.addEventListener('hashchange', navigate);
document.addEventListener('visibilitychange', poll);
navigate();
